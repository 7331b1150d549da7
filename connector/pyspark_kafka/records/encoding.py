"""The interface for encoding the Arrow rows of one topic as Kafka record batches.

Both implementations of `encode` share these types and errors. Every row is written to exactly one
batch, and the rows of one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from pyspark_kafka.errors import RowError
from pyspark_kafka.records.contract import Codec

SEQUENCE_MAX: Final = 2**31 - 1
"""The maximum sequence number. The next one is 0 (`DefaultRecordBatch.incrementSequence`)."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
"""The values for a producer without idempotence (`RecordBatch` in Kafka)."""

HEADER_BYTES: Final = 61
"""The size of the header of a record batch in message format v2."""

LENGTH_BYTES_MAX: Final = 2**31 - 1
"""The maximum value of the length field of a batch."""

BATCH_BYTES_LIMIT: Final = LENGTH_BYTES_MAX
"""The maximum value of `batch_bytes_max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The producer id and epoch, and the next sequence number of each partition.

    The sequence numbers of a partition that is not in `next_sequences` start at 0. For a producer
    without idempotence, the producer id and epoch are -1, and its batches have the sequence number
    `NO_SEQUENCE`.
    """

    producer_id: int
    producer_epoch: int
    next_sequences: Mapping[int, int]
    is_transactional: bool = False

    def __post_init__(self) -> None:
        assert (self.producer_id == NO_PRODUCER_ID) == (self.producer_epoch == NO_PRODUCER_EPOCH)
        assert self.is_idempotent or not self.is_transactional

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The parameters of `encode` for the rows of one topic.

    A row is written to its `partition`. If `partition` is null, the partition is the murmur2 hash
    of the key modulo `partition_count` (`BuiltInPartitioner.partitionForKey` in Kafka). `unkeyed`
    lists the partitions for rows without a partition and without a key. Such a row is written to
    the current partition in this list. If the row does not fit into the open batch of that
    partition, the next partition in the list becomes the current partition. A null timestamp is
    replaced by `now_ms`.

    A row that does not fit into the open batch of its partition starts a new batch. A batch,
    including its header, is at most `batch_bytes_max` bytes long before compression, unless a
    single record is larger. `level` is one of `compression.LEVELS[codec]`, or None for Kafka's
    default.
    """

    topic: str
    partition_count: int
    unkeyed: tuple[int, ...]
    producer: ProducerState
    now_ms: int
    batch_bytes_max: int
    codec: Codec = Codec.NONE
    level: int | None = None

    def __post_init__(self) -> None:
        assert self.partition_count > 0
        assert self.unkeyed
        assert all(0 <= partition < self.partition_count for partition in self.unkeyed)
        assert self.now_ms >= 0
        assert 0 < self.batch_bytes_max <= BATCH_BYTES_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """One record batch in message format v2 (KIP-98).

    Its base offset is 0 and its partition leader epoch is -1. `data` is read-only and owns
    its memory.
    """

    partition: int
    base_sequence: int
    record_count: int
    data: memoryview


class Encode(Protocol):
    """The type of `encode`, which encodes rows with the columns of `columns.PRODUCE_SCHEMA`.

    `sink.rows.RowPreparation` prepares the rows. Missing columns are null. All rows belong to one
    topic. A `topic` column is ignored. Timestamps are not negative, and header keys are not null.
    `key`, `value`, header keys and header values can have the type binary, string, large_binary
    or large_string. `timestamp` is a timestamp in milliseconds or an int64.

    Batches are in the order of their first rows. The batches of one partition have consecutive
    sequence numbers, which start with the number in `ProducerState.next_sequences`. Raises
    `RowError` if a record is too large for a batch (2 GiB) or if a partition does not exist.
    """

    def __call__(self, rows: pa.RecordBatch, encoding: Encoding) -> list[EncodedBatch]: ...


def next_sequence(sequence: int, record_count: int) -> int:
    """Return the sequence number that follows `record_count` records starting at `sequence`."""
    return (sequence + record_count) % (SEQUENCE_MAX + 1)


def too_large(encoding: Encoding, partition: int, size_bytes: int) -> RowError:
    """Return the error for a record that requires a batch of `size_bytes` bytes."""
    return RowError(
        f"A record for {encoding.topic}-{partition} requires a batch of {size_bytes} bytes, but "
        f"Kafka's format allows at most {LENGTH_BYTES_MAX} bytes.",
        advice="Write smaller records.",
        topic=encoding.topic,
        partition=partition,
    )


def no_such_partition(encoding: Encoding, partition: int) -> RowError:
    """Return the error for a row with a partition that does not exist in the topic."""
    count = encoding.partition_count
    return RowError(
        f"A row has partition {partition}, but topic {encoding.topic!r} has only partitions 0 "
        f"to {count - 1}.",
        advice="Correct the column 'partition', or set it to null to use the partitioner.",
        column="partition",
        topic=encoding.topic,
        partition=partition,
    )
