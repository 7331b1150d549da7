"""ApiVersions (18), versions 0 to 4: the APIs and versions that the controller supports.

The handler works like `broker_ref.api.k18_api_versions`, but returns the APIs of the controller.
Source: `kafka.server.ControllerApis.handleApiVersionsRequest`.
"""

from __future__ import annotations

from typing import Final

from broker_ref.api.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse, api_versions
from broker_ref.controller_api.contract import Api, Call, ControllerContext


def handle(
    context: ControllerContext, call: Call, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    """Return all APIs of the controller."""
    return api_versions(request, context.apis(), context.metadata, version=call.version)


API: Final = Api(key=18, versions=range(5), request=ApiVersionsRequest, handle=handle)
