"""Runs a task attempt, which leaves its rows in a prepared transaction.

Runs steps 5 and 6 of the protocol. Invariant: when an attempt returns `Prepared`, every row is
acknowledged in an open transaction. Rows of a failed attempt never become visible, because a
transaction is committed only if a decision contains it. If the batch is already decided, tasks
write only the batch's lost rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from pyspark_kafka.client.transactional_port import TransactionalClient, TransactionalProducer
from pyspark_kafka.errors import (
    OutcomeUnknownError,
    ProducerFencedError,
    ReplayMismatchError,
    RowsLostError,
    SinkFencedError,
    StaleBatchError,
    counted,
    sentence,
)
from pyspark_kafka.kafka.transactions import EndTransaction, ProducerIdAndEpoch
from pyspark_kafka.options.values import ExactlyOnce, SinkOptions
from pyspark_kafka.records.checksums import row_checksums
from pyspark_kafka.sink.exactly_once.clock import wall_clock_ms
from pyspark_kafka.sink.exactly_once.decisions import BATCH_JOB, Entry, RowTotals
from pyspark_kafka.sink.exactly_once.messages import (
    AlreadyCommitted,
    Empty,
    Prepared,
    Task,
    TaskMessage,
)
from pyspark_kafka.sink.exactly_once.names import task_id
from pyspark_kafka.sink.exactly_once.operator_command import operator_command
from pyspark_kafka.sink.exactly_once.planning import LastDecision, Plan
from pyspark_kafka.sink.exactly_once.steps import Step, step
from pyspark_kafka.sink.exactly_once.sweep import DECIDED
from pyspark_kafka.sink.rows import RowPreparation


def write_task(
    batches: Iterable[pa.RecordBatch],
    *,
    plan: Plan,
    task: Task,
    options: SinkOptions,
    client: TransactionalClient,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> TaskMessage:
    """Write the rows of one task, or count them if they are already committed.

    Raises `StaleBatchError` if the batch is older than the last decision. Raises
    `OutcomeUnknownError` if the outcome of the last decision is unknown, and `RowsLostError` if an
    earlier batch has lost rows. Raises `SinkFencedError` if another run has fenced the sink. Raises
    `ReplayMismatchError` if lost rows and their replacements differ, and `RowError` if a row cannot
    be written. Also raises subclasses of `KafkaError`. After an error, no rows of this attempt will
    be visible.
    """
    exactly_once = options.exactly_once
    assert exactly_once is not None
    attempt = _Attempt(
        plan=plan,
        task=task,
        options=exactly_once,
        client=client,
        now_ms=now_ms,
        preparation=RowPreparation(
            topic=options.topic, partition_count=lambda topic: _partition_count(client, topic)
        ),
    )
    with step(Step.TASK_CHECK):
        decided = attempt.decided()
    rows = (batch for batch in batches if batch.num_rows > 0)
    if decided is not None and task.partition not in decided.lost:
        return attempt.count(rows, decided)
    return attempt.write(rows, decided)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """An attempt to write one partition of a batch. `totals` counts all rows prepared so far."""

    plan: Plan
    task: Task
    options: ExactlyOnce
    client: TransactionalClient
    now_ms: Callable[[], int]
    preparation: RowPreparation
    totals: RowTotals = field(default_factory=RowTotals)

    def decided(self) -> LastDecision | None:
        """Return the decision of this batch, or None if the batch is not decided.

        Raises an error if the batch must not be written.
        """
        last = self.plan.last.get(self.task.query_id)
        batch_id = self.task.batch_id
        if last is not None and last.unknown is not None:
            raise OutcomeUnknownError(
                last.unknown.what,
                advice=last.unknown.advice,
                transactional_id=self.options.transactional_id,
            )
        if last is None or last.batch_id is None or batch_id is None:
            return None
        if last.batch_id > batch_id:
            raise _stale(self.options.transactional_id, self.task, last.batch_id)
        if last.batch_id == batch_id:
            return last
        if last.lost:
            raise _rows_lost_before(self.options.transactional_id, self.task, last)
        return None

    def count(self, rows: Iterator[pa.RecordBatch], decided: LastDecision) -> TaskMessage:
        with step(Step.TASK_COUNT):
            for batch in rows:
                self._prepare(batch)
        return AlreadyCommitted(
            task=self.task,
            owner=self.plan.owner,
            version=self.plan.version,
            generation=self.plan.generation,
            commit_partition=self.plan.commit_partition,
            last_number=self.plan.last_number(self.task.query_id),
            rows_by_topic=dict(self.preparation.rows_by_topic),
            decision_number=decided.number,
            totals=self.totals,
        )

    def write(self, rows: Iterator[pa.RecordBatch], decided: LastDecision | None) -> TaskMessage:
        first = next(rows, None)
        if first is None:
            self._check_rewritten(decided)
            return self._empty()
        own_id = self._own_id()
        with step(Step.TASK_INIT):
            own = self.client.init_producer_id(
                own_id, timeout_ms=self.options.transaction_timeout_ms
            )
        initialized_ms = self.now_ms()
        try:
            with step(Step.TASK_LOOK):
                self._check_owner()
            message = self._produce(first, rows, own_id, own, decided)
        except BaseException as error:
            age_ms = self.now_ms() - initialized_ms
            self._abort_own(own_id, own)
            if isinstance(error, ProducerFencedError):
                is_late = age_ms >= self.options.transaction_timeout_ms
                raise (
                    self._timed_out(own_id, age_ms) if is_late else self._fenced(own_id)
                ) from error
            raise
        return message

    def _produce(
        self,
        first: pa.RecordBatch,
        others: Iterator[pa.RecordBatch],
        own_id: str,
        own: ProducerIdAndEpoch,
        decided: LastDecision | None,
    ) -> Prepared:
        with step(Step.TASK_PRODUCE):
            started_ms = self.now_ms()
            producer = self.client.transactional_producer(own_id, own, self.plan.version)
            try:
                self._send(producer, first, others)
                last_offsets = dict(producer.last_offsets)
            except BaseException:
                producer.abort()
                raise
            producer.close()
            self._check_rewritten(decided)
        return Prepared(
            task=self.task,
            owner=self.plan.owner,
            version=self.plan.version,
            generation=self.plan.generation,
            commit_partition=self.plan.commit_partition,
            last_number=self.plan.last_number(self.task.query_id),
            rows_by_topic=dict(self.preparation.rows_by_topic),
            decision_number=None if decided is None else decided.number,
            entry=Entry(
                partition=self.task.partition,
                transactional_id=own_id,
                producer=own,
                version=self.plan.version,
                started_ms=started_ms,
                totals=self.totals,
                last_offsets=last_offsets,
            ),
        )

    def _send(
        self,
        producer: TransactionalProducer,
        first: pa.RecordBatch,
        others: Iterator[pa.RecordBatch],
    ) -> None:
        producer.send(self._prepare(first))
        for batch in others:
            producer.send(self._prepare(batch))
        producer.flush()

    def _prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        prepared = self.preparation.prepare(batch)
        self.totals += RowTotals(row_count=prepared.num_rows, checksum=row_checksums(prepared))
        return prepared

    def _empty(self) -> Empty:
        return Empty(
            task=self.task,
            owner=self.plan.owner,
            version=self.plan.version,
            generation=self.plan.generation,
            commit_partition=self.plan.commit_partition,
            last_number=self.plan.last_number(self.task.query_id),
            rows_by_topic={},
        )

    def _own_id(self) -> str:
        task = self.task
        own = task_id(
            self.options.transactional_id,
            self.plan.generation,
            partition=task.partition,
            attempt=task.attempt,
            task_attempt_id=task.task_attempt_id,
        )
        return str(own)

    def _check_owner(self) -> None:
        """Check that the batch can still be decided.

        Without this check, an attempt could open a transaction after its batch has ended. No sweep
        would abort this transaction, which would block consumers until its timeout expires. The
        check follows InitProducerId, so a sweep that begins after the check finds the initialized
        id.
        """
        sink_id = self.options.transactional_id
        found = self.client.describe_transactions([sink_id]).get(sink_id)
        if found is None or found.producer != self.plan.owner or found.state in DECIDED:
            raise self._fenced(sink_id)

    def _check_rewritten(self, decided: LastDecision | None) -> None:
        """Check that the new rows equal the lost rows that they replace."""
        if decided is None:
            return
        expected = decided.totals_of_lost[self.task.partition]
        if self.totals != expected:
            sink_id = self.options.transactional_id
            raise ReplayMismatchError(
                f"Partition {self.task.partition} of {self.task.batch} has lost "
                f"{counted(expected.row_count, 'row')} (checksum {expected.checksum}), but this "
                f"task wrote {counted(self.totals.row_count, 'row')} (checksum "
                f"{self.totals.checksum}) to replace them. None of the new rows will be visible.",
                advice="Write the lost rows with another tool. Then "
                f"{_accept_loss_advice(sink_id)}.",
                transactional_id=sink_id,
            )

    def _abort_own(self, own_id: str, own: ProducerIdAndEpoch) -> None:
        """Abort the attempt's transaction, unless another producer now owns its transactional id.

        Errors are suppressed, because the caller raises the original error. If this abort fails, a
        sweep aborts the transaction later.
        """
        end = EndTransaction(
            transactional_id=own_id, producer=own, is_commit=False, version=self.plan.version
        )
        with suppress(Exception), step(Step.TASK_GIVE_UP):
            self.client.end_transactions([end])

    def _fenced(self, transactional_id: str) -> SinkFencedError:
        return SinkFencedError(
            f"A task of {self.task.batch} was fenced, because another producer owns "
            f"'{transactional_id}'. Either a newer run with transactionalId "
            f"'{self.options.transactional_id}' has taken over, or the batch ended while this "
            "attempt was running. None of the attempt's rows will be visible.",
            advice="If two queries use this transactionalId, give each its own.",
            transactional_id=self.options.transactional_id,
        )

    def _timed_out(self, own_id: str, age_ms: int) -> SinkFencedError:
        return SinkFencedError(
            f"A task of {self.task.batch} was fenced after {age_ms} ms. After 'transactionTimeout' "
            f"({self.options.transaction_timeout_ms} ms), the brokers abort its transaction "
            f"'{own_id}'. None of the attempt's rows will be visible.",
            advice="Increase 'transactionTimeout' or make the batches smaller.",
            transactional_id=self.options.transactional_id,
        )


def _stale(sink_id: str, task: Task, decided: int) -> StaleBatchError:
    if task.query_id == BATCH_JOB:
        return StaleBatchError(
            f"Option 'batchId' is set to {task.batch_id}, but the later batch {decided} of "
            f"transactionalId '{sink_id}' is already committed. Nothing was written.",
            advice="Use a higher batchId, or a new transactionalId if your batch ids start over.",
            option="batchId",
            transactional_id=sink_id,
        )
    return StaleBatchError(
        f"{sentence(task.batch)} is older than batch {decided}, which is already committed with "
        f"transactionalId '{sink_id}'. Either another driver has replaced this driver, or the "
        "checkpoint was restored from an older copy. Nothing was written.",
        advice=f"{StaleBatchError.remedy} If that checkpoint is lost, use a new transactionalId: "
        f"the query then writes the rows from batch {task.batch_id} onwards again.",
        transactional_id=sink_id,
    )


def _rows_lost_before(sink_id: str, task: Task, last: LastDecision) -> RowsLostError:
    partitions = ", ".join(str(partition) for partition in sorted(last.lost))
    again = "query" if task.query_id != BATCH_JOB else f"job with batchId {last.batch_id}"
    return RowsLostError(
        f"{sentence(task.batch)} cannot be written, because the earlier batch {last.batch_id} has "
        f"lost the rows of its partitions {partitions}. Nothing was written.",
        advice=f"Run the {again} again from the start of batch {last.batch_id}. It will then "
        "write only the lost rows. To continue without these rows, "
        f"{_accept_loss_advice(sink_id)}.",
        transactional_id=sink_id,
    )


def _accept_loss_advice(sink_id: str) -> str:
    return f"mark the batch as finished with {operator_command(sink_id, '--recover --accept-loss')}"


def _partition_count(client: TransactionalClient, topic: str) -> int | None:
    description = client.describe_topics([topic]).get(topic)
    return None if description is None else len(description.partitions)
