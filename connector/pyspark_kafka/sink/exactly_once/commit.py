"""Commits a batch after its tasks have finished.

Runs steps 7 to 11 of the protocol on the driver: verify, decide, roll forward, mark, sweep. The
steps use the sink's producer id and epoch from planning. Invariant: a single EndTxn request decides
the batch with all its rows, and the batch is considered decided only after the request is
acknowledged. If an error occurs before the request, the batch is undecided. An error after the
acknowledgment reports that the batch is decided. The only Spark class that this module uses is
`WriterCommitMessage`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from kio.schema.errors import ErrorCode
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_kafka.client.transactional_port import TransactionalClient, TransactionalProducer
from pyspark_kafka.errors import (
    BatchNotCommittedError,
    KafkaError,
    OutcomeUnknownError,
    ProducerFencedError,
    ReplayMismatchError,
    RowsLostError,
    SinkFencedError,
    counted,
    reason_of,
    sentence,
)
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    TransactionDescription,
    TransactionState,
)
from pyspark_kafka.options.values import ExactlyOnce
from pyspark_kafka.sink.exactly_once.clock import wall_clock_ms
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import Decision, Entry, QueryState, to_records
from pyspark_kafka.sink.exactly_once.messages import TaskResults
from pyspark_kafka.sink.exactly_once.operator_command import operator_command
from pyspark_kafka.sink.exactly_once.roll_forward import (
    TransactionOutcomeUnknownError,
    roll_forward,
)
from pyspark_kafka.sink.exactly_once.source_offsets import SourceOffsets
from pyspark_kafka.sink.exactly_once.steps import Step, step
from pyspark_kafka.sink.exactly_once.sweep import sweep

log = logging.getLogger(__name__)

_TIME_LEFT_MS_MIN: Final = 60_000
"""A task's transaction must have at least this much time left when it is verified, so that the
commit can complete. Half of this time must be left when the batch is decided."""

_TIME_LEFT_SHARE: Final = 4
"""For short timeouts, a quarter of the timeout is enough. Otherwise no batch with a short timeout
could be committed."""

_ABORTED: Final = (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)

_NAMED_MAX: Final = 10


def commit(
    client: TransactionalClient,
    options: ExactlyOnce,
    messages: Sequence[WriterCommitMessage | None],
    *,
    offsets: SourceOffsets | None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> None:
    """Commit a batch after every task has returned a result.

    `offsets` contains the source offsets, or is None if they are unknown.

    Raises `BatchNotCommittedError` or `SinkFencedError` if the batch is not decided and none of its
    rows will be visible. Raises `ReplayMismatchError` if the batch was decided with different rows.
    Raises `OutcomeUnknownError` if the outcome is unknown, and `RowsLostError` if decided rows were
    aborted. Also raises subclasses of `KafkaError`.
    """
    results = TaskResults.of(options.transactional_id, messages)
    batch = _Batch(client=client, options=options, results=results, offsets=offsets, now_ms=now_ms)
    with step(Step.COMMIT_VERIFY):
        decide_before_ms = batch.verify()
    decision = batch.decision() if results.replayed_number is None else batch.supplement()
    if decision is None:
        return
    with step(Step.COMMIT_DECIDE):
        decided = batch.decide(decision, before_ms=decide_before_ms)
    with _note_decided(results):
        batch.finish(decided)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch with the results of all its tasks."""

    client: TransactionalClient
    options: ExactlyOnce
    results: TaskResults
    offsets: SourceOffsets | None
    now_ms: Callable[[], int]

    @property
    def _sink_id(self) -> str:
        return self.options.transactional_id

    @property
    def _topic(self) -> CommitTopic:
        return CommitTopic(
            self.client,
            self.options.commit_topic,
            self._sink_id,
            partition=self.results.commit_partition,
        )

    @property
    def _name(self) -> str:
        return sentence(f"{self.results.task.batch} with transactionalId '{self._sink_id}'")

    @property
    def _nothing_visible(self) -> str:
        number = self.results.replayed_number
        if number is None:
            return "None of its rows will be visible."
        return f"No row that replaces a lost row of commit decision {number} will be visible."

    def verify(self) -> float:
        """Check that every prepared transaction is unchanged and will not time out soon (step 7).

        Returns the time by which the batch must be decided, in milliseconds of the driver's clock.
        """
        entries = [message.entry for message in self.results.prepared]
        if not entries:
            return math.inf
        found = self.client.describe_transactions([entry.transactional_id for entry in entries])
        problems = [
            f"'{entry.transactional_id}' (partition {entry.partition}, {entry.totals.row_count} "
            f"rows) {problem}"
            for entry in entries
            if (problem := _problem(entry, found.get(entry.transactional_id), self.now_ms()))
        ]
        if problems:
            self._check_owner()
            more = f"; and {len(problems) - _NAMED_MAX} more" if problems[_NAMED_MAX:] else ""
            raise BatchNotCommittedError(
                f"{self._name} is not committed, because some transactions of its tasks changed "
                "after they were prepared, or are about to time out: "
                f"{'; '.join(problems[:_NAMED_MAX])}{more}. {self._nothing_visible}",
                advice="Run the batch again. If the transactions timed out, increase "
                "'transactionTimeout' or make the batches smaller.",
                transactional_id=self._sink_id,
            )
        return min(
            _began_ms(entry, one) + one.timeout_ms - _time_left_ms_min(one) // 2
            for entry in entries
            for one in [found[entry.transactional_id]]
        )

    def decision(self) -> Decision | None:
        """Return the decision for a batch that has not been decided before.

        A batch without rows also has a decision, which records that the batch is committed. The
        decision's transaction can also commit source offsets. The result is None for a job without
        rows and without `batchId`, because no later run would read the decision.
        """
        results = self.results
        if not results.prepared and results.task.batch_id is None:
            log.info("%s has no rows, so there is nothing to commit", self._name)
            return None
        return Decision(
            sink_id=self._sink_id,
            query_id=results.task.query_id,
            number=results.last_number + 1,
            batch_id=results.task.batch_id,
            run=results.task.run,
            task_count=results.task_count,
            offsets_hash=None if self.offsets is None else self.offsets.hash,
            totals=results.totals,
            entries=tuple(message.entry for message in results.prepared),
            decided_ms=self.now_ms(),
        )

    def supplement(self) -> Decision | None:
        """Return a new decision in which rewritten transactions replace the lost ones.

        Returns None if no rows are lost.
        """
        with step(Step.COMMIT_COMPARE):
            state = self._decided_before()
            self._compare(state.decision)
            lost = () if state.is_finished else roll_forward(self.client, state)
            rewritten = {
                message.entry.partition: message.entry for message in self.results.prepared
            }
            self._check_rewritten(state.decision, lost, rewritten)
        if not lost:
            log.warning(
                "%s was already committed (commit decision %d, %s), so it was not written again",
                self._name,
                state.decision.number,
                counted(self.results.totals.row_count, "row"),
            )
            if not state.is_finished:
                self._mark(state)
            return None
        lost_partitions = {entry.partition for entry in lost}
        surviving = [
            entry for entry in state.decision.entries if entry.partition not in lost_partitions
        ]
        return replace(
            state.decision,
            number=state.decision.number + 1,
            run=self.results.task.run,
            entries=tuple(surviving) + tuple(rewritten.values()),
            decided_ms=self.now_ms(),
        )

    def _decided_before(self) -> QueryState:
        state = self._topic.read_latest().queries.get(self.results.task.query_id)
        number = self.results.replayed_number
        if state is None or state.decision.number != number:
            current = "missing" if state is None else f"decision {state.decision.number}"
            raise SinkFencedError(
                f"{self._name} replays the batch of commit decision {number}, but the latest "
                f"commit decision of this query in topic '{self.options.commit_topic}' is now "
                f"{current}. Either another run has continued the query, or the commit decisions "
                "were removed. The rows of this run will not be visible.",
                advice="Make sure that only one run of the query is active.",
                topic=self.options.commit_topic,
                transactional_id=self._sink_id,
            )
        return state

    def _compare(self, decision: Decision) -> None:
        """Check that the replay has the same source offsets and the same rows as the decision.

        In a replay of a nondeterministic query, the rows can differ, but the source offsets cannot.
        """
        what = (
            f"{self._name} was already committed (commit decision {decision.number}, by run "
            f"{decision.run})"
        )
        hashes = (decision.offsets_hash, None if self.offsets is None else self.offsets.hash)
        if None not in hashes and hashes[0] != hashes[1]:
            raise ReplayMismatchError(
                f"{what}, but the checkpoint now contains different source offsets for this batch. "
                "With different offsets, some input records would be lost or written twice. The "
                "committed rows are unchanged, and no rows were added.",
                advice="Restore the checkpoint that the committed run used. If this is a different "
                "query or a new checkpoint, use a different transactionalId.",
                transactional_id=self._sink_id,
            )
        now, then = self.results.totals, decision.totals
        if now == then:
            return
        if decision.run == self.results.task.run:
            topics = {p.topic for entry in decision.entries for p in entry.last_offsets}
            raise ReplayMismatchError(
                f"{self._name} was already committed by another write of the same run, with "
                f"different rows (topics: {', '.join(sorted(topics)) or 'none'}). The rows of this "
                "write were not added.",
                advice="If a foreachBatch function writes more than once, use a different "
                "transactionalId for each write.",
                transactional_id=self._sink_id,
            )
        what = (
            f"{what}, and its replay differs: the replay has {counted(now.row_count, 'row')} "
            f"with checksum {now.checksum} instead of {counted(then.row_count, 'row')} with "
            f"checksum {then.checksum}."
        )
        if self.options.fail_on_replay_mismatch:
            raise ReplayMismatchError(
                f"{what} The committed rows are unchanged, and no rows were added.",
                advice="If another query, another checkpoint or another write of a foreachBatch "
                "function used this transactionalId, set a different one. If the query or its "
                "input is not deterministic, set the option 'onReplayMismatch' to 'warn' to keep "
                "the committed rows and continue.",
                transactional_id=self._sink_id,
            )
        compared = "" if None not in hashes else " The source offsets could not be compared."
        log.warning(
            "%s Rows that occur only in the replay are not written to Kafka.%s", what, compared
        )

    def _check_rewritten(
        self, decision: Decision, lost: Sequence[Entry], rewritten: dict[int, Entry]
    ) -> None:
        """Check that this run wrote exactly the rows that were lost."""
        missing = [entry for entry in lost if entry.partition not in rewritten]
        if missing:
            raise RowsLostError(
                f"{self._name} is committed, but some of its rows are lost, and this run did not "
                f"write them again: {_listing(missing)}.",
                advice=self._advice_to_rewrite(decision),
                transactional_id=self._sink_id,
            )
        kept = rewritten.keys() - {entry.partition for entry in lost}
        if kept:
            raise BatchNotCommittedError(
                f"{self._name} was already committed. This run wrote the rows of partitions "
                f"{', '.join(map(str, sorted(kept)))} again, although they had not been lost. "
                "The rows that this run wrote will not be visible.",
                transactional_id=self._sink_id,
            )
        for entry in lost:
            if rewritten[entry.partition].totals != entry.totals:
                raise ReplayMismatchError(
                    f"{self._name} is committed, but the rows that this run wrote to replace lost "
                    f"rows differ from the lost rows: {_listing([entry])}. The new rows will not "
                    "be visible.",
                    advice="Write the lost rows with another tool. Then mark the batch as finished "
                    f"with {operator_command(self._sink_id, '--recover --accept-loss')}.",
                    transactional_id=self._sink_id,
                )

    def _advice_to_rewrite(self, decision: Decision) -> str:
        now, then = self.results.task_count, decision.task_count
        if now == then:
            return (
                "Run the batch again. When the query starts again, it looks up the lost rows and "
                "writes them."
            )
        return (
            f"This run has {counted(now, 'task')}, but the committed batch had {then}, and only "
            "the same tasks can write the lost rows. Restore the settings that determine the "
            "number of tasks (for example spark.sql.shuffle.partitions, minPartitions, coalesce or "
            "repartition), and run the batch again. Alternatively, write the lost rows with "
            "another tool, and then mark the batch as finished with "
            f"{operator_command(self._sink_id, '--recover --accept-loss')}."
        )

    def decide(self, decision: Decision, *, before_ms: float) -> QueryState:
        """Write the decision and commit its transaction (step 8).

        When this method returns, the batch is committed, even if a later step fails. No EndTxn
        request is sent after the time `before_ms`, because the rows of a decided batch are lost if
        their transactions time out.
        """
        state = self._write_decision(decision)
        left_ms = before_ms - self.now_ms()
        if left_ms <= 0:
            raise self._too_slow(
                "the transactions of its tasks are about to time out",
                "If this happens again, increase 'transactionTimeout', or find out why writes to "
                f"topic '{self.options.commit_topic}' are slow.",
            )
        end = EndTransaction(
            transactional_id=self._sink_id,
            producer=self.results.owner,
            is_commit=True,
            version=self.results.version,
        )
        try:
            error_code = self.client.end_transactions([end], timeout_ms=left_ms).get(self._sink_id)
        except KafkaError as error:
            raise self._unknown(
                f"the request to commit the batch failed. {reason_of(error)}"
            ) from error
        if error_code is None:
            raise self._unknown("the request to commit the batch timed out without a response")
        if error_code is not ErrorCode.none:
            raise self._unknown(
                f"the request to commit the batch returned the error {error_code.name.upper()}"
            )
        log.info(
            "%s: commit decision %d was written and commits %s in %s",
            self._name,
            decision.number,
            counted(decision.totals.row_count, "row"),
            counted(len(decision.entries), "transaction"),
        )
        return state

    def _write_decision(self, decision: Decision) -> QueryState:
        topic = self._topic
        records = to_records(decision, chunk_bytes_max=topic.chunk_bytes_max)
        producer = self.client.transactional_producer(
            self._sink_id, self.results.owner, self.results.version
        )
        try:
            producer.send(topic.rows(records))
            self._send_offsets(producer)
            producer.flush()
        except BaseException as error:
            producer.abort()
            if isinstance(error, ProducerFencedError):
                self._check_owner()
                raise self._too_slow(
                    "its transaction timed out",
                    "If this happens again, find out why writes to topic "
                    f"'{self.options.commit_topic}' or commits of group offsets are slow.",
                ) from error
            raise
        producer.close()
        return QueryState(decision=decision, keys=tuple(key for key, _ in records))

    def _too_slow(self, result: str, advice: str) -> BatchNotCommittedError:
        return BatchNotCommittedError(
            f"{self._name} is not committed: writing its commit decision took so long that "
            f"{result}. {self._nothing_visible}",
            advice=f"Run the batch again. {advice}",
            topic=self.options.commit_topic,
            transactional_id=self._sink_id,
        )

    def _check_owner(self) -> None:
        """Raise `SinkFencedError` if another run owns the sink id.

        If the transaction that writes the decision times out, the coordinator aborts it and bumps
        the epoch. With transaction version 2, Kafka 4.0.0 bumps the epoch twice. Another run that
        is taking over can cause the same epoch and state. In both cases nothing is committed.
        """
        found = self.client.describe_transactions([self._sink_id]).get(self._sink_id)
        owner = self.results.owner
        if found is None or found.producer == owner:
            return
        bumps = (1, 2) if self.results.version == 2 else (1,)
        after_timeout = [replace(owner, producer_epoch=owner.producer_epoch + n) for n in bumps]
        if found.producer in after_timeout and found.state in _ABORTED:
            return
        raise SinkFencedError(
            f"{self._name} is not committed, because another run with this transactionalId has "
            "fenced this run. None of the rows that this run wrote will be visible.",
            advice="If both queries are meant to run, give each its own transactionalId. "
            "Otherwise stop one of them.",
            transactional_id=self._sink_id,
        )

    def _send_offsets(self, producer: TransactionalProducer) -> None:
        group_id = self.options.group_id
        if group_id is None:
            return
        if self.offsets is None or not self.offsets.offsets:
            log.warning(
                "%s does not commit offsets for group '%s', because the query's checkpoint "
                "contains no offsets of Kafka partitions. If the query does not read from Kafka, "
                "remove the option 'commitOffsets'.",
                self._name,
                group_id,
            )
            return
        producer.send_offsets(group_id, self.offsets.offsets)

    def _unknown(self, why: str) -> OutcomeUnknownError:
        if self.results.task.batch_id is None:
            advice = (
                "Before you run the job again, look up the outcome with "
                f"{operator_command(self._sink_id, '--recover')}. If the rows are committed, "
                "another run would write them a second time."
            )
        else:
            advice = (
                "Start the query again. It will determine the outcome, and then complete the batch "
                "or write it again. Do not write these rows with another tool."
            )
        return OutcomeUnknownError(
            f"The outcome of {self.results.task.batch} with transactionalId '{self._sink_id}' is "
            f"unknown, because {why}. Either all or none of its rows are committed.",
            advice=advice,
            transactional_id=self._sink_id,
        )

    def finish(self, state: QueryState) -> None:
        """Run steps 9 to 11 of the protocol. If a step fails, the next planning run repeats it."""
        with step(Step.COMMIT_ROLL_FORWARD):
            lost = roll_forward(self.client, state, is_new=True)
        if lost:
            raise self._rows_lost(lost)
        is_single_job = self.results.task.batch_id is None
        if not is_single_job:
            self._mark(state)
        with step(Step.COMMIT_SWEEP):
            self._sweep(state.decision)
        if is_single_job:
            # As long as the decision exists, a retry of the job is refused.
            self._mark(state)
        rows = self.results.rows_by_topic
        log.info(
            "%s is committed: %s",
            self._name,
            ", ".join(f"{counted(rows[topic], 'row')} to {topic}" for topic in sorted(rows))
            or "it has no rows",
        )

    def _rows_lost(self, lost: Sequence[Entry]) -> RowsLostError:
        if self.results.task.batch_id is None:
            advice = (
                "A job without 'batchId' cannot rewrite only its lost rows. Write the lost rows "
                "with another tool, and then mark the job as finished with "
                f"{operator_command(self._sink_id, '--recover --accept-loss')}. The next job "
                "without 'batchId' then fails once with EarlierJobCommittedError."
            )
        else:
            advice = "Restart the query. It will run the batch again and write only the lost rows."
        return RowsLostError(
            f"{self._name} is committed, but brokers have aborted some of its transactions. These "
            f"rows are lost: {_listing(lost)}. The transactions timed out or were fenced after "
            "they were verified and before they were committed.",
            advice=f"{advice} If the transactions timed out, increase 'transactionTimeout'.",
            transactional_id=self._sink_id,
        )

    def _mark(self, state: QueryState) -> None:
        """Mark a decision as finished, or delete the decision of a job without `batchId`."""
        topic = self._topic
        try:
            with step(Step.COMMIT_MARK):
                if state.decision.batch_id is None:
                    topic.delete(state)
                else:
                    topic.mark_finished(state)
        except KafkaError as error:
            log.warning(
                "%s is committed, but could not be marked as finished. %s The error was: %s",
                self._name,
                "The next batch will mark it as finished."
                if state.decision.batch_id is not None
                else "The next job without 'batchId' may fail once with EarlierJobCommittedError.",
                error,
            )

    def _sweep(self, decision: Decision) -> None:
        """Abort open transactions of failed attempts. Errors do not fail a committed batch job."""
        try:
            sweep(
                self.client,
                self._sink_id,
                self.results.owner,
                self.results.version,
                generation=self.results.generation,
                spare=frozenset(entry.transactional_id for entry in decision.entries),
                is_decided=True,
            )
        except SinkFencedError as error:
            if self.results.task.batch_id is not None:
                raise
            log.warning(
                "%s is committed. Another run then took over the sink id: %s", self._name, error
            )
        except KafkaError as error:
            log.warning(
                "%s is committed, but the open transactions of failed attempts could not be "
                "aborted. The next batch will abort them. The error was: %s",
                self._name,
                error,
            )


