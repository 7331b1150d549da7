"""What a task tells the driver: the only way from the tasks of a batch to its commit.

Purpose: the three outcomes of a task, as values that Spark pickles. Invariant: each says which batch
it is of and under which epoch of X it was planned. What it must not know: clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka.client.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.sink.exactly_once.decisions import Entry, RowTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Which task attempt of which batch.

    `query_id` is Spark's id of the streaming query, `decisions.BATCH_JOB` for a job with
    `batchId`, or a token of the job; `batch_id` is None for a job without `batchId`.
    """

    query_id: str
    batch_id: int | None
    run: str
    partition: int
    attempt: int
    task_attempt_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage(WriterCommitMessage):
    """`owner` is X's producer id and epoch that planning got; `version` that of its transactions.

    `last_number` is the number of the query's last decision, as planning read it; 0 for none.
    """

    task: Task
    owner: ProducerIdAndEpoch
    version: TransactionVersion
    last_number: int
    rows_by_topic: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(TaskMessage):
    """Rows are written and acknowledged in a transaction that is left open.

    `rewrites` is the number of the decision of which it replaces a lost entry, else None.
    """

    entry: Entry
    rewrites: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty(TaskMessage):
    """There were no rows, and nothing was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyCommitted(TaskMessage):
    """The batch was decided before: rows were counted, and nothing was written."""

    decision_number: int
    totals: RowTotals
