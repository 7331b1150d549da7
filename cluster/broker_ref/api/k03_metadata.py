"""Metadata (3), versions 0 to 13: brokers, topics, partitions and leaders.

If `topics` is null (or empty in version 0), the broker describes all topics. The broker creates a
missing topic if both `auto.create.topics.enable` and the request allow it. As in Kafka, the
response still contains UNKNOWN_TOPIC_OR_PARTITION, and the client retries. Topic ids are used in
responses from version 10 on (KIP-516) and in requests from version 12 on. If a request contains a
topic id, all names are ignored. The error for an unknown topic id is UNKNOWN_TOPIC_ID. If the
leader does not have the listener to which the client is connected, the error is LISTENER_NOT_FOUND
from version 6 on. Version 0 omits the replicas on unavailable brokers, and returns
REPLICA_NOT_AVAILABLE if replicas are omitted. If all topics are requested, topics that the client
may not describe are omitted. Otherwise, the error for such topics is TOPIC_AUTHORIZATION_FAILED,
even if they do not exist. Authorized operations are returned on request (version 8, KIP-430).
Source: `kafka.server.KafkaApis.handleTopicMetadataRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, OPERATIONS_NOT_REQUESTED, Api, Broker, Call
from broker_ref.api.endpoints import advertised_controller_id, live_brokers
from broker_ref.controller.metadata import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    PartitionMetadata,
    Topic,
)
from broker_ref.controller.topic_names import check_name
from broker_ref.controller.topics import NewTopic
from broker_ref.frozen import dataclass
from broker_ref.group.offsets import offsets_topic
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID, Uuid
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.transaction.state_topic import transaction_state_topic

FIRST_WITH_LISTENER_ERRORS: Final = 6
FIRST_VERSION_BY_TOPIC_ID: Final = 12
FIRST_VERSION_WITH_UNAVAILABLE_REPLICAS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """A topic to describe, which is identified by its id or by its name."""

    name: str | None
    topic_id: Uuid = ZERO_UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """A Metadata request. If `topics` is None, all topics are requested."""

    topics: tuple[RequestedTopic, ...] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerResponse:
    """The address of a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The leader and the replicas of a partition."""

    error_code: ErrorCode
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: tuple[int, ...]
    isr_nodes: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partitions of a topic, or an error."""

    error_code: ErrorCode
    name: str | None
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: tuple[PartitionResponse, ...] = ()
    topic_authorized_operations: int = OPERATIONS_NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """A Metadata response."""

    topics: tuple[TopicResponse, ...]
    brokers: tuple[BrokerResponse, ...] = ()
    cluster_id: str | None = None
    controller_id: int = -1
    cluster_authorized_operations: int = OPERATIONS_NOT_REQUESTED
    throttle_time_ms: int = NO_THROTTLE_MS
    error_code: ErrorCode = ErrorCode.none


def handle(broker: Broker, call: Call, request: MetadataRequest) -> MetadataResponse:
    """Describe the requested topics, and create missing topics if allowed."""
    requested = request.topics
    if requested and not all(_is_allowed(topic, call.version) for topic in requested):
        return _invalid(requested)
    reachable = _Reachable.of(broker, call.listener)
    if requested is None or (call.version == 0 and not requested):
        topics = tuple(
            _existing(topic, request, call, reachable)
            for topic in broker.metadata.topics.values()
            if call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
        )
    else:
        topics = _requested(broker, call, request, requested, reachable)
        if _creates_topics(broker, request):
            missing = [
                _automatic(broker, topic.name)
                for topic in topics
                if topic.error_code is ErrorCode.unknown_topic_or_partition and topic.name
            ]
            broker.request_topics(missing, call)
    authorized = OPERATIONS_NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        authorized = call.auth.authorized_cluster_operations()
    return MetadataResponse(
        brokers=tuple(
            BrokerResponse(
                node_id=node.broker_id, host=endpoint.host, port=endpoint.port, rack=node.rack
            )
            for node in live_brokers(broker)
            if (endpoint := node.endpoint(call.listener)) is not None
        ),
        cluster_id=broker.cluster_id,
        controller_id=advertised_controller_id(broker),
        topics=topics,
        cluster_authorized_operations=authorized,
    )


def _is_allowed(topic: RequestedTopic, version: int) -> bool:
    """Return True if the topic has only a name, or if the request version supports topic ids."""
    return version >= FIRST_VERSION_BY_TOPIC_ID or (
        topic.name is not None and topic.topic_id == ZERO_UUID
    )


def _invalid(requested: tuple[RequestedTopic, ...]) -> MetadataResponse:
    return MetadataResponse(
        topics=tuple(
            TopicResponse(
                error_code=ErrorCode.invalid_request,
                name=topic.name or "",
                topic_id=topic.topic_id,
            )
            for topic in requested
        )
    )


