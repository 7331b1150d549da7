"""OffsetFetch (9), versions 1 to 10: committed offsets of groups.

A request contains one group up to version 7, and several groups from version 8 on (KIP-709). If
`topics` is null (from version 2 on), all offsets of the group are returned. A partition without a
committed offset gets offset -1 and no error, even if the group does not exist. Only offsets that
have been replicated to all in-sync replicas are returned.

With `require_stable` (version 7, KIP-447), the broker waits up to `offsets.commit.timeout.ms` for
pending commits and transaction markers to be replicated. If the wait times out, the broker returns
NOT_COORDINATOR, and clients retry. A partition with a pending offset of an open transaction gets
UNSTABLE_OFFSET_COMMIT. Without `require_stable`, the last offset that was committed before the
transaction is returned. Requests contain topic ids from version 10 on. The error for an unknown
topic id is UNKNOWN_TOPIC_ID. Source: `kafka.server.KafkaApis.handleOffsetFetchRequest`.
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
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_OF_GROUP_ERROR: Final = 2
FIRST_VERSION_OF_GROUPS: Final = 8
FIRST_VERSION_BY_TOPIC_ID: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic. Requests contain topic ids from version 10 on."""

    partition_indexes: tuple[int, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGroup:
    """A group and the requested partitions. If `topics` is None, all partitions are requested."""

    group_id: str
    topics: tuple[RequestedTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """An OffsetFetch request for one group, or for `groups` from version 8 on."""

    group_id: str = ""
    topics: tuple[RequestedTopic, ...] | None = None
    groups: tuple[RequestedGroup, ...] = ()
    require_stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The committed offset of a partition, or -1."""

    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses of a topic."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResponse:
    """The topic responses of a group."""

    group_id: str
    topics: tuple[TopicResponse, ...] = ()
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """An OffsetFetch response.

    It contains `topics` and `error_code` up to version 7, and `groups` from version 8 on.
    """

    topics: tuple[TopicResponse, ...] = ()
    error_code: ErrorCode = ErrorCode.none
    groups: tuple[GroupResponse, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffsetQuery:
    """The parameters of a query for committed offsets."""

    broker: Broker
    call: Call
    require_stable: bool

    def may_describe(self, topic: str) -> bool:
        """Return whether the client may describe a topic."""
        return self.call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedOffsetFetch:
    """An OffsetFetch request that is waiting for the offsets to be replicated."""

    broker: Broker
    call: Call
    request: OffsetFetchRequest

    def try_complete(self, now_ms: int) -> OffsetFetchResponse | None:
        """Return the response if the offsets of all groups are stable."""
        del now_ms
        if _unstable(self.broker, self.call, self.request):
            return None
        return _fetch(self.broker, self.call, self.request)

    def expire(self, now_ms: int) -> OffsetFetchResponse:
        """Return the offsets of stable groups, and an error for the other groups."""
        del now_ms
        unstable = _unstable(self.broker, self.call, self.request)
        return _fetch(self.broker, self.call, self.request, unstable=unstable)


def handle(broker: Broker, call: Call, request: OffsetFetchRequest) -> object:
    """Return the committed offsets of every group, or wait until they are stable."""
    unstable = _unstable(broker, call, request)
    if not unstable:
        return _fetch(broker, call, request)
    return Wait(
        operation=DelayedOffsetFetch(broker=broker, call=call, request=request),
        keys=tuple(broker.groups.check_coordinator(group).key for group in unstable),
        deadline_ms=call.now_ms + broker.config.offsets_commit_timeout_ms,
    )


def _unstable(broker: Broker, call: Call, request: OffsetFetchRequest) -> frozenset[str]:
    """Return the groups that have unstable offsets and that the client may describe.

    The result is empty if the request does not require stable offsets.
    """
    if not request.require_stable:
        return frozenset()
    unstable = set()
    for group_id in {group.group_id for group in request.groups} or {request.group_id}:
        if not call.auth.allows(AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            continue
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
    query = _OffsetQuery(broker=broker, call=call, require_stable=request.require_stable)
    if call.version >= FIRST_VERSION_OF_GROUPS:
        return OffsetFetchResponse(
            groups=tuple(_group(query, group, unstable) for group in request.groups)
        )
    group = RequestedGroup(group_id=request.group_id, topics=request.topics)
    response = _group(query, group, unstable)
    topics = response.topics
    if response.error_code and call.version < FIRST_VERSION_OF_GROUP_ERROR:
        topics = tuple(_failed(topic, response.error_code) for topic in (request.topics or ()))
    return OffsetFetchResponse(topics=topics, error_code=response.error_code)


def _group(query: _OffsetQuery, group: RequestedGroup, unstable: frozenset[str]) -> GroupResponse:
    try:
        query.call.auth.check(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
        query.broker.groups.check_coordinator(group.group_id)
    except ApiError as error:
        return GroupResponse(group_id=group.group_id, error_code=error.error_code)
    if group.group_id in unstable:
        return GroupResponse(group_id=group.group_id, error_code=ErrorCode.not_coordinator)
    if group.topics is None:
        topics = _all_topics(query, group.group_id)
    else:
        topics = tuple(_topic(query, group.group_id, topic) for topic in group.topics)
    return GroupResponse(group_id=group.group_id, topics=topics)


def _all_topics(query: _OffsetQuery, group: str) -> tuple[TopicResponse, ...]:
    broker = query.broker
    partitions: dict[str, list[int]] = {}
    for key in broker.groups.all_committed(group):
        partitions.setdefault(key.topic, []).append(key.partition)
    return tuple(
        TopicResponse(
            name=name,
            topic_id=broker.metadata.topics[name].topic_id,
            partitions=_partitions(query, group, name, sorted(indexes)),
        )
        for name, indexes in partitions.items()
        if name in broker.metadata.topics and query.may_describe(name)
    )


def _topic(query: _OffsetQuery, group: str, topic: RequestedTopic) -> TopicResponse:
    name = topic.name
    if query.call.version >= FIRST_VERSION_BY_TOPIC_ID:
        found = query.broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            return _failed(topic, ErrorCode.unknown_topic_id)
        name = found.name
    if not query.may_describe(name):
        return _failed(topic, ErrorCode.topic_authorization_failed)
    return TopicResponse(
        name=name,
        topic_id=topic.topic_id,
        partitions=_partitions(query, group, name, topic.partition_indexes),
    )


def _partitions(
    query: _OffsetQuery, group: str, name: str, indexes: Iterable[int]
) -> tuple[PartitionResponse, ...]:
    return tuple(_partition(query, group, name, index) for index in indexes)


def _partition(query: _OffsetQuery, group: str, name: str, index: int) -> PartitionResponse:
    groups = query.broker.groups
    key = TopicPartition(topic=name, partition=index)
    if query.require_stable and groups.has_pending(group, key):
        return PartitionResponse(partition_index=index, error_code=ErrorCode.unstable_offset_commit)
    found = groups.committed(group, key)
    if found is None:
        return PartitionResponse(partition_index=index)
    return PartitionResponse(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


def _failed(topic: RequestedTopic, error_code: ErrorCode) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            PartitionResponse(partition_index=index, error_code=error_code)
            for index in topic.partition_indexes
        ),
    )


API: Final = Api(key=9, versions=range(1, 11), request=OffsetFetchRequest, handle=handle)
