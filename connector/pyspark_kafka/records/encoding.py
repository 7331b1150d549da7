"""What `encode` is given and what it makes: Arrow rows of one topic as Kafka's record batches.

Purpose: the contract of the encoding half of both twins. Invariant: every row is in exactly one
batch; rows of one partition keep their order. What it must not know: connections, who sends the
batches, Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pyspark_kafka.records.compression import Codec

SEQUENCE_MAX = 2**31 - 1
"""The sequence after it is 0 (`DefaultRecordBatch.incrementSequence`)."""

NO_SEQUENCE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """Who writes: what InitProducerId gave, and the sequence of the next record by partition.

    A partition that is missing in `next_sequences` is at 0.
    """

    producer_id: int
    producer_epoch: int
    next_sequences: Mapping[int, int]
    is_transactional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How rows of one topic become batches.

    A row goes to its `partition`; where that is null, to murmur2 of its key modulo
    `partition_count` (Java's `BuiltInPartitioner.partitionForKey`); where the key is null too, to
    `unkeyed[0]` until a batch is full there, then to `unkeyed[1]`, and so on, round and round. A
    null timestamp is `now_ms`. A batch holds at most `batch_bytes_max` bytes before compression,
    its header counted, unless a single record needs more. `level` None is the codec's default.
    """

    topic: str
    partition_count: int
    unkeyed: tuple[int, ...]
    producer: ProducerState
    now_ms: int
    batch_bytes_max: int
    codec: Codec = Codec.NONE
    level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """One record batch of format 2 (KIP-98) with base offset 0 and partition leader epoch -1."""

    partition: int
    base_sequence: int
    record_count: int
    data: memoryview


class Encode(Protocol):
    """Encode rows with columns of `columns.PRODUCE_SCHEMA`, `topic` among them or not.

    Rows are those of `sink.rows.RowPreparation`: no negative timestamp, no header without a key,
    partitions that exist. Batches come in the order in which they were filled; those of one
    partition with sequences that follow each other. Raises `RowError` for a record that no batch
    can hold (2 GiB).
    """

    def __call__(self, rows: pa.RecordBatch, encoding: Encoding) -> list[EncodedBatch]: ...