@contextmanager
def _note_decided(results: TaskResults) -> Iterator[None]:
    try:
        yield
    except (RowsLostError, TransactionOutcomeUnknownError):
        raise
    except Exception as error:
        error.add_note(
            f"{sentence(results.task.batch)} is decided despite this error: its rows are already "
            "committed, or will be committed when the next batch with this transactionalId starts. "
            "Do not write them with another tool."
        )
        raise


def _problem(entry: Entry, found: TransactionDescription | None, now_ms: int) -> str | None:
    """Return the reason why a prepared transaction cannot be committed, or None."""
    if found is None:
        return "no longer exists"
    if found.producer != entry.producer:
        return f"is now owned by another producer ({found.producer} instead of {entry.producer})"
    if found.state is not TransactionState.ONGOING:
        return f"is no longer open: its state is {found.state.value}"
    written = frozenset(entry.last_offsets)
    if found.partitions != written:
        listed = [", ".join(map(str, sorted(some))) for some in (found.partitions, written)]
        return f"contains the partitions {listed[0]}, but its task wrote to {listed[1]}"
    began_ms = _began_ms(entry, found)
    left_ms = began_ms + found.timeout_ms - now_ms
    if left_ms < _time_left_ms_min(found):
        return (
            f"is {now_ms - began_ms} ms old and will time out in {left_ms} ms, according to the "
            "clocks of its broker and of this driver"
        )
    return None


def _began_ms(entry: Entry, found: TransactionDescription) -> int:
    return found.started_ms or entry.started_ms


def _time_left_ms_min(found: TransactionDescription) -> int:
    return min(_TIME_LEFT_MS_MIN, found.timeout_ms // _TIME_LEFT_SHARE)


def _listing(entries: Sequence[Entry]) -> str:
    named = [
        f"{counted(entry.totals.row_count, 'row')} of partition {entry.partition} ("
        f"{entry.transactional_id}, last offsets "
        + ", ".join(f"{where}@{offset}" for where, offset in sorted(entry.last_offsets.items()))
        + ")"
        for entry in entries[:_NAMED_MAX]
    ]
    more = f"; and {len(entries) - _NAMED_MAX} more partitions" if entries[_NAMED_MAX:] else ""
    return "; ".join(named) + more
