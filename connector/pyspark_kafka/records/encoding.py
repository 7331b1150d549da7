"""The contract of encoding: Arrow rows of one topic as Kafka's record batches.

Purpose: the types and errors that both implementations of `encode` share. Invariant: every row is
in exactly one batch; rows of one partition keep their order. What it must not know: connections,
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from pyspark_kafka.errors import RowError
from pyspark_kafka.records.contract import Codec

SEQUENCE_MAX: Final = 2**31 - 1
"""The sequence after it is 0 (`DefaultRecordBatch.incrementSequence`)."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
"""`RecordBatch` of Apache Kafka: the values of a producer without idempotence."""

HEADER_BYTES: Final = 61
"""The header size of a batch of format 2."""

LENGTH_BYTES_MAX: Final = 2**31 - 1
"""The limit of a batch's length field."""

BATCH_BYTES_LIMIT: Final = LENGTH_BYTES_MAX
"""The limit of `batch_bytes_max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The producer id and epoch, and the sequence of the next record by partition.

    A partition that is not in `next_sequences` starts at 0. A producer id and epoch of -1 mean a
    producer without idempotence, whose batches have the sequence `NO_SEQUENCE`.
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
    """How rows of one topic become batches.

    A row goes to its `partition`. If that is null, it goes to murmur2 of its key modulo
    `partition_count` (Java's `BuiltInPartitioner.partitionForKey`). If the key is null too, it goes
    to a partition of `unkeyed`, which changes, in a cycle, when a row does not fit into the open
    batch of the current one. A null timestamp is `now_ms`.

    The first row that does not fit into the open batch of its partition starts the next batch. A
    batch has at most `batch_bytes_max` bytes before compression, with its header, unless a single
    record needs more. `level` is one of `compression.LEVELS[codec]`, or None for Kafka's default.
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
    """One record batch of format 2 (KIP-98) with base offset 0 and partition leader epoch -1.

    `data` is read-only and owns its memory.
    """

    partition: int
    base_sequence: int
    record_count: int
    data: memoryview


class Encode(Protocol):
    """Encode rows with columns of `columns.PRODUCE_SCHEMA`; missing columns are null.

    Rows are those of `sink.rows.RowPreparation`, all of one topic (a column `topic` is ignored),
    without negative timestamps and null header keys. `key` and `value`, also of headers, may be
    binary or string, large or not; `timestamp` is in milliseconds, or int64.

    Batches are in the order of their first rows; those of one partition have consecutive sequences
    from `ProducerState.next_sequences` on. Raises `RowError`, and returns no batches, if a record
    is too large for a batch (2 GiB) or a partition is not below `partition_count`.
    """

    def __call__(self, rows: pa.RecordBatch, encoding: Encoding) -> list[EncodedBatch]: ...


def next_sequence(sequence: int, record_count: int) -> int:
    """Return the sequence after `record_count` records from `sequence` on."""
    return (sequence + record_count) % (SEQUENCE_MAX + 1)


def too_large(encoding: Encoding, partition: int, size_bytes: int) -> RowError:
    """Return the error of a record that alone needs a batch of `size_bytes`."""
    return RowError(
        f"A record for {encoding.topic}-{partition} needs a batch of {size_bytes} bytes, but "
        f"Kafka's format allows {LENGTH_BYTES_MAX}.",
        advice="Write smaller records.",
        topic=encoding.topic,
        partition=partition,
    )


def no_such_partition(encoding: Encoding, partition: int) -> RowError:
    """Return the error of a row with a partition that the topic does not have."""
    count = encoding.partition_count
    return RowError(
        f"A row has partition {partition}, but topic {encoding.topic!r} has the partitions 0 to "
        f"{count - 1}.",
        advice="Correct the column 'partition', or set it to null to use the partitioner.",
        column="partition",
        topic=encoding.topic,
        partition=partition,
    )
