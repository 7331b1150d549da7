"""ListConfigResources (74), versions 0 and 1: the resources that have configs (KIP-1142).

Version 0 (ListClientMetricsResources) lists only the client metrics subscriptions. From version
1 on, a request can contain other resource types. If such a request contains no types, resources of
all types are listed. Topics and registered brokers are listed even if they have no configs. Groups
and subscriptions are listed only if they have configs. The error is UNSUPPORTED_VERSION if the
request contains an unknown type. Source: `kafka.server.KafkaApis.handleListConfigResources`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_cluster
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.records import ConfigResourceType
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation

FIRST_VERSION_OF_TYPES: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesRequest:
    """A ListConfigResources request."""

    resource_types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedResource:
    """A resource that has configs."""

    resource_name: str
    resource_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfigResourcesResponse:
    """A ListConfigResources response."""

    error_code: ErrorCode = ErrorCode.none
    config_resources: tuple[ListedResource, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the resources of the requested types."""
    requested = frozenset(request.resource_types)
    if call.version < FIRST_VERSION_OF_TYPES:
        requested = frozenset({ConfigResourceType.CLIENT_METRICS})
    if not requested <= frozenset(ConfigResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.unsupported_version)
    return ListConfigResourcesResponse(
        config_resources=tuple(
            ListedResource(resource_name=name, resource_type=resource_type)
            for resource_type in sorted(ConfigResourceType, reverse=True)
            if not requested or resource_type in requested
            for name in _names(broker.metadata, resource_type, call.listener)
        )
    )


def _names(
    metadata: ClusterMetadata, resource_type: ConfigResourceType, listener: str
) -> Iterable[str]:
    match resource_type:
        case ConfigResourceType.TOPIC:
            return metadata.topics
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER:
            return (
                str(one.broker_id)
                for one in metadata.brokers.values()
                if one.endpoint(listener) is not None
            )
        case _:
            return (name for of_type, name in metadata.resource_configs if of_type == resource_type)


API: Final = Api(
    key=74,
    versions=range(2),
    request=ListConfigResourcesRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.DESCRIBE_CONFIGS),),
)
