"""Planning: what the driver does before the tasks of every batch.

Purpose: steps 1 to 4 of the protocol: fence, read, roll forward, mark, sweep. Invariant: when a
`Plan` is there, no older driver can decide anything, every earlier decision of X is finished or its
lost rows are named, and nothing else under X is open. What it must not know: Spark; planning is told
neither query nor batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka.client.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.sink.exactly_once.decisions import RowTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDecision:
    """Of one query: what tasks compare themselves with. `lost` are Spark's partitions.

    `totals_by_partition` has the totals of the entries, for what is written again.
    """

    number: int
    batch_id: int | None
    totals: RowTotals
    offsets_hash: str | None
    lost: frozenset[int]
    totals_of_lost: Mapping[int, RowTotals]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What tasks are given: who owns X, and the last decision of each query of X."""

    owner: ProducerIdAndEpoch
    version: TransactionVersion
    last: Mapping[str, LastDecision]
