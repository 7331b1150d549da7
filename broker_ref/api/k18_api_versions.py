"""ApiVersions (18), versions 0 to 4: which APIs and versions this broker serves.

Behaviour: answered from the table of handlers. An unknown version is answered in version 0 with
UNSUPPORTED_VERSION and the versions of ApiVersions itself, so that the client can ask again
(KIP-511, KIP-896); `unsupported_version` makes that answer, since no such request can be read.
Names of client software that no client of Kafka's would send are INVALID_REQUEST. No feature is
finalized: none is served that features gate (KIP-584).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """Who asks; None before version 3."""

    client_software_name: str | None = None
    client_software_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """One API and the versions served, both ends included."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """The table of APIs."""

    error_code: ErrorCode = ErrorCode.none
    api_keys: tuple[ServedApi, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer with every API, or INVALID_REQUEST where the client's software has no valid name."""
    del call
    for software in (request.client_software_name, request.client_software_version):
        if software is not None and _SOFTWARE.fullmatch(software) is None:
            return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    return ApiVersionsResponse(api_keys=tuple(_served(api) for api in broker.apis()))


def unsupported_version() -> ApiVersionsResponse:
    """The answer, to be sent in version 0, to a version that is not served."""
    return ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(_served(API),))


def _served(api: Api[Any]) -> ServedApi:
    lowest = api.versions[0] if api.advertised_from is None else api.advertised_from
    return ServedApi(api_key=api.key, min_version=lowest, max_version=api.versions[-1])


API: Final = Api(key=18, versions=range(5), request=ApiVersionsRequest, handle=handle)
