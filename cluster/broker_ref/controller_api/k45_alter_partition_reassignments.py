"""AlterPartitionReassignments (45), versions 0 and 1: move partitions to other brokers (KIP-455).

A partition is reassigned to the replicas in the request. If the replicas are null, the reassignment
in progress is cancelled. The error is NO_REASSIGNMENT_IN_PROGRESS if there is nothing to cancel,
and INVALID_REPLICA_ASSIGNMENT for an empty list and for unknown or repeated brokers. The error is
INVALID_REPLICATION_FACTOR if the number of replicas changes and the request does not allow this
change (version 1, KIP-860). When the response is sent, the reassignment has started.
ListPartitionReassignments returns the reassignments in progress. Source:
`kafka.server.ControllerApis.handleAlterPartitionReassignments`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    """A partition and its new replicas. None cancels the reassignment."""

    partition_index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    """The requested partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    """An AlterPartitionReassignments request."""

    topics: tuple[ReassignableTopic, ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The error code for a partition."""

    partition_index: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition results for a topic."""

    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    """An AlterPartitionReassignments response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    responses: tuple[TopicResponse, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start or cancel the requested reassignments."""
    del call
    requested = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in request.topics
        for partition in topic.partitions
    }
    try:
        outcomes = context.controller.alter_reassignments(
            requested, may_change_factor=request.allow_replication_factor_change
        )
    except ApiError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.error_code, error_message=error.message
        )
    responses: dict[str, list[PartitionResponse]] = {}
    for (topic, partition), outcome in zip(requested, outcomes, strict=True):
        responses.setdefault(topic, []).append(
            PartitionResponse(
                partition_index=partition,
                error_code=ErrorCode.none if outcome is None else outcome.error_code,
                error_message=None if outcome is None else outcome.message,
            )
        )
    return AlterPartitionReassignmentsResponse(
        responses=tuple(
            TopicResponse(name=name, partitions=tuple(partitions))
            for name, partitions in responses.items()
        )
    )


API: Final = Api(
    key=45,
    versions=range(2),
    request=AlterPartitionReassignmentsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER),),
)
