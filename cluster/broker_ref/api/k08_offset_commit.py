"""OffsetCommit (8), versions 2 to 10: store committed offsets for a group.

A client that is not a member of the group commits with generation -1, which is allowed only if the
group has no members. A member commits with its member id and generation. Invalid values are
rejected with UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION or FENCED_INSTANCE_ID. The error for a member
without an assignment is REBALANCE_IN_PROGRESS. A commit with generation -1 creates the group if it
does not exist. If a member commits to a group that does not exist, the error is GROUP_ID_NOT_FOUND,
or ILLEGAL_GENERATION before version 9. From version 9 on, a member of a consumer group sends its
epoch. An outdated epoch is rejected with STALE_MEMBER_EPOCH, unless the member has owned the
partitions since that epoch (KIP-848, KIP-1251).

The error for a partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID
from version 10 on, because these requests contain topic ids. OFFSET_METADATA_TOO_LARGE is returned
if the metadata is longer than `offset.metadata.max.bytes`. These errors do not affect the other
offsets in the request. The broker responds when the offsets have been replicated to all in-sync
replicas of the offsets partition. The retention time in versions 2 to 4 applies only to the offsets
in the request. Source: `kafka.server.KafkaApis.handleOffsetCommitRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.frozen import dataclass
from broker_ref.group.offset_metadata_manager import Committer, is_metadata_invalid
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import NO_EXPIRY, OffsetCommitValue
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.security.acls import AclOperation

FIRST_VERSION_BY_TOPIC_ID: Final = 10
FIRST_VERSION_OF_GROUP_ID_NOT_FOUND: Final = 9
FIRST_VERSION_OF_MEMBER_EPOCH: Final = 9
NO_RETENTION_TIME: Final = -1
"""The retention time in a request that uses the default, `offsets.retention.minutes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartition:
    """The offset to store for a partition."""

    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic:
    """The offsets of a topic. From version 10 on, requests contain topic ids."""

    partitions: tuple[CommittedPartition, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """An OffsetCommit request."""

    group_id: str
    topics: tuple[CommittedTopic, ...]
    generation_id_or_member_epoch: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = NO_RETENTION_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The error code for a partition."""

    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition results for a topic."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """An OffsetCommit response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: OffsetCommitRequest) -> object:
    """Store the offsets of all partitions that exist."""
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
        if is_metadata_invalid(partition.committed_metadata, broker.config):
            errors[place] = ErrorCode.offset_metadata_too_large
        else:
            topic_id = broker.metadata.topics[key.topic].topic_id
            offsets[key] = _value(call, request, partition, topic_id)
    committer = Committer(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id_or_member_epoch,
        knows_member_epochs=call.version >= FIRST_VERSION_OF_MEMBER_EPOCH,
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
        invalid = {place: code for place, code in errors.items() if place not in found}
        return _response(request, invalid, outcome)

    return respond_to(reply, respond)


def _find(
    broker: Broker, call: Call, topic: CommittedTopic, partition: CommittedPartition
) -> TopicPartition:
    name = topic.name
    if call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            raise ApiError(
                ErrorCode.unknown_topic_id, f"There is no topic with the id {topic.topic_id}."
            )
        name = found.name
    call.auth.check_topic(AclOperation.READ, name)
    if broker.metadata.partition(name, partition.partition_index) is None:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition,
            f"Topic {name!r} has no partition {partition.partition_index}.",
        )
    return TopicPartition(topic=name, partition=partition.partition_index)


def _value(
    call: Call, request: OffsetCommitRequest, partition: CommittedPartition, topic_id: Uuid
) -> OffsetCommitValue:
    expire_timestamp_ms = NO_EXPIRY
    if request.retention_time_ms != NO_RETENTION_TIME:
        expire_timestamp_ms = _sum_in_java(call.now_ms, request.retention_time_ms)
    return OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp_ms=call.now_ms,
        topic_id=topic_id,
        expire_timestamp_ms=expire_timestamp_ms,
    )


def _sum_in_java(first: int, second: int) -> int:
    """Return the sum of two 64-bit integers. On overflow, the sum wraps around, as in Java."""
    return (first + second + 2**63) % 2**64 - 2**63


def _response(
    request: OffsetCommitRequest, errors: dict[tuple[int, int], ErrorCode], others: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=tuple(
            TopicResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    PartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=errors.get((topic_index, index), others),
                    )
                    for index, partition in enumerate(topic.partitions)
                ),
            )
            for topic_index, topic in enumerate(request.topics)
        )
    )


API: Final = Api(
    key=8,
    versions=range(2, 11),
    request=OffsetCommitRequest,
    handle=handle,
    requires=(on_group(AclOperation.READ),),
)
