"""DescribeCluster (60), versions 0 to 2: brokers, cluster id and controller (KIP-700).

Behaviour: MISMATCHED_ENDPOINT_TYPE: the request is for a controller (version 1, KIP-919);
UNSUPPORTED_ENDPOINT_TYPE: another type. Fenced brokers are not returned (version 2, KIP-1073).
Without an authorizer all operations are authorized. Source:
`kafka.server.KafkaApis.handleDescribeCluster`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, OPERATIONS_NOT_REQUESTED, Api, Broker, Call
from broker_ref.api.endpoints import advertised_controller_id
from broker_ref.api.k03_metadata import CLUSTER_OPERATIONS

BROKERS: Final = 1
CONTROLLERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    """A DescribeCluster request."""

    include_cluster_authorized_operations: bool
    endpoint_type: int = BROKERS
    include_fenced_brokers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredBroker:
    """The address of a broker."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterResponse:
    """A DescribeCluster response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    cluster_id: str = ""
    controller_id: int = -1
    brokers: tuple[AnsweredBroker, ...] = ()
    cluster_authorized_operations: int = OPERATIONS_NOT_REQUESTED
    endpoint_type: int = BROKERS
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Describe the cluster."""
    del call
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.mismatched_endpoint_type,
            error_message="The request was sent to an endpoint of type BROKER, but it is meant "
            "for one of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.unsupported_endpoint_type,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    authorized = OPERATIONS_NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        authorized = CLUSTER_OPERATIONS
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=advertised_controller_id(broker),
        brokers=tuple(
            AnsweredBroker(
                broker_id=node.broker_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=node.is_fenced,
            )
            for node in broker.metadata.brokers.values()
            if request.include_fenced_brokers or not node.is_fenced
        ),
        cluster_authorized_operations=authorized,
    )


API: Final = Api(key=60, versions=range(3), request=DescribeClusterRequest, handle=handle)
