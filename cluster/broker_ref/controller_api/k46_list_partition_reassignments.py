"""ListPartitionReassignments (46), version 0: reassignments in progress (KIP-455).

If `topics` is null, all partitions are requested. Partitions that are not being reassigned are
omitted. Source: `kafka.server.ControllerApis.handleListPartitionReassignments`.
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
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTopic:
    """The requested partitions of a topic."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    """A ListPartitionReassignments request. If `topics` is None, all partitions are requested."""

    topics: tuple[NamedTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingPartition:
    """A partition with a reassignment in progress."""

    partition_index: int
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingTopic:
    """The partitions of a topic with a reassignment in progress."""

    name: str
    partitions: tuple[OngoingPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    """A ListPartitionReassignments response."""

    topics: tuple[OngoingTopic, ...]
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the reassignments in progress."""
    del call
    named = request.topics
    if named is None:
        named = tuple(
            NamedTopic(name=topic.name, partition_indexes=tuple(topic.partitions))
            for topic in context.metadata.topics.values()
        )
    moving = (OngoingTopic(name=topic.name, partitions=_ongoing(context, topic)) for topic in named)
    return ListPartitionReassignmentsResponse(
        topics=tuple(topic for topic in moving if topic.partitions)
    )


def _ongoing(context: ControllerContext, topic: NamedTopic) -> tuple[OngoingPartition, ...]:
    found = (context.metadata.partition(topic.name, index) for index in topic.partition_indexes)
    return tuple(
        OngoingPartition(
            partition_index=partition.partition,
            replicas=partition.replicas,
            adding_replicas=partition.adding_replicas,
            removing_replicas=partition.removing_replicas,
        )
        for partition in found
        if partition is not None and partition.is_reassigning
    )


API: Final = Api(
    key=46,
    versions=range(1),
    request=ListPartitionReassignmentsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.DESCRIBE),),
)
