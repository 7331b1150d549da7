"""DescribeCluster (60), versions 0 to 2: brokers, cluster id and controller (KIP-700).

The error is MISMATCHED_ENDPOINT_TYPE if the request is meant for a controller (version 1, KIP-919),
and UNSUPPORTED_ENDPOINT_TYPE for an unknown endpoint type. Fenced brokers are returned only on
request (version 2, KIP-1073). The authorized operations are 0 if the client may not describe the
cluster. Source: `kafka.server.KafkaApis.handleDescribeCluster`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, OPERATIONS_NOT_REQUESTED, Api, Broker, Call
from broker_ref.api.endpoints import advertised_controller_id
from broker_ref.frozen import dataclass

BROKERS: Final = 1
CONTROLLERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeClusterRequest:
    """A DescribeCluster request."""

    include_cluster_authorized_operations: bool
    endpoint_type: int = BROKERS
    include_fenced_brokers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerResponse:
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
    brokers: tuple[BrokerResponse, ...] = ()
    cluster_authorized_operations: int = OPERATIONS_NOT_REQUESTED
    endpoint_type: int = BROKERS
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Return the brokers, the cluster id and the controller."""
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.mismatched_endpoint_type,
            error_message="The request was sent to an endpoint of type BROKER, but requires an "
            "endpoint of type CONTROLLER.",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.unsupported_endpoint_type,
            error_message=f"Unsupported endpoint type {request.endpoint_type}.",
        )
    authorized = OPERATIONS_NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        authorized = call.auth.authorized_cluster_operations()
    return DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=advertised_controller_id(broker),
        brokers=tuple(
            BrokerResponse(
                broker_id=node.broker_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=node.rack,
                is_fenced=node.is_fenced,
            )
            for node in broker.metadata.brokers.values()
            if request.include_fenced_brokers or not node.is_fenced
            if (endpoint := node.endpoint(call.listener)) is not None
        ),
        cluster_authorized_operations=authorized,
    )


API: Final = Api(key=60, versions=range(3), request=DescribeClusterRequest, handle=handle)
