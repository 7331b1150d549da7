"""What a task tells the driver: the only way from the tasks of a batch to its commit.

Purpose: the three outcomes of a task, as values that Spark pickles, and what all tasks of a batch
say together. Invariant: each says which batch it is of and under which epoch of X it was planned;
`TaskResults` exist only where every task has answered and none contradicts another. What it must not
know: clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka.errors import BatchNotCommittedError
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch, TransactionVersion
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, Entry, RowTotals
from pyspark_kafka.sink.exactly_once.names import is_task_id_of


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

    @property
    def batch(self) -> str:
        """The batch that it is of, in the words of messages to the user."""
        if self.batch_id is None:
            return f"the batch job (run {self.run})"
        if self.query_id == BATCH_JOB:
            return f"the batch job with batchId {self.batch_id} (run {self.run})"
        return f"batch {self.batch_id} of query {self.query_id} (run {self.run})"


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

    `decision_number` is the number of the decision of which it replaces a lost entry, else None.
    """

    entry: Entry
    decision_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Empty(TaskMessage):
    """There were no rows, and nothing was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyCommitted(TaskMessage):
    """The batch was decided before: rows were counted, and nothing was written."""

    decision_number: int
    totals: RowTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResults:
    """What all tasks of one batch say together. `task` is one of them.

    `replayed_number` is the number of the decision of this batch that there is already, else None; then
    the rows of `prepared` are those that it has lost.
    """

    task: Task
    owner: ProducerIdAndEpoch
    version: TransactionVersion
    last_number: int
    replayed_number: int | None
    prepared: tuple[Prepared, ...]
    already_committed: tuple[AlreadyCommitted, ...]

    @property
    def totals(self) -> RowTotals:
        """Of all rows, written or counted."""
        written = [message.entry.totals for message in self.prepared]
        counted = [message.totals for message in self.already_committed]
        return reduce(add, written + counted, RowTotals())

    @property
    def rows_by_topic(self) -> Mapping[str, int]:
        """Of the rows that were written."""
        rows = Counter[str]()
        for message in self.prepared:
            rows.update(message.rows_by_topic)
        return rows

    @classmethod
    def of(cls, sink_id: str, messages: Sequence[WriterCommitMessage | None]) -> TaskResults:
        """Put together what the tasks of a batch answered, in the order of Spark's partitions.

        Raises `BatchNotCommittedError` where one has not answered or they cannot be of one batch.
        """
        answered = _all_answered(sink_id, messages)
        task = answered[0].task
        for message in answered:
            _check_agreement(answered[0], message)
        partitions = Counter(message.task.partition for message in answered)
        if twice := [str(partition) for partition, count in partitions.items() if count > 1]:
            raise _not_committed(task, f"more than one task answered for partition {_few(twice)}")
        prepared = tuple(message for message in answered if isinstance(message, Prepared))
        for message in prepared:
            _check_entry(sink_id, message)
        return cls(
            task=task,
            owner=answered[0].owner,
            version=answered[0].version,
            last_number=answered[0].last_number,
            replayed_number=_replays(answered),
            prepared=prepared,
            already_committed=tuple(m for m in answered if isinstance(m, AlreadyCommitted)),
        )


def _all_answered(
    sink_id: str, messages: Sequence[WriterCommitMessage | None]
) -> list[TaskMessage]:
    answered = [message for message in messages if isinstance(message, TaskMessage)]
    if len(answered) == len(messages) and answered:
        return answered
    silent = [str(n) for n, m in enumerate(messages) if not isinstance(m, TaskMessage)]
    which = f"the tasks of partitions {_few(silent)} have not" if silent else "no task has"
    raise BatchNotCommittedError(
        f"a batch under transactionalId '{sink_id}' is not committed: {which} said what became of its "
        "rows. Nothing of it will be seen; run it again"
    )


def _check_agreement(first: TaskMessage, message: TaskMessage) -> None:
    for what, one, other in (
        ("query", first.task.query_id, message.task.query_id),
        ("batch id", first.task.batch_id, message.task.batch_id),
        ("run", first.task.run, message.task.run),
        ("owner", first.owner, message.owner),
        ("transaction version", first.version, message.version),
        ("last decision", first.last_number, message.last_number),
    ):
        if one != other:
            raise _not_committed(
                first.task,
                f"its tasks are not of one batch: the {what} of partition {first.task.partition} "
                f"is {one}, and that of partition {message.task.partition} is {other}",
            )


def _check_entry(sink_id: str, message: Prepared) -> None:
    task, entry = message.task, message.entry
    if entry.partition != task.partition or not is_task_id_of(
        entry.transactional_id, sink_id, run=task.run
    ):
        raise _not_committed(
            task,
            f"the task of partition {task.partition} reports the transaction "
            f"'{entry.transactional_id}' of partition {entry.partition}, which cannot be its own",
        )


def _replays(answered: Sequence[TaskMessage]) -> int | None:
    """The decision that all of them, or none, know of."""
    known = {
        message.decision_number
        if isinstance(message, AlreadyCommitted)
        else message.decision_number
        if isinstance(message, Prepared)
        else None
        for message in answered
    }
    if len(known) == 1:
        return known.pop()
    raise _not_committed(
        answered[0].task,
        "some of its tasks found it decided already, and others did not (decisions "
        f"{_few(str(number) for number in known)})",
    )


def _not_committed(task: Task, why: str) -> BatchNotCommittedError:
    return BatchNotCommittedError(
        f"{task.batch} is not committed: {why}. Nothing of it will be seen; run it again, and "
        "report this, since it should not be"
    )


def _few(names: Iterable[str], most: int = 10) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if listed[most:] else "")
