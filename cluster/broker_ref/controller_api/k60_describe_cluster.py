"""DescribeCluster (60), versions 1 and 2, on the controller: the cluster id.

The error is MISMATCHED_ENDPOINT_TYPE if the request is meant for a broker (KIP-919), and
UNSUPPORTED_ENDPOINT_TYPE for an unknown endpoint type. The list of controllers is empty, because
the client is connected to the only controller. As in Kafka, clients with ALTER on the cluster are
authorized. Clients with CLUSTER_ACTION are authorized as well, because brokers request the cluster
id before they register. Source: `kafka.server.ControllerApis.handleDescribeCluster`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.k60_describe_cluster import (
    BROKERS,
    CONTROLLERS,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller_api.contract import Api, Call, ControllerContext, on_cluster
from broker_ref.security.acls import AclOperation


def handle(
    context: ControllerContext, call: Call, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Return the cluster id."""
    del call
    if request.endpoint_type == BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.mismatched_endpoint_type,
            error_message="The request was sent to an endpoint of type CONTROLLER, but requires "
            "an endpoint of type BROKER.",
            endpoint_type=CONTROLLERS,
        )
    if request.endpoint_type != CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.unsupported_endpoint_type,
            error_message=f"Unsupported endpoint type {request.endpoint_type}.",
            endpoint_type=CONTROLLERS,
        )
    return DescribeClusterResponse(
        cluster_id=context.cluster_id, controller_id=CONTROLLER_ID, endpoint_type=CONTROLLERS
    )


API: Final = Api(
    key=60,
    versions=range(1, 3),
    request=DescribeClusterRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER, alternative=AclOperation.CLUSTER_ACTION),),
)
