"""ApiVersions (18), versions 0 to 4: which APIs and versions this broker serves.

Behaviour: answered from the table of handlers. An unknown version is answered in version 0 with
UNSUPPORTED_VERSION and the versions of ApiVersions itself, so that the client can ask again
(KIP-511, KIP-896); `unsupported_version` makes that answer, since no such request can be read.
Names of client software that no client of Kafka's would send are INVALID_REQUEST. From version 3
on with the features that are supported and those that are finalized (KIP-584), as of the broker's
last metadata record, whose offset is their epoch. Some clients cannot read version 3 with a feature
that is supported from version 0 on, so that has none of those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.controller.features import SUPPORTED_FEATURES
from broker_ref.controller.metadata import ClusterMetadata

FIRST_WITH_ALL_FEATURES: Final = 4
UNKNOWN_EPOCH: Final = -1

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
class SupportedFeature:
    """A feature and the versions that may be finalized, both ends included."""

    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeature:
    """A feature and the version that is finalized: both levels are that one, as in KRaft."""

    name: str
    max_version_level: int
    min_version_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse:
    """The table of APIs, and the features."""

    error_code: ErrorCode = ErrorCode.none
    api_keys: tuple[ServedApi, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS
    supported_features: tuple[SupportedFeature, ...] = ()
    finalized_features_epoch: int = UNKNOWN_EPOCH
    finalized_features: tuple[FinalizedFeature, ...] = ()


def handle(broker: Broker, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Answer with every API, or INVALID_REQUEST where the client's software has no valid name."""
    for software in (request.client_software_name, request.client_software_version):
        if software is not None and _SOFTWARE.fullmatch(software) is None:
            return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    return api_versions(broker.apis(), broker.metadata, version=call.version)


def api_versions(
    apis: Iterable[Api[Any]], metadata: ClusterMetadata, *, version: int
) -> ApiVersionsResponse:
    """What a node that serves these APIs answers, and has of the metadata."""
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
    """Those of which a client that speaks this version may hear (KAFKA-17492)."""
    return tuple(
        SupportedFeature(name=name, min_version=versions[0], max_version=versions[-1])
        for name, versions in features.items()
        if versions[0] > 0 or version >= FIRST_WITH_ALL_FEATURES
    )


def unsupported_version() -> ApiVersionsResponse:
    """The answer, to be sent in version 0, to a version that is not served."""
    return ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=(_served(API),))


def _served(api: Api[Any]) -> ServedApi:
    lowest = api.versions[0] if api.advertised_from is None else api.advertised_from
    return ServedApi(api_key=api.key, min_version=lowest, max_version=api.versions[-1])


API: Final = Api(key=18, versions=range(5), request=ApiVersionsRequest, handle=handle)
