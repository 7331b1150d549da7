"""DescribeProducers (61), version 0: the producer state of partitions (KIP-664).

Behaviour: each replica describes its own log: all producers that have not expired, with epoch, last
sequence and timestamp, and the start offset of an open transaction, which identifies hanging
transactions. INVALID_TOPIC_EXCEPTION: an invalid topic name; UNKNOWN_TOPIC_OR_PARTITION: no such
partition; NOT_LEADER_OR_FOLLOWER: no replica here. Internal topics are described too. Source:
`kafka.server.KafkaApis.handleDescribeProducersRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.controller.topic_names import check_name
from broker_ref.log.producer_state import ProducerStateEntry
from broker_ref.protocol.errors import ApiError, unknown_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """The partitions of a topic."""

    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest:
    """A DescribeProducers request."""

    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerAnswer:
    """A producer; -1 for a missing sequence, timestamp or offset."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """The producers of a partition, or an error."""

    partition_index: int
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    active_producers: tuple[ProducerAnswer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers of a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    """A DescribeProducers response."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeProducersRequest) -> object:
    """Describe the producers of each partition."""
    del call
    return DescribeProducersResponse(
        topics=tuple(
            TopicAnswer(
                name=topic.name,
                partitions=tuple(
                    _answer(broker, topic.name, index) for index in topic.partition_indexes
                ),
            )
            for topic in request.topics
        )
    )


def _answer(broker: Broker, topic: str, index: int) -> PartitionAnswer:
    try:
        check_name(topic)
        if topic not in broker.metadata.topics:
            raise unknown_partition(topic, index)
        partition = broker.replicas.partition(topic, index)
    except ApiError as error:
        return PartitionAnswer(
            partition_index=index, error_code=error.error_code, error_message=str(error)
        )
    return PartitionAnswer(
        partition_index=index,
        active_producers=tuple(map(_described, partition.log.producer_entries)),
    )


def _described(entry: ProducerStateEntry) -> ProducerAnswer:
    return ProducerAnswer(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


API: Final = Api(key=61, versions=range(1), request=DescribeProducersRequest, handle=handle)
