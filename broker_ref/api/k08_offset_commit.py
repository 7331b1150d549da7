"""OffsetCommit (8), versions 2 to 10: store offsets of a group.

Behaviour: a consumer without group membership commits with generation -1 while the group has no
members. A member commits with its id and generation; errors: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION,
FENCED_INSTANCE_ID, and REBALANCE_IN_PROGRESS before it has its assignment. A group that does not
exist is created, except by members: GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION before version 9).
UNKNOWN_TOPIC_OR_PARTITION (UNKNOWN_TOPIC_ID by id, from version 10 on): the partition does not
exist; OFFSET_METADATA_TOO_LARGE: longer than `offset.metadata.max.bytes`; the other offsets of the
request are stored. The broker responds when all in-sync replicas of the offsets partition have the
offsets. A retention time (versions 2 to 4) applies to these offsets only. Source:
`kafka.server.KafkaApis.handleOffsetCommitRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.coordinator_replies import answer
from broker_ref.group.offset_metadata_manager import Committer
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid

FIRST_VERSION_BY_TOPIC_ID: Final = 10
FIRST_VERSION_OF_GROUP_ID_NOT_FOUND: Final = 9
NO_RETENTION_TIME: Final = -1
"""The offsets expire after `offsets.retention.minutes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """An offset to store."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic:
    """The offsets of a topic, by name or, from version 10 on, by id."""

    partitions: tuple[CommittedPartition, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """An offset commit request."""

    group_id: str
    topics: tuple[CommittedTopic, ...]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = NO_RETENTION_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The result of a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The results of a topic."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """An offset commit response."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: OffsetCommitRequest) -> object:
    """Store the offsets of existing partitions."""
    errors: dict[tuple[int, int], ErrorCode] = {}
    found: dict[tuple[int, int], TopicPartition] = {}
    for topic_index, topic in enumerate(request.topics):
        for index, partition in enumerate(topic.partitions):
            try:
                found[topic_index, index] = _find(broker, call, topic, partition)
            except ApiError as error:
                errors[topic_index, index] = error.error_code
    if not found:
        return _response(request, errors, ErrorCode.none)
    offsets: dict[TopicPartition, OffsetCommitValue] = {}
    for place, key in found.items():
        partition = request.topics[place[0]].partitions[place[1]]
        if len(partition.committed_metadata or "") > broker.config.offset_metadata_max_bytes:
            errors[place] = ErrorCode.offset_metadata_too_large
        else:
            topic_id = broker.metadata.topics[key.topic].topic_id
            offsets[key] = _value(call, request, partition, topic_id)
    committer = Committer(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id_or_member_epoch,
    )
    reply = broker.groups.commit(request.group_id, committer, offsets, call.now_ms)

    def respond(outcome: ErrorCode) -> OffsetCommitResponse:
        if outcome is ErrorCode.none:
            return _response(request, errors, outcome)
        if (
            outcome is ErrorCode.group_id_not_found
            and call.version < FIRST_VERSION_OF_GROUP_ID_NOT_FOUND
        ):
            outcome = ErrorCode.illegal_generation
        refused = {place: code for place, code in errors.items() if place not in found}
        return _response(request, refused, outcome)

    return answer(reply, respond)


def _find(
    broker: Broker, call: Call, topic: CommittedTopic, partition: CommittedPartition
) -> TopicPartition:
    name = topic.name
    if call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            raise ApiError(
                ErrorCode.unknown_topic_id, f"There is no topic with id {topic.topic_id}."
            )
        name = found.name
    if broker.metadata.partition(name, partition.partition_index) is None:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"There is no partition {partition.partition_index} of topic {name!r}.",
        )
    return TopicPartition(topic=name, partition=partition.partition_index)


def _value(
    call: Call, request: OffsetCommitRequest, partition: CommittedPartition, topic_id: Uuid
) -> OffsetCommitValue:
    expires = request.retention_time_ms != NO_RETENTION_TIME
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=call.now_ms,
        topic_id=topic_id,
        expire_timestamp_ms=call.now_ms + request.retention_time_ms if expires else -1,
    )


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
