"""What was decided: one batch of one query, and the transactions that hold its rows.

Purpose: decisions as values, and as records of the commit topic. Invariant: what is read is either
just what was written or an error that says which record is damaged or of which newer format. What
it must not know: clients, where the records are.

A decision is JSON, split into chunks that a topic takes, all in one transaction. Keys hold X, the
query and the kind, so that no query can hide or compact away another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafka.client.base import TopicPartition
from pyspark_kafka.client.transactions import ProducerIdAndEpoch, TransactionVersion

FORMAT: Final = 1
BATCH_JOB: Final = "batch"
"""The query id of every batch job with `batchId`."""

_CHECKSUMS: Final = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTotals:
    """Rows and the sum of their checksums modulo 2**64, which does not depend on their order."""

    row_count: int = 0
    checksum: int = 0

    def __add__(self, other: RowTotals) -> RowTotals:
        return RowTotals(
            row_count=self.row_count + other.row_count,
            checksum=(self.checksum + other.checksum) % _CHECKSUMS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prepared transaction: one task's rows. `last_offsets` are of its last record by partition.

    `partition` is Spark's, of the DataFrame.
    """

    partition: int
    transactional_id: str
    producer: ProducerIdAndEpoch
    version: TransactionVersion
    started_ms: int
    totals: RowTotals
    last_offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A batch that is committed, from the moment that this is.

    `number` rises by one with each decision of (X, query). `batch_id` is None for a job without
    `batchId`. `offsets_hash` is of the micro-batch's file in the checkpoint, where it is known.
    `totals` are of all tasks of the batch, of which some may have no entry any more.
    """

    x: str
    query_id: str
    number: int
    batch_id: int | None
    run: str
    offsets_hash: str | None
    totals: RowTotals
    entries: tuple[Entry, ...]
    decided_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """What the commit topic says of one query under X: its last decision, and what is finished."""

    decision: Decision
    finished_number: int = 0

    @property
    def is_finished(self) -> bool:
        return self.finished_number >= self.decision.number
