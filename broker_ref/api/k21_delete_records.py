"""DeleteRecords (21), versions 0 to 2: raise the log start offset (KIP-107).

Behaviour: everything below the offset is gone for readers, -1 standing for the high watermark. The
answer is the new low watermark, the least log start offset of the replicas. OFFSET_OUT_OF_RANGE
above the high watermark, POLICY_VIOLATION where the topic's cleanup policy has no `delete`. The
new log start offsets survive a crash.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedPartition:
    """Where a partition is to begin."""

    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTopic:
    """Partitions of a topic."""

    name: str
    partitions: tuple[RequestedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    """Where partitions are to begin."""

    topics: tuple[RequestedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """Where a partition begins now."""

    partition_index: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswer:
    """The answers for a topic."""

    name: str
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    """The answers for every topic."""

    topics: tuple[TopicAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete in every partition, then make the new beginnings durable."""
    del call
    answers = tuple(
        TopicAnswer(
            name=topic.name,
            partitions=tuple(
                _delete(broker, topic.name, partition) for partition in topic.partitions
            ),
        )
        for topic in request.topics
    )
    with suppress(StorageError):  # A crash might then bring records back, as with Kafka.
        broker.replicas.checkpoint()
    return DeleteRecordsResponse(topics=answers)


def _delete(broker: Broker, topic: str, requested: RequestedPartition) -> PartitionAnswer:
    index = requested.partition_index
    try:
        partition = broker.replicas.partition(topic, index)
        low_watermark = partition.delete_records_before(requested.offset)
    except (ApiError, LogError) as error:
        return PartitionAnswer(partition_index=index, error_code=error.error_code)
    broker.replicas.mark_changed(partition.key)
    return PartitionAnswer(partition_index=index, low_watermark=low_watermark)


API: Final = Api(key=21, versions=range(3), request=DeleteRecordsRequest, handle=handle)
