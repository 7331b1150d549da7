"""Defines the results of tasks. The commit receives no other information about the tasks.

A task has one of three possible results, which Spark pickles. `TaskResults` contains the checked
results of a whole batch. Invariant: each result identifies its batch and contains the sink's
producer id and epoch from planning. `TaskResults` is created only if every task has returned a
result and the results are consistent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka.errors import BatchNotCommittedError, sentence
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, Entry, RowTotals
from pyspark_kafka.sink.exactly_once.names import is_task_id_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task attempt of a batch.

    `query_id` is Spark's id for the streaming query, `decisions.BATCH_JOB` for a job with
    `batchId`, or a token that identifies a job without `batchId`. `batch_id` is None for a job
    without `batchId`.
    """

    query_id: str
    batch_id: int | None
    run: str
    partition: int
    attempt: int
    task_attempt_id: int

    @property
    def batch(self) -> str:
        """Return a description of the batch for messages to the user."""
        if self.batch_id is None:
            return f"the batch job (run {self.run})"
        if self.query_id == BATCH_JOB:
            return f"the batch job with batchId {self.batch_id} (run {self.run})"
        return f"batch {self.batch_id} of query {self.query_id} (run {self.run})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage(WriterCommitMessage):
    """The base class for task results, with the fields that all results have.

    `owner` is the sink's producer id and epoch from planning, and `version` is the version of the
    sink's transactions. `generation` is part of the transactional ids of the batch's tasks.
    `commit_partition` is the partition of the commit topic. `last_number` is the number of the
    query's last decision at the time of planning, or 0.
    """

    task: Task
    owner: ProducerIdAndEpoch
    version: TransactionVersion
    generation: int
    commit_partition: int
    last_number: int
    rows_by_topic: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared(TaskMessage):
    """The result of a task that wrote rows in a transaction.

    All rows are acknowledged, and the transaction is still open. If the transaction replaces a lost
    entry of a decision, `decision_number` is the number of that decision.
    """

    entry: Entry
    decision_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty(TaskMessage):
    """The result of a task without rows, which opened no transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyCommitted(TaskMessage):
    """The result of a task that only counted its rows, because its batch was already decided."""

    decision_number: int
    totals: RowTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResults:
    """The results of all tasks of one batch. `task` is the task of the first result.

    `replayed_number` is the number of the existing decision for this batch, or None. If such a
    decision exists, the transactions in `prepared` replace the lost rows of the batch.
    """

    task: Task
    owner: ProducerIdAndEpoch
    version: TransactionVersion
    generation: int
    commit_partition: int
    last_number: int
    replayed_number: int | None
    task_count: int
    prepared: tuple[Prepared, ...]
    already_committed: tuple[AlreadyCommitted, ...]

    @property
    def totals(self) -> RowTotals:
        """Return the totals of all rows, including rows that were only counted."""
        written = [message.entry.totals for message in self.prepared]
        counted = [message.totals for message in self.already_committed]
        return reduce(add, written + counted, RowTotals())

    @property
    def rows_by_topic(self) -> Mapping[str, int]:
        """Return the number of rows that were written, by topic."""
        rows = Counter[str]()
        for message in self.prepared:
            rows.update(message.rows_by_topic)
        return rows

    @classmethod
    def of(cls, sink_id: str, messages: Sequence[WriterCommitMessage | None]) -> TaskResults:
        """Combine the results of a batch, which are in the order of Spark's partitions.

        Raises `BatchNotCommittedError` if a result is missing or if results contradict each other.
        """
        results = _complete(sink_id, messages)
        first = results[0]
        for result in results:
            _check_agreement(sink_id, first, result)
        partitions = Counter(result.task.partition for result in results)
        if twice := [str(partition) for partition, count in partitions.items() if count > 1]:
            raise _not_committed(
                sink_id, first.task, f"several tasks returned results for partition {_few(twice)}"
            )
        prepared = tuple(result for result in results if isinstance(result, Prepared))
        for message in prepared:
            _check_entry(sink_id, message)
        return cls(
            task=first.task,
            owner=first.owner,
            version=first.version,
            generation=first.generation,
            commit_partition=first.commit_partition,
            last_number=first.last_number,
            replayed_number=_replayed_number(sink_id, results),
            task_count=len(results),
            prepared=prepared,
            already_committed=tuple(r for r in results if isinstance(r, AlreadyCommitted)),
        )


def _complete(sink_id: str, messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    results = [message for message in messages if isinstance(message, TaskMessage)]
    if len(results) == len(messages) and results:
        return results
    missing = [str(n) for n, m in enumerate(messages) if not isinstance(m, TaskMessage)]
    whose = f"the tasks of partitions {_few(missing)}" if missing else "its tasks"
    raise BatchNotCommittedError(
        f"A batch with transactionalId '{sink_id}' is not committed, because {whose} returned no "
        "results. None of its rows will be visible.",
        transactional_id=sink_id,
    )


def _check_agreement(sink_id: str, first: TaskMessage, other: TaskMessage) -> None:
    for what, expected, found in (
        ("query", first.task.query_id, other.task.query_id),
        ("batch id", first.task.batch_id, other.task.batch_id),
        ("run", first.task.run, other.task.run),
        ("owner", first.owner, other.owner),
        ("transaction version", first.version, other.version),
        ("generation", first.generation, other.generation),
        ("commit partition", first.commit_partition, other.commit_partition),
        ("last commit decision", first.last_number, other.last_number),
    ):
        if expected != found:
            raise _not_committed(
                sink_id,
                first.task,
                "the tasks belong to different batches. The task for partition "
                f"{first.task.partition} returned {what} {expected}, but the task for partition "
                f"{other.task.partition} returned {found}",
            )


def _check_entry(sink_id: str, message: Prepared) -> None:
    task, entry = message.task, message.entry
    is_own = is_task_id_of(entry.transactional_id, sink_id, generation=message.generation)
    if entry.partition != task.partition or not is_own:
        raise _not_committed(
            sink_id,
            task,
            f"the task for partition {task.partition} returned transaction "
            f"'{entry.transactional_id}' (partition {entry.partition}), which belongs to another "
            "task",
        )


def _replayed_number(sink_id: str, results: Sequence[TaskMessage]) -> int | None:
    """Return the number of the decision that all tasks found, or None if they found no decision."""
    numbers = {
        result.decision_number if isinstance(result, AlreadyCommitted | Prepared) else None
        for result in results
    }
    if len(numbers) == 1:
        return numbers.pop()
    raise _not_committed(
        sink_id,
        results[0].task,
        "the tasks found different commit decisions for the batch "
        f"({_few(str(number) for number in numbers)})",
    )


def _not_committed(sink_id: str, task: Task, why: str) -> BatchNotCommittedError:
    return BatchNotCommittedError(
        f"{sentence(task.batch)} with transactionalId '{sink_id}' is not committed: {why}. None of "
        "its rows will be visible.",
        advice="Run the batch again. This is a bug in pyspark-kafka. Please report it.",
        transactional_id=sink_id,
    )


def _few(names: Iterable[str], most: int = 10) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if listed[most:] else "")
