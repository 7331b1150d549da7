"""OffsetFetch (9), versions 1 to 10: committed offsets of groups.

A request contains one group up to version 7, and several groups from version 8 on (KIP-709). If
`topics` is null (from version 2 on), all offsets of the group are returned. For a partition without
a committed offset, the broker returns offset -1 and no error, even if the group does not exist.
Only offsets that have been replicated to all in-sync replicas are returned.

With `require_stable` (version 7, KIP-447), the broker reads the latest offsets in its log when the
request arrives. Before it responds, it waits until the records that are already in the group's
partition of `__consumer_offsets` are replicated, including the records of other groups. It waits at
most `offsets.commit.timeout.ms`. The broker returns NOT_COORDINATOR if the wait times out or the
broker loses leadership. Clients then look up the coordinator again. The lookup is necessary because
another broker may already be the coordinator. The error for a partition with a pending offset from
an open transaction is UNSTABLE_OFFSET_COMMIT. Without `require_stable`, the broker returns the last
replicated offset that was committed before the transaction.

If a member of a consumer group sends an epoch other than its current epoch, the error is
STALE_MEMBER_EPOCH (version 9, KIP-848). From version 10 on, requests contain topic ids. The error
for an unknown topic id is UNKNOWN_TOPIC_ID. If the offset of a partition was committed for another
topic id, for example that of a deleted topic with the same name, offset -1 is returned. Source:
`kafka.server.KafkaApis.handleOffsetFetchRequest`, `OffsetMetadataManager.fetchOffsets` and
`GroupCoordinatorService.fetchOffsets`, which uses an empty write operation to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.frozen import dataclass
from broker_ref.group.offsets import TopicPartition
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.replication.partition import PartitionKey, PendingReplication
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_OF_GROUP_ERROR: Final = 2
FIRST_VERSION_OF_GROUPS: Final = 8
FIRST_VERSION_BY_TOPIC_ID: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic. From version 10 on, requests contain topic ids."""

    partition_indexes: tuple[int, ...]
    name: str = ""
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedGroup:
    """A group and the requested partitions. If `topics` is None, all partitions are requested.

    From version 9 on, members of consumer groups send their member id and member epoch.
    """

    group_id: str
    topics: tuple[RequestedTopic, ...] | None
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """An OffsetFetch request for one group or, from version 8 on, for all groups in `groups`."""

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
    """The partition responses for a topic."""

    name: str
    topic_id: Uuid
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResponse:
    """The topic responses for a group."""

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
    """A request that waits until the last write to each group's offsets partition is replicated.

    `groups` contains the offsets that were in the broker's log when the request arrived.
    """

    call: Call
    request: OffsetFetchRequest
    groups: tuple[GroupResponse, ...]
    last_writes: Mapping[str, PendingReplication]

    def try_complete(self, now_ms: int) -> OffsetFetchResponse | None:
        """Return the response if no write is pending."""
        if any(write.outcome is None for write in self.last_writes.values()):
            return None
        return self.expire(now_ms)

    def expire(self, now_ms: int) -> OffsetFetchResponse:
        """Return the offsets of the groups whose last write has been replicated.

        The response contains an error for each of the other groups.
        """
        del now_ms
        return _response(self.call, self.request, [self._replicated(each) for each in self.groups])

    def keys(self) -> tuple[PartitionKey, ...]:
        """Return the keys of the partitions with writes that the request is waiting for."""
        return tuple(dict.fromkeys(write.partition.key for write in self.last_writes.values()))

    def _replicated(self, group: GroupResponse) -> GroupResponse:
        write = self.last_writes.get(group.group_id)
        if write is None or write.outcome not in {None, ErrorCode.not_leader_or_follower}:
            return group
        return GroupResponse(group_id=group.group_id, error_code=ErrorCode.not_coordinator)


