"""ApiVersions (18), versions 0 to 4: the APIs and versions that this broker supports.

The response is derived from the list of APIs. If the request version is not supported, the broker
cannot parse the request. It then sends a version 0 response with the error UNSUPPORTED_VERSION and
the supported versions of ApiVersions (`unsupported_version`). The client can then retry (KIP-511,
KIP-896). An invalid client software name or version is rejected with INVALID_REQUEST.

From version 3 on, the response contains the supported and the finalized features (KIP-584). The
epoch of the finalized features is the offset of the last applied metadata record. Version 3 omits
features whose lowest supported version is 0, because some clients cannot parse them (KAFKA-17492).
Source: `kafka.server.KafkaApis.handleApiVersionsRequest`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.controller.features import SUPPORTED_FEATURES
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.frozen import dataclass

FIRST_WITH_ALL_FEATURES: Final = 4
UNKNOWN_EPOCH: Final = -1

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest:
    """An ApiVersions request. Both fields are None before version 3."""

    client_software_name: str | None = None
    client_software_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """The key of an API with its lowest and highest version."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportedFeature:
    """A feature with its lowest and highest supported version."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeature:
    """A finalized feature. In KRaft, the minimum and maximum version levels are equal."""

    name: str
    max_version_level: int
    min_version_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """An ApiVersions response."""

    error_code: ErrorCode = ErrorCode.none
    api_keys: tuple[ServedApi, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS
    supported_features: tuple[SupportedFeature, ...] = ()
    finalized_features_epoch: int = UNKNOWN_EPOCH
    finalized_features: tuple[FinalizedFeature, ...] = ()


def handle(broker: Broker, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Return all APIs, or INVALID_REQUEST if the client software name or version is invalid."""
    return api_versions(request, broker.apis(), broker.metadata, version=call.version)


def api_versions(
    request: ApiVersionsRequest,
    apis: Iterable[Api[Any]],
    metadata: ClusterMetadata,
    *,
    version: int,
) -> ApiVersionsResponse:
    """Return the response of a node that serves `apis` and has applied `metadata`."""
    for software in (request.client_software_name, request.client_software_version):
        if software is not None and _SOFTWARE.fullmatch(software) is None:
            return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    return ApiVersionsResponse(
        api_keys=tuple(_served(api) for api in apis),
        supported_features=_supported(SUPPORTED_FEATURES, version),
        finalized_features_epoch=metadata.end_offset - 1,
        finalized_features=tuple(
            FinalizedFeature(name=name, max_version_level=level, min_version_level=level)
            for name, level in metadata.finalized_features.items()
        ),
    )


def _supported(features: Mapping[str, range], version: int) -> tuple[SupportedFeature, ...]:
    """Return the features that a client with this request version can parse (KAFKA-17492)."""
    return tuple(
        SupportedFeature(name=name, min_version=versions[0], max_version=versions[-1])
        for name, versions in features.items()
        if versions[0] > 0 or version >= FIRST_WITH_ALL_FEATURES
    )


def unsupported_version() -> ApiVersionsResponse:
    """Return the version 0 response to a request with an unsupported version."""
    return ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(_served(API),))


def _served(api: Api[Any]) -> ServedApi:
    lowest = api.versions[0] if api.advertised_from is None else api.advertised_from
    return ServedApi(api_key=api.key, min_version=lowest, max_version=api.versions[-1])


API: Final = Api(key=18, versions=range(5), request=ApiVersionsRequest, handle=handle)
