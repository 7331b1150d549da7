"""DescribeProducers (61), version 0: the producer state of partitions (KIP-664).

Each replica describes the producer state of its own log. The response contains all producers that
have not expired, with their epoch, last sequence number and last timestamp. It also contains the
start offset of each open transaction, which helps to find hanging transactions. Internal topics can
also be described. The errors are:

- INVALID_TOPIC_EXCEPTION: the topic name is invalid.
- UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist.
- NOT_LEADER_OR_FOLLOWER: this broker has no replica of the partition.

Source: `kafka.server.KafkaApis.handleDescribeProducersRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.controller.topic_names import check_name
from broker_ref.frozen import dataclass
from broker_ref.log.producer_state import ProducerStateEntry
from broker_ref.protocol.errors import ApiError, unknown_partition
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The requested partitions of a topic."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest:
    """A DescribeProducers request."""

    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStateResponse:
    """The state of a producer. A missing sequence number, timestamp or offset is -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """The producers of a partition, or an error."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    active_producers: tuple[ProducerStateResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """The partition responses for a topic."""

    name: str
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    """A DescribeProducers response."""

    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeProducersRequest) -> object:
    """Describe the producers of each partition once, even if the request repeats a partition."""
    indexes: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=tuple(
            TopicResponse(
                name=name,
                partitions=tuple(_partition(broker, call, name, index) for index in found),
            )
            for name, found in indexes.items()
        )
    )


def _partition(broker: Broker, call: Call, topic: str, index: int) -> PartitionResponse:
    try:
        check_name(topic)
        call.auth.check_topic(AclOperation.READ, topic)
        if topic not in broker.metadata.topics:
            raise unknown_partition(topic, index)
        partition = broker.replicas.partition(topic, index)
    except ApiError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.error_code, error_message=str(error)
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=tuple(map(_described, partition.log.producer_entries)),
    )


def _described(entry: ProducerStateEntry) -> ProducerStateResponse:
    return ProducerStateResponse(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


API: Final = Api(key=61, versions=range(1), request=DescribeProducersRequest, handle=handle)
