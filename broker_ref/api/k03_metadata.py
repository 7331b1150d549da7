"""Metadata (3), versions 0 to 13: brokers, topics, partitions and leaders.

Behaviour: null topics (an empty list in version 0) request all topics. A topic that does not exist
is created if the broker (`auto.create.topics.enable`) and the request allow it; as in Kafka, the
response is still UNKNOWN_TOPIC_OR_PARTITION and the client retries. Responses contain topic ids
from version 10 on (KIP-516), requests from version 12 on; UNKNOWN_TOPIC_ID: an unknown id. Without
an authorizer all operations are authorized (KIP-430). Source:
`kafka.server.KafkaApis.handleTopicMetadataRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, OPERATIONS_NOT_REQUESTED, Api, Broker, Call
from broker_ref.api.endpoints import advertised_controller_id, live_brokers
from broker_ref.controller.metadata import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    PartitionMetadata,
    Topic,
)
from broker_ref.controller.topic_names import check_name
from broker_ref.controller.topics import NewTopic
from broker_ref.group.offsets import offsets_topic
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.transaction.state_topic import transaction_state_topic

FIRST_VERSION_BY_TOPIC_ID: Final = 12

TOPIC_OPERATIONS: Final = 0b1101_1111_1000
"""All operations on a topic; the bits are Kafka's AclOperation codes."""

CLUSTER_OPERATIONS: Final = 0b1_1111_1010_0000
"""All operations on a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic by name or, if the name is None, by id."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """A metadata request; `topics` None requests all topics."""

    topics: tuple[RequestedTopic, ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredBroker:
    """The address of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredPartition:
    """The leader and the replicas of a partition."""

    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTopic:
    """The partitions of a topic, or an error."""

    error_code: ErrorCode
    name: str | None
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[AnsweredPartition, ...] = ()
    topic_authorized_operations: int = OPERATIONS_NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """A metadata response."""

    brokers: tuple[AnsweredBroker, ...]
    cluster_id: str
    controller_id: int
    topics: tuple[AnsweredTopic, ...]
    cluster_authorized_operations: int
    throttle_time_ms: int = NO_THROTTLE_MS
    error_code: ErrorCode = ErrorCode.none


def handle(broker: Broker, call: Call, request: MetadataRequest) -> MetadataResponse:
    """Describe the requested topics and create missing ones if allowed."""
    requested = request.topics
    if requested is None or (call.version == 0 and not requested):
        topics = tuple(
            _existing(topic, request, broker) for topic in broker.metadata.topics.values()
        )
    else:
        distinct = tuple(dict.fromkeys(requested))
        topics = tuple(_requested(broker, call, request, topic) for topic in distinct)
    authorized = OPERATIONS_NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        authorized = CLUSTER_OPERATIONS
    return MetadataResponse(
        brokers=tuple(
            AnsweredBroker(node_id=node.broker_id, host=node.host, port=node.port, rack=node.rack)
            for node in live_brokers(broker)
        ),
        cluster_id=broker.cluster_id,
        controller_id=advertised_controller_id(broker),
        topics=topics,
        cluster_authorized_operations=authorized,
    )


def _requested(
    broker: Broker, call: Call, request: MetadataRequest, topic: RequestedTopic
) -> AnsweredTopic:
    if topic.name is None:
        if call.version < FIRST_VERSION_BY_TOPIC_ID or topic.topic_id == ZERO_UUID:
            return AnsweredTopic(error_code=ErrorCode.invalid_request, name="")
        found = broker.metadata.topics_by_id.get(topic.topic_id)
        if found is None:
            return AnsweredTopic(
                error_code=ErrorCode.unknown_topic_id, name=None, topic_id=topic.topic_id
            )
        return _existing(found, request, broker)
    found = broker.metadata.topics.get(topic.name)
    if found is not None:
        return _existing(found, request, broker)
    error_code = ErrorCode.unknown_topic_or_partition
    try:
        check_name(topic.name)
    except ApiError as error:
        error_code = error.error_code
    else:
        if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
            broker.request_topic(_automatic(broker, topic.name))
    return AnsweredTopic(error_code=error_code, name=topic.name)


def _automatic(broker: Broker, name: str) -> NewTopic:
    if name == OFFSETS_TOPIC:
        return offsets_topic(broker.config)
    if name == TRANSACTION_STATE_TOPIC:
        return transaction_state_topic(broker.config)
    return NewTopic(name=name)


def _existing(topic: Topic, request: MetadataRequest, broker: Broker) -> AnsweredTopic:
    authorized = OPERATIONS_NOT_REQUESTED
    if request.include_topic_authorized_operations:
        authorized = TOPIC_OPERATIONS
    return AnsweredTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(_partition(partition, broker) for partition in topic.partitions.values()),
        topic_authorized_operations=authorized,
    )


def _partition(partition: PartitionMetadata, broker: Broker) -> AnsweredPartition:
    alive = {node.broker_id for node in live_brokers(broker)}
    offline = tuple(replica for replica in partition.replicas if replica not in alive)
    led = partition.leader >= 0 and partition.leader not in offline
    return AnsweredPartition(
        error_code=ErrorCode.none if led else ErrorCode.leader_not_available,
        partition_index=partition.partition,
        leader_id=partition.leader if led else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=offline,
    )


API: Final = Api(key=3, versions=range(14), request=MetadataRequest, handle=handle)