def _requested(
    broker: Broker,
    call: Call,
    request: MetadataRequest,
    requested: tuple[RequestedTopic, ...],
    reachable: _Reachable,
) -> tuple[TopicResponse, ...]:
    """Describe the requested topics. If any topic has an id, only the topic ids are used."""
    topic_ids = dict.fromkeys(each.topic_id for each in requested if each.topic_id != ZERO_UUID)
    if topic_ids:
        return tuple(
            _identified(broker, call, request, topic_id, reachable) for topic_id in topic_ids
        )
    return tuple(
        TopicResponse(error_code=ErrorCode.invalid_request, name="")
        if name is None
        else _named(broker, call, request, name, reachable)
        for name in dict.fromkeys(each.name for each in requested)
    )


def _identified(
    broker: Broker, call: Call, request: MetadataRequest, topic_id: Uuid, reachable: _Reachable
) -> TopicResponse:
    found = broker.metadata.topics_by_id.get(topic_id)
    if found is None:
        return TopicResponse(error_code=ErrorCode.unknown_topic_id, name=None, topic_id=topic_id)
    if not call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, found.name):
        return TopicResponse(
            error_code=ErrorCode.topic_authorization_failed, name=None, topic_id=topic_id
        )
    return _existing(found, request, call, reachable)


def _named(
    broker: Broker, call: Call, request: MetadataRequest, name: str, reachable: _Reachable
) -> TopicResponse:
    unauthorized = ErrorCode.topic_authorization_failed
    if not call.auth.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
        return TopicResponse(error_code=unauthorized, name=name)
    found = broker.metadata.topics.get(name)
    if found is not None:
        return _existing(found, request, call, reachable)
    if _creates_topics(broker, request) and not (
        call.auth.allows(AclOperation.CREATE, ResourceType.CLUSTER)
        or call.auth.allows(AclOperation.CREATE, ResourceType.TOPIC, name)
    ):
        return TopicResponse(
            error_code=unauthorized, name=name, is_internal=name in INTERNAL_TOPICS
        )
    error_code = ErrorCode.unknown_topic_or_partition
    try:
        check_name(name)
    except ApiError as error:
        error_code = error.error_code
    return TopicResponse(
        error_code=error_code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=_authorized_operations(call, request, name),
    )


def _creates_topics(broker: Broker, request: MetadataRequest) -> bool:
    return request.allow_auto_topic_creation and broker.config.auto_create_topics_enable


def _authorized_operations(call: Call, request: MetadataRequest, topic: str) -> int:
    if not request.include_topic_authorized_operations:
        return OPERATIONS_NOT_REQUESTED
    return call.auth.authorized_operations(ResourceType.TOPIC, topic)


def _automatic(broker: Broker, name: str) -> NewTopic:
    """Return the definition of a missing topic.

    If `num.partitions` or `default.replication.factor` is not set on this broker, the default of
    the controller applies (`DefaultAutoTopicCreationManager.creatableTopic`).
    """
    if name == OFFSETS_TOPIC:
        return offsets_topic(broker.config)
    if name == TRANSACTION_STATE_TOPIC:
        return transaction_state_topic(broker.config)
    config, static = broker.config, broker.configs.levels.static
    return NewTopic(
        name=name,
        partition_count=config.num_partitions if "num.partitions" in static else -1,
        replication_factor=(
            config.default_replication_factor if "default.replication.factor" in static else -1
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reachable:
    """The ids of all live brokers, and of the live brokers that have the client's listener."""

    live: frozenset[int]
    by_listener: frozenset[int]

    @classmethod
    def of(cls, broker: Broker, listener: str) -> _Reachable:
        live = live_brokers(broker)
        return cls(
            live=frozenset(node.broker_id for node in live),
            by_listener=frozenset(
                node.broker_id for node in live if node.endpoint(listener) is not None
            ),
        )

    def only(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Return the replicas on brokers that have the client's listener."""
        return tuple(replica for replica in replicas if replica in self.by_listener)


def _existing(
    topic: Topic, request: MetadataRequest, call: Call, reachable: _Reachable
) -> TopicResponse:
    return TopicResponse(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            [_partition(each, call.version, reachable) for each in topic.partitions.values()]
        ),
        topic_authorized_operations=_authorized_operations(call, request, topic.name),
    )


def _partition(
    partition: PartitionMetadata, version: int, reachable: _Reachable
) -> PartitionResponse:
    is_led = partition.leader in reachable.by_listener
    error_code = ErrorCode.none if is_led else ErrorCode.leader_not_available
    if not is_led and partition.leader in reachable.live and version >= FIRST_WITH_LISTENER_ERRORS:
        error_code = ErrorCode.listener_not_found
    replicas, isr = partition.replicas, partition.isr
    if version < FIRST_VERSION_WITH_UNAVAILABLE_REPLICAS:
        replicas, isr = reachable.only(replicas), reachable.only(isr)
        if is_led and (replicas, isr) != (partition.replicas, partition.isr):
            error_code = ErrorCode.replica_not_available
    return PartitionResponse(
        error_code=error_code,
        partition_index=partition.partition,
        leader_id=partition.leader if is_led else -1,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=()
        if reachable.by_listener.issuperset(replicas)
        else tuple(each for each in replicas if each not in reachable.by_listener),
    )


API: Final = Api(key=3, versions=range(14), request=MetadataRequest, handle=handle)
