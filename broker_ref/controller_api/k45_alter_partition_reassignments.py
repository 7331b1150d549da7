"""AlterPartitionReassignments (45), versions 0 and 1: move partitions to other brokers (KIP-455).

Behaviour: each partition gets the replicas named, or with none named its reassignment is cancelled
(NO_REASSIGNMENT_IN_PROGRESS). Replicas on unknown brokers, repeated ones and an empty list are
INVALID_REPLICA_ASSIGNMENT; from version 1 another number of replicas can be refused, as
INVALID_REPLICATION_FACTOR (KIP-860). The answer says that the move has begun; ListPartitionReassignments
tells which are under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    """The replicas that a partition is to have; None to cancel."""

    partition_index: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[ReassignablePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    """What to move."""

    topics: tuple[ReassignableTopic, ...]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Whether a move has begun, or was taken back."""

    partition_index: int
    error_code: ErrorCode
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for the partitions of a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    """The answers for every partition."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    responses: tuple[TopicAnswer, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel the moves."""
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
