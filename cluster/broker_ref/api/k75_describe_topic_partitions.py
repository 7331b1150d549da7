"""DescribeTopicPartitions (75), version 0: one page of topics and partitions (KIP-966).

Topics are sorted by name. An empty list of topics requests all topics, and a repeated name is
described once. The number of partitions in a response is limited by `response_partition_limit` and
`max.request.partition.size.limit`, but the limit is at least one. `next_cursor` is the first
partition of the next page. The error for all topics is INVALID_REQUEST if the cursor's partition is
negative, or if the request contains topics but not the cursor's topic.

The error for a requested topic that does not exist is UNKNOWN_TOPIC_OR_PARTITION, or
INVALID_TOPIC_EXCEPTION if its name is invalid. Topics are never created. A partition without a
leader is not an error. The error is TOPIC_AUTHORIZATION_FAILED if a topic was requested by name and
the client may not describe it. Such a topic does not count toward the limit. Source:
`kafka.server.handlers.DescribeTopicPartitionsRequestHandler`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, OPERATIONS_NOT_REQUESTED, Api, Broker, Call
from broker_ref.controller.metadata import INTERNAL_TOPICS, PartitionMetadata, Topic
from broker_ref.controller.topic_names import check_name
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.security.acls import AclOperation, ResourceType

NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic, identified by name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The first partition of a page."""

    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequest:
    """A DescribeTopicPartitions request. An empty list of topics requests all topics."""

    topics: tuple[RequestedTopic, ...]
    response_partition_limit: int
    cursor: Cursor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedPartition:
    """The leader and the replicas of a partition."""

    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error_code: ErrorCode = ErrorCode.none
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTopic:
    """A topic with its partitions on this page, or an error."""

    name: str
    error_code: ErrorCode = ErrorCode.none
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[DescribedPartition, ...] = ()
    topic_authorized_operations: int = OPERATIONS_NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponse:
    """One page of partitions. `next_cursor` is null on the last page."""

    topics: tuple[DescribedTopic, ...]
    next_cursor: Cursor | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    broker: Broker, call: Call, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return the page that starts at the cursor."""
    cursor = request.cursor
    after = cursor.topic_name if cursor is not None else ""
    names = {topic.name for topic in request.topics} or broker.metadata.topics.keys()
    selected = sorted((name for name in names if name >= after), key=_java_order)
    if cursor is not None and (
        cursor.partition_index < 0 or (request.topics and cursor.topic_name not in selected)
    ):
        return _error_response(request)
    limit = min(broker.config.max_request_partition_size_limit, request.response_partition_limit)
    described: list[DescribedTopic] = []
    unauthorized: list[DescribedTopic] = []
    next_cursor: Cursor | None = None
    left = max(limit, 1)
    for name in selected:
        if not call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            if request.topics:
                unauthorized.append(_unauthorized(name))
            continue
        if left == 0:
            next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        topic = broker.metadata.topics.get(name)
        if topic is None:
            if request.topics:
                described.append(_missing(call, name))
            continue
        start = cursor.partition_index if cursor is not None and name == after else 0
        page = [
            partition for index, partition in sorted(topic.partitions.items()) if index >= start
        ]
        described.append(_describe(broker, call, topic, page[:left]))
        if len(page) > left:
            next_cursor = Cursor(topic_name=name, partition_index=page[left].partition)
            break
        left -= len(page)
    return DescribeTopicPartitionsResponse(
        topics=(*described, *unauthorized), next_cursor=next_cursor
    )


def _java_order(name: str) -> bytes:
    """Return a sort key that orders strings as Java does, by UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


def _error_response(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=tuple(
            DescribedTopic(
                name=topic.name,
                error_code=ErrorCode.invalid_request,
            )
            for topic in request.topics
        )
    )


def _unauthorized(name: str) -> DescribedTopic:
    return DescribedTopic(name=name, error_code=ErrorCode.topic_authorization_failed)


def _missing(call: Call, name: str) -> DescribedTopic:
    error_code = ErrorCode.unknown_topic_or_partition
    try:
        check_name(name)
    except ApiError as error:
        error_code = error.error_code
    return DescribedTopic(
        name=name,
        error_code=error_code,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=call.auth.authorized_operations(ResourceType.TOPIC, name),
    )


def _describe(
    broker: Broker, call: Call, topic: Topic, page: list[PartitionMetadata]
) -> DescribedTopic:
    return DescribedTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(broker, call, partition) for partition in page),
        topic_authorized_operations=call.auth.authorized_operations(ResourceType.TOPIC, topic.name),
    )


def _partition(broker: Broker, call: Call, partition: PartitionMetadata) -> DescribedPartition:
    brokers = {
        each.broker_id: each
        for each in broker.metadata.brokers.values()
        if each.endpoint(call.listener) is not None
    }
    return DescribedPartition(
        partition_index=partition.partition,
        leader_id=partition.leader if partition.leader in brokers else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=tuple(
            each for each in partition.replicas if each not in brokers or brokers[each].is_fenced
        ),
        eligible_leader_replicas=partition.eligible_leader_replicas,
        last_known_elr=partition.last_known_elr,
    )


API: Final = Api(key=75, versions=range(1), request=DescribeTopicPartitionsRequest, handle=handle)