def handle(broker: Broker, call: Call, request: OffsetFetchRequest) -> object:
    """Return the committed offsets of every group, or wait until they are stable.

    The response contains a repeated group, topic or partition only once. If a group is repeated,
    its first occurrence is used.
    """
    query = _OffsetQuery(broker=broker, call=call, require_stable=request.require_stable)
    requested = request.groups
    if call.version < FIRST_VERSION_OF_GROUPS:
        requested = (RequestedGroup(group_id=request.group_id, topics=request.topics),)
    distinct: dict[str, RequestedGroup] = {}
    for group in requested:
        distinct.setdefault(group.group_id, group)
    groups = tuple(_group(query, group) for group in distinct.values())
    delayed = DelayedOffsetFetch(
        call=call,
        request=request,
        groups=groups,
        last_writes={
            group.group_id: broker.groups.last_write(group.group_id)
            for group in groups
            if request.require_stable and not group.error_code
        },
    )
    done = delayed.try_complete(call.now_ms)
    if done is not None:
        return done
    deadline_ms = call.now_ms + broker.config.offsets_commit_timeout_ms
    return Wait(operation=delayed, keys=delayed.keys(), deadline_ms=deadline_ms)


def _response(
    call: Call, request: OffsetFetchRequest, groups: Sequence[GroupResponse]
) -> OffsetFetchResponse:
    if call.version >= FIRST_VERSION_OF_GROUPS:
        return OffsetFetchResponse(groups=tuple(groups))
    (group,) = groups
    topics = group.topics
    if group.error_code and call.version < FIRST_VERSION_OF_GROUP_ERROR:
        topics = tuple(_failed(topic, group.error_code) for topic in _merged(request.topics or ()))
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _group(query: _OffsetQuery, group: RequestedGroup) -> GroupResponse:
    try:
        query.call.auth.check(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
        query.broker.groups.check_coordinator(group.group_id)
        query.broker.groups.check_fetch(
            group.group_id, member_id=group.member_id, member_epoch=group.member_epoch
        )
    except ApiError as error:
        return GroupResponse(group_id=group.group_id, error_code=error.error_code)
    if group.topics is None:
        topics = _all_topics(query, group.group_id)
    else:
        topics = tuple(_topic(query, group.group_id, topic) for topic in _merged(group.topics))
    return GroupResponse(group_id=group.group_id, topics=topics)


def _merged(topics: Sequence[RequestedTopic]) -> list[RequestedTopic]:
    """Return each topic once, with all its requested partitions."""
    indexes: dict[tuple[str, Uuid], dict[int, None]] = {}
    for topic in topics:
        found = indexes.setdefault((topic.name, topic.topic_id), {})
        found.update(dict.fromkeys(topic.partition_indexes))
    return [
        RequestedTopic(name=name, topic_id=topic_id, partition_indexes=tuple(found))
        for (name, topic_id), found in indexes.items()
    ]


def _all_topics(query: _OffsetQuery, group: str) -> tuple[TopicResponse, ...]:
    broker = query.broker
    partitions: dict[str, list[int]] = {}
    for key in broker.groups.all_committed(group, in_log=query.require_stable):
        partitions.setdefault(key.topic, []).append(key.partition)
    return tuple(
        TopicResponse(
            name=name,
            topic_id=broker.metadata.topics[name].topic_id,
            partitions=tuple(
                _partition(query, group, name, ZERO_UUID, index) for index in sorted(indexes)
            ),
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
        partitions=tuple(
            _partition(query, group, name, topic.topic_id, index)
            for index in topic.partition_indexes
        ),
    )


def _partition(
    query: _OffsetQuery, group: str, name: str, topic_id: Uuid, index: int
) -> PartitionResponse:
    """Return the committed offset, or -1 if it was committed for another topic id."""
    groups = query.broker.groups
    key = TopicPartition(topic=name, partition=index)
    if query.require_stable and groups.has_pending(group, key):
        return PartitionResponse(partition_index=index, error_code=ErrorCode.unstable_offset_commit)
    found = groups.committed(group, key, in_log=query.require_stable)
    if found is None or (
        ZERO_UUID not in {topic_id, found.topic_id} and topic_id != found.topic_id
    ):
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
