"""OffsetFetch (9), versions 1 to 10: committed offsets of groups.

Behaviour: one group up to version 7, several from version 8 on (KIP-709). Null topics (from version
2 on) request all offsets of the group. A partition without a committed offset returns -1 without an
error, also if the group is unknown. The offsets that all in-sync replicas have are returned. With
`require_stable` (version 7, KIP-447) the broker waits up to `offsets.commit.timeout.ms` for pending
commits and transaction markers to be replicated, and then responds NOT_COORDINATOR, which clients
retry; an offset of an open transaction is UNSTABLE_OFFSET_COMMIT. Without it, the offset before the
transaction is returned. Topics have ids from version 10 on; UNKNOWN_TOPIC_ID: an unknown id.
Source: `kafka.server.KafkaApis.handleOffsetFetchRequest`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.group.offsets import TopicPartition
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid

FIRST_VERSION_OF_GROUP_ERROR: Final = 2
FIRST_VERSION_OF_GROUPS: Final = 8
FIRST_VERSION_BY_TOPIC_ID: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The partitions of a topic, by name or, from version 10 on, by id."""

    partition_indexes: tuple[int, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGroup:
    """A group and the requested partitions; None for all."""

    group_id: str
    topics: tuple[RequestedTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """An offset fetch request: one group, or `groups` from version 8 on."""

    group_id: str = ""
    topics: tuple[RequestedTopic, ...] | None = None
    groups: tuple[RequestedGroup, ...] = ()
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """A committed offset, or -1."""

    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers of a topic."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """The answers of a group."""

    group_id: str
    topics: tuple[TopicAnswer, ...] = ()
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """An offset fetch response: `topics` and `error_code` up to version 7, then `groups`."""

    topics: tuple[TopicAnswer, ...] = ()
    error_code: ErrorCode = ErrorCode.none
    groups: tuple[GroupAnswer, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffsetQuery:
    """The context of a query for committed offsets."""

    broker: Broker
    version: int
    require_stable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedOffsetFetch:
    """A fetch of offsets that waits until the in-sync replicas have them."""

    broker: Broker
    call: Call
    request: OffsetFetchRequest

    def try_complete(self, now_ms: int) -> OffsetFetchResponse | None:
        """Return the offsets if they are stable."""
        del now_ms
        if _unstable(self.broker, self.request):
            return None
        return _fetch(self.broker, self.call, self.request)

    def expire(self, now_ms: int) -> OffsetFetchResponse:
        """Return the offsets of the groups that are stable."""
        del now_ms
        return _fetch(
            self.broker, self.call, self.request, unstable=_unstable(self.broker, self.request)
        )


def handle(broker: Broker, call: Call, request: OffsetFetchRequest) -> object:
    """Look up the offsets of every group."""
    unstable = _unstable(broker, request)
    if not unstable:
        return _fetch(broker, call, request)
    return Wait(
        operation=DelayedOffsetFetch(broker=broker, call=call, request=request),
        keys=tuple(broker.groups.check_coordinator(group).key for group in unstable),
        deadline_ms=call.now_ms + broker.config.offsets_commit_timeout_ms,
    )


def _unstable(broker: Broker, request: OffsetFetchRequest) -> frozenset[str]:
    """Return the groups coordinated here whose offsets must be stable but are not."""
    if not request.require_stable:
        return frozenset()
    unstable = set()
    for group_id in {group.group_id for group in request.groups} or {request.group_id}:
        with suppress(ApiError):
            if not broker.groups.is_stable(group_id):
                unstable.add(group_id)
    return frozenset(unstable)


def _fetch(
    broker: Broker,
    call: Call,
    request: OffsetFetchRequest,
    unstable: frozenset[str] = frozenset(),
) -> OffsetFetchResponse:
    asked = _OffsetQuery(broker=broker, version=call.version, require_stable=request.require_stable)
    if call.version >= FIRST_VERSION_OF_GROUPS:
        return OffsetFetchResponse(
            groups=tuple(_group(asked, group, unstable) for group in request.groups)
        )
    group = RequestedGroup(group_id=request.group_id, topics=request.topics)
    answer = _group(asked, group, unstable)
    topics = answer.topics
    if answer.error_code and call.version < FIRST_VERSION_OF_GROUP_ERROR:
        topics = tuple(_failed(topic, answer.error_code) for topic in (request.topics or ()))
    return OffsetFetchResponse(topics=topics, error_code=answer.error_code)


def _group(asked: _OffsetQuery, group: RequestedGroup, unstable: frozenset[str]) -> GroupAnswer:
    try:
        asked.broker.groups.check_coordinator(group.group_id)
    except ApiError as error:
        return GroupAnswer(group_id=group.group_id, error_code=error.error_code)
    if group.group_id in unstable:
        return GroupAnswer(group_id=group.group_id, error_code=ErrorCode.not_coordinator)
    if group.topics is None:
        topics = _all_topics(asked, group.group_id)
    else:
        topics = tuple(_topic(asked, group.group_id, topic) for topic in group.topics)
    return GroupAnswer(group_id=group.group_id, topics=topics)


def _all_topics(asked: _OffsetQuery, group: str) -> tuple[TopicAnswer, ...]:
    broker = asked.broker
    partitions: dict[str, list[int]] = {}
    for key in broker.groups.all_committed(group):
        partitions.setdefault(key.topic, []).append(key.partition)
    return tuple(
        TopicAnswer(
            name=name,
            topic_id=broker.metadata.topics[name].topic_id,
            partitions=_partitions(asked, group, name, sorted(indexes)),
        )
        for name, indexes in partitions.items()
        if name in broker.metadata.topics
    )


def _topic(asked: _OffsetQuery, group: str, topic: RequestedTopic) -> TopicAnswer:
    name = topic.name
    if asked.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = asked.broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            return _failed(topic, ErrorCode.unknown_topic_id)
        name = found.name
    return TopicAnswer(
        name=name,
        topic_id=topic.topic_id,
        partitions=_partitions(asked, group, name, topic.partition_indexes),
    )


def _partitions(
    asked: _OffsetQuery, group: str, name: str, indexes: Iterable[int]
) -> tuple[PartitionAnswer, ...]:
    return tuple(_partition(asked, group, name, index) for index in indexes)


def _partition(asked: _OffsetQuery, group: str, name: str, index: int) -> PartitionAnswer:
    groups = asked.broker.groups
    key = TopicPartition(topic=name, partition=index)
    if asked.require_stable and groups.has_pending(group, key):
        return PartitionAnswer(partition_index=index, error_code=ErrorCode.unstable_offset_commit)
    found = groups.committed(group, key)
    if found is None:
        return PartitionAnswer(partition_index=index)
    return PartitionAnswer(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _failed(topic: RequestedTopic, error_code: ErrorCode) -> TopicAnswer:
    return TopicAnswer(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            PartitionAnswer(partition_index=index, error_code=error_code)
            for index in topic.partition_indexes
        ),
    )


API: Final = Api(key=9, versions=range(1, 11), request=OffsetFetchRequest, handle=handle)
