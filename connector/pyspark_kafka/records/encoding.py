"""What `encode` is given and what it makes: Arrow rows of one topic as Kafka's record batches.

Purpose: the contract of the encoding half of both implementations, and the words of its errors. Invariant:
every row is in exactly one batch; rows of one partition keep their order. What it must not know:
connections, who sends the batches, Spark.
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
"""`RecordBatch` of Apache Kafka: what a producer without idempotence writes."""

HEADER_BYTES: Final = 61
"""Of a batch of format 2, before its records."""

LENGTH_BYTES_MAX: Final = 2**31 - 1
"""What the length field of a batch may say."""

BATCH_BYTES_LIMIT: Final = LENGTH_BYTES_MAX
"""`batch_bytes_max` may not be more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """Who writes: what InitProducerId gave, and the sequence of the next record by partition.

    A partition that is missing in `next_sequences` is at 0. A producer id and an epoch of -1 are a
    producer without idempotence: its batches have the sequence `NO_SEQUENCE`. `is_transactional` is
    what batches say that are written in a transaction.
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

    A row goes to its `partition`; where that is null, to murmur2 of its key modulo
    `partition_count` (Java's `BuiltInPartitioner.partitionForKey`); where the key is null too, to
    one of `unkeyed`: to `unkeyed[0]` until a row does not fit into the open batch there, from then
    on to `unkeyed[1]`, and so on, round and round. A null timestamp is `now_ms`.

    A partition's open batch is closed by the first row that does not fit into it, which begins the
    next; no row waits for another. A batch has at most `batch_bytes_max` bytes before compression,
    its header counted, unless a single record needs more. `level` is one of
    `compressing.LEVELS[codec]`, or None for Kafka's default.
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

    `data` is read-only and owns its memory; nothing else refers to it.
    """

    partition: int
    base_sequence: int
    record_count: int
    data: memoryview


class Encode(Protocol):
    """Encode rows with columns of `columns.PRODUCE_SCHEMA`; those that are missing are null.

    Rows are those of `sink.rows.RowPreparation`, all of one topic (a column `topic` is not looked
    at): no negative timestamp, no header without a key. `key` and `value`, and those of headers,
    may be binary or string, large or not; `timestamp` is in milliseconds, or int64.

    Batches come in the order of their first rows; those of one partition have sequences that
    follow each other, from `ProducerState.next_sequences` on. Raises `RowError` for a record that
    no batch can hold (2 GiB), and for a partition beyond `partition_count`: then there are no
    batches at all.
    """

    def __call__(self, rows: pa.RecordBatch, encoding: Encoding) -> list[EncodedBatch]: ...


def next_sequence(sequence: int, record_count: int) -> int:
    """The sequence of the record that follows so many from `sequence` on."""
    return (sequence + record_count) % (SEQUENCE_MAX + 1)


def too_large(encoding: Encoding, partition: int, size_bytes: int) -> RowError:
    """For a record which alone makes a batch of `size_bytes`."""
    return RowError(
        f"a record for {encoding.topic}-{partition} makes a batch of {size_bytes} bytes, where "
        f"Kafka's format ends at {LENGTH_BYTES_MAX}: write smaller records"
    )


def no_such_partition(encoding: Encoding, partition: int) -> RowError:
    """For a row with a partition that the topic has not."""
    count = encoding.partition_count
    return RowError(
        f"a row is for partition {partition} of topic '{encoding.topic}', which has {count} "
        f"(0 to {count - 1}): correct the column 'partition', or leave it null for the "
        "partitioner to choose"
    )
