"""OffsetCommit (8), versions 2 to 10: keep a group's offsets.

Behaviour: a consumer that assigns its partitions itself commits with generation -1; groups have no
members here, so any other generation is refused. Offsets of partitions that do not exist are
UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID by id, from version 10), metadata longer than
`offset.metadata.max.bytes` OFFSET_METADATA_TOO_LARGE; the others of the request are kept. The
answer comes once every in-sync replica of the offsets partition has them. The retention time of
versions 2 to 4 is read over, as Kafka does since KIP-211 gave every group one retention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.partition import Appended

FIRST_VERSION_BY_TOPIC_ID: Final = 10
FIRST_VERSION_OF_GROUP_ID_NOT_FOUND: Final = 9
COMMIT_TIMEOUT_MS: Final = 5000
"""Kafka's default of `offsets.commit.timeout.ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """An offset to keep."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic:
    """Offsets of a topic, by name or, from version 10, by id."""

    partitions: tuple[CommittedPartition, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """Whose offsets, and which."""

    group_id: str
    topics: tuple[CommittedTopic, ...]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Whether an offset is kept."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(slots=True, kw_only=True)
class DelayedCommit:
    """A commit that is in the leader's log, until the in-sync replicas have it."""

    appended: Appended
    response: OffsetCommitResponse
    timed_out: OffsetCommitResponse

    def try_complete(self, now_ms: int) -> OffsetCommitResponse | None:
        """The response once the offsets are replicated."""
        del now_ms
        return self.response if self.appended.is_replicated else None

    def expire(self, now_ms: int) -> OffsetCommitResponse:
        """COORDINATOR_NOT_AVAILABLE, on which clients commit again."""
        del now_ms
        return self.timed_out


def handle(broker: Broker, call: Call, request: OffsetCommitRequest) -> object:
    """Check each offset, keep those that may be, answer for all."""
    errors: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetCommitValue] = {}
    for topic_index, topic in enumerate(request.topics):
        for index, partition in enumerate(topic.partitions):
            try:
                key = _check(broker, call, topic, partition)
            except ApiError as error:
                errors[topic_index, index] = error.error_code
            else:
                offsets[key] = OffsetCommitValue(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp_ms=call.now_ms,
                    topic_id=broker.metadata.topics[key.topic].topic_id,
                )
    try:
        appended = _commit(broker, call, request, offsets)
    except ApiError as error:
        return _response(request, errors, error.error_code)
    response = _response(request, errors, ErrorCode.none)
    if appended is None or appended.is_replicated:
        return response
    delayed = DelayedCommit(
        appended=appended,
        response=response,
        timed_out=_response(request, errors, ErrorCode.coordinator_not_available),
    )
    return Wait(
        operation=delayed,
        keys=(appended.partition.key,),
        deadline_ms=call.now_ms + COMMIT_TIMEOUT_MS,
    )


def _check(
    broker: Broker, call: Call, topic: CommittedTopic, partition: CommittedPartition
) -> TopicPartition:
    name = topic.name
    if call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            raise ApiError(ErrorCode.unknown_topic_id, f"There is no topic {topic.topic_id}.")
        name = found.name
    if broker.metadata.partition(name, partition.partition_index) is None:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"There is no partition {partition.partition_index} of a topic {name!r}.",
        )
    metadata = partition.committed_metadata or ""
    if len(metadata) > broker.config.offset_metadata_max_bytes:
        raise ApiError(
            ErrorCode.offset_metadata_too_large,
            f"The metadata of an offset has {len(metadata)} characters, more than "
            f"offset.metadata.max.bytes={broker.config.offset_metadata_max_bytes}.",
        )
    return TopicPartition(topic=name, partition=partition.partition_index)


def _commit(
    broker: Broker,
    call: Call,
    request: OffsetCommitRequest,
    offsets: dict[TopicPartition, OffsetCommitValue],
) -> Appended | None:
    group = request.group_id
    broker.offsets.check_coordinator(group)
    try:
        broker.offsets.check_committer(group, request.generation_id_or_member_epoch)
    except ApiError as error:
        unknown = error.error_code is ErrorCode.group_id_not_found
        if unknown and call.version < FIRST_VERSION_OF_GROUP_ID_NOT_FOUND:
            raise ApiError(ErrorCode.illegal_generation, error.message) from error
        raise
    return broker.offsets.commit(group, offsets, call.now_ms) if offsets else None


def _response(
    request: OffsetCommitRequest, errors: dict[tuple[int, int], ErrorCode], others: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=tuple(
            TopicAnswer(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    PartitionAnswer(
                        partition_index=partition.partition_index,
                        error_code=errors.get((topic_index, index), others),
                    )
                    for index, partition in enumerate(topic.partitions)
                ),
            )
            for topic_index, topic in enumerate(request.topics)
        )
    )


API: Final = Api(key=8, versions=range(2, 11), request=OffsetCommitRequest, handle=handle)
