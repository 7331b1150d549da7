"""AlterPartitionReassignments (45), versions 0 and 1: move partitions to other brokers (KIP-455).

Behaviour: a partition is reassigned to the given replicas; null replicas cancel its reassignment
(NO_REASSIGNMENT_IN_PROGRESS if there is none). INVALID_REPLICA_ASSIGNMENT: unknown or repeated
brokers, or an empty list; INVALID_REPLICATION_FACTOR: another number of replicas, if the request
does not allow it (version 1, KIP-860). The response implies that the reassignment has started;
ListPartitionReassignments returns those in progress. Source:
`kafka.server.ControllerApis.handleAlterPartitionReassignments`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    """A partition and its new replicas; None cancels the reassignment."""

    partition_index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    """The partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    """An AlterPartitionReassignments request."""

    topics: tuple[ReassignableTopic, ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The result of a partition."""

    partition_index: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The results of a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    """An AlterPartitionReassignments response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    responses: tuple[TopicAnswer, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start or cancel the reassignments."""
    del call
    wanted = {
        (topic.name, partition.partition_index): partition.replicas
        for topic in request.topics
        for partition in topic.partitions
    }
    try:
        refusals = context.controller.alter_reassignments(
            wanted, may_change_factor=request.allow_replication_factor_change
        )
    except ApiError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.error_code, error_message=error.message
        )
    answers: dict[str, list[PartitionAnswer]] = {}
    for (topic, partition), refusal in zip(wanted, refusals, strict=True):
        answers.setdefault(topic, []).append(
            PartitionAnswer(
                partition_index=partition,
                error_code=ErrorCode.none if refusal is None else refusal.error_code,
                error_message=None if refusal is None else refusal.message,
            )
        )
    return AlterPartitionReassignmentsResponse(
        responses=tuple(
            TopicAnswer(name=name, partitions=tuple(partitions))
            for name, partitions in answers.items()
        )
    )


API: Final = Api(
    key=45, versions=range(2), request=AlterPartitionReassignmentsRequest, handle=handle
)
