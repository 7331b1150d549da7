"""After the tasks of a batch: verify, decide, roll forward, mark, sweep.

Purpose: steps 7 to 11 of the protocol, on the driver, under the producer id and epoch of X that
planning got. Invariant: all rows of a batch are decided at once, by one EndTxn, or none; before it
every error leaves the batch undecided, after it every error says that it is decided; only what was
asked and answered so counts as decided. What it must not know: Spark.
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
"""Of a task's transaction, at the look at it: what follows has to be over before its timeout.

Half of it has to be left when the batch is decided.
"""

_TIME_LEFT_SHARE: Final = 4
"""Of a short timeout a quarter is enough, or no batch could ever be committed."""

_NAMED_MAX: Final = 10


def commit(
    client: TransactionalClient,
    options: ExactlyOnce,
    messages: Sequence[WriterCommitMessage | None],
    *,
    offsets: SourceOffsets | None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> None:
    """Commit a batch of which every task has answered; `offsets` are a micro-batch's.

    Raises `BatchNotCommittedError` or `SinkFencedError` for a batch that was not decided and of which nothing
    will be seen, `ReplayMismatchError` for one that was decided with other rows, `OutcomeUnknownError` where
    it cannot be told here, `RowsLostError` where decided rows are gone, and errors of `KafkaError`.
    """
    answers = TaskResults.of(options.transactional_id, messages)
    batch = _Batch(client=client, options=options, answers=answers, offsets=offsets, now_ms=now_ms)
    with step(Step.COMMIT_VERIFY):
        decide_before_ms = batch.verify()
    decision = batch.decision() if answers.replayed_number is None else batch.supplement()
    if decision is None:
        return
    with step(Step.COMMIT_DECIDE):
        batch.decide(decision, before_ms=decide_before_ms)
    with _told_as_decided(answers):
        batch.finish(decision)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A batch of which every task has answered."""

    client: TransactionalClient
    options: ExactlyOnce
    answers: TaskResults
    offsets: SourceOffsets | None
    now_ms: Callable[[], int]

    @property
    def _x(self) -> str:
        return self.options.transactional_id

    @property
    def _name(self) -> str:
        return f"{self.answers.task.batch}, transactionalId '{self._x}',"

    @property
    def _not_seen(self) -> str:
        number = self.answers.replayed_number
        if number is None:
            return "Nothing of it will be seen"
        return f"Of what decision {number} of it has lost, nothing will be seen"

    def verify(self) -> float:
        """Step 7: every prepared transaction is as its task left it, with time to go on.

        The answer is until when they can be decided, in ms of this driver's clock.
        """
        entries = [message.entry for message in self.answers.prepared]
        if not entries:
            return math.inf
        found = self.client.describe_transactions([entry.transactional_id for entry in entries])
        faults = [
            f"'{entry.transactional_id}' (partition {entry.partition}, {entry.totals.row_count} "
            f"rows) {fault}"
            for entry in entries
            if (fault := _fault(entry, found.get(entry.transactional_id), self.now_ms()))
        ]
        if faults:
            more = f"; and {len(faults) - _NAMED_MAX} more" if faults[_NAMED_MAX:] else ""
            raise BatchNotCommittedError(
                f"{self._name} is not committed, since transactions of its tasks are not as they "
                f"were left: {'; '.join(faults[:_NAMED_MAX])}{more}. {self._not_seen}; "
                "run it again. If batches take so long, raise option 'transactionTimeout'; if "
                "another query runs with this transactionalId, give each its own"
            )
        return min(
            _began_ms(entry, one) + one.timeout_ms - _time_left_ms_min(one) // 2
            for entry in entries
            for one in [found[entry.transactional_id]]
        )

    def decision(self) -> Decision | None:
        """What is to be decided of a batch that was not decided before.

        Also of one without rows: it is then known as done, and has offsets to commit. Only a job
        that nobody can repeat leaves nothing that were worth knowing.
        """
        answers = self.answers
        if not answers.prepared and answers.task.batch_id is None:
            log.info("%s has no rows: there is nothing to commit", self._name)
            return None
        return Decision(
            sink_id=self._x,
            query_id=answers.task.query_id,
            number=answers.last_number + 1,
            batch_id=answers.task.batch_id,
            run=answers.task.run,
            offsets_hash=None if self.offsets is None else self.offsets.hash,
            totals=answers.totals,
            entries=tuple(message.entry for message in answers.prepared),
            decided_ms=self.now_ms(),
        )

    def supplement(self) -> Decision | None:
        """What is to be decided anew of a batch that was decided: the rows that it has lost.

        None where it has lost none, so that there is nothing more to do.
        """
        with step(Step.COMMIT_COMPARE):
            state = self._decided_before()
            self._compare(state.decision)
            lost = () if state.is_finished else roll_forward(self.client, state)
            rewritten = {
                message.entry.partition: message.entry for message in self.answers.prepared
            }
            self._check_rewritten(lost, rewritten)
        if not lost:
            log.warning(
                "%s was committed before (decision %d): its %d rows were counted again, and none "
                "was written",
                self._name,
                state.decision.number,
                self.answers.totals.row_count,
            )
            if not state.is_finished:
                self._mark(state.decision)
            return None
        gone = {entry.partition for entry in lost}
        surviving = [entry for entry in state.decision.entries if entry.partition not in gone]
        return replace(
            state.decision,
            number=state.decision.number + 1,
            run=self.answers.task.run,
            entries=tuple(surviving) + tuple(rewritten.values()),
            decided_ms=self.now_ms(),
        )

    def _decided_before(self) -> QueryState:
        topic = CommitTopic(self.client, self.options.commit_topic)
        state = topic.read(self._x).get(self.answers.task.query_id)
        number = self.answers.replayed_number
        if state is None or state.decision.number != number:
            raise SinkFencedError(
                f"{self._name} is a replay of decision {number} in topic "
                f"'{self.options.commit_topic}', and that has "
                f"{'none' if state is None else f'decision {state.decision.number}'} by now: "
                "another run has gone on, or its state was removed. Nothing was written here; "
                "stop this query, or the other one"
            )
        return state

    def _compare(self, decision: Decision) -> None:
        """Whether the rows that come again are those that were decided."""
        differences = []
        if self.answers.totals != decision.totals:
            now = self.answers.totals
            differences.append(
                f"it has {now.row_count} rows with checksum {now.checksum}, and "
                f"{decision.totals.row_count} with checksum {decision.totals.checksum} were "
                "committed"
            )
        if (
            self.offsets is not None
            and decision.offsets_hash is not None
            and self.offsets.hash != decision.offsets_hash
        ):
            differences.append("its sources' offsets in the checkpoint are others than then")
        if not differences:
            return
        what = (
            f"{self._name} was committed before (decision {decision.number}, by run "
            f"{decision.run}), and its replay differs: {'; '.join(differences)}. What was "
            "committed stays as it is"
        )
        if self.options.fail_on_replay_mismatch:
            raise ReplayMismatchError(
                f"{what}, and nothing was added. If the input or the query may differ at a replay "
                "(a query that is not deterministic does), set option 'onReplayMismatch' to "
                "'warn'; if this is another query or a new checkpoint, or a second write of "
                "foreachBatch, take another transactionalId"
            )
        log.warning("%s: rows that have only come now are not in Kafka", what)

    def _check_rewritten(self, lost: Sequence[Entry], rewritten: dict[int, Entry]) -> None:
        """Just what is lost was written again, and as it was."""
        missing = [entry for entry in lost if entry.partition not in rewritten]
        if missing:
            raise RowsLostError(
                f"{self._name} was decided, and has lost {_listing(missing)}; this run has not "
                "written them again. Run it again: the next start looks what is lost"
            )
        kept = rewritten.keys() - {entry.partition for entry in lost}
        if kept:
            raise BatchNotCommittedError(
                f"{self._name} was decided, and this run has written partitions "
                f"{', '.join(map(str, sorted(kept)))} again, which are not lost by now: what it "
                "wrote will not be seen. Run it again"
            )
        for entry in lost:
            if rewritten[entry.partition].totals != entry.totals:
                raise ReplayMismatchError(
                    f"{self._name} has lost {_listing([entry])}, and other rows were written for "
                    "them, which will not be seen. Write the lost ones by other means, and then "
                    f"call the batch settled with {operator_command(self._x, '--recover --accept-loss')}"
                )

    def decide(self, decision: Decision, *, before_ms: float) -> None:
        """Step 8. When this returns the batch is committed, whatever happens.

        It is not even asked for once `before_ms` is past: a decision whose rows time out is lost.
        """
        self._write_decision(decision)
        if self.now_ms() >= before_ms:
            raise BatchNotCommittedError(
                f"{self._name} is not committed: writing down what is to be committed took so long "
                "that the transactions of its tasks are about to time out. "
                f"{self._not_seen}; run it again. If that comes again, raise option "
                f"'transactionTimeout', or see what slows topic '{self.options.commit_topic}' down"
            )
        end = EndTransaction(
            transactional_id=self._x,
            producer=self.answers.owner,
            is_commit=True,
            version=self.answers.version,
        )
        try:
            answer = self.client.end_transactions([end]).get(self._x)
        except KafkaError as error:
            raise self._unknown(f"the request failed ({error})") from error
        if answer is not ErrorCode.none:
            said = "nothing" if answer is None else answer.name.upper()
            raise self._unknown(f"the brokers answered {said}")
        log.info(
            "%s is decided (decision %d): %d rows in %d transactions are committed, whatever "
            "happens from now on",
            self._name,
            decision.number,
            decision.totals.row_count,
            len(decision.entries),
        )

    def _write_decision(self, decision: Decision) -> None:
        topic = CommitTopic(self.client, self.options.commit_topic)
        records = to_records(decision, chunk_bytes_max=topic.chunk_bytes_max)
        producer = self.client.transactional_producer(
            self._x, self.answers.owner, self.answers.version
        )
        try:
            producer.send(topic.rows(records))
            self._send_offsets(producer)
            producer.flush()
        except BaseException as error:
            producer.abort()
            if isinstance(error, ProducerFencedError):
                raise SinkFencedError(
                    f"{self._name} is not committed: another run of this transactionalId has "
                    "taken over. Nothing that this run wrote for it will be seen. If both are "
                    "meant to run, give each its own transactionalId; else this one is to stop"
                ) from error
            raise
        producer.close()

    def _send_offsets(self, producer: TransactionalProducer) -> None:
        group_id = self.options.group_id
        if group_id is None:
            return
        if self.offsets is None or not self.offsets.offsets:
            log.warning(
                "%s has no offsets to commit to group '%s': its checkpoint names no partition of "
                "Kafka. If the query reads from no Kafka, remove option 'commitOffsets'",
                self._name,
                group_id,
            )
            return
        producer.send_offsets(group_id, self.offsets.offsets)

    def _unknown(self, why: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"whether {self._name} is committed is not known here: it was asked for, and {why}. "
            "Either all of it is or nothing; the next start of the query finds out, finishes it "
            "or writes it again. Do not write these rows by other means"
        )

    def finish(self, decision: Decision) -> None:
        """Steps 9 to 11, all of which the next planning would make up for."""
        with step(Step.COMMIT_ROLL_FORWARD):
            lost = roll_forward(self.client, QueryState(decision=decision))
        if lost:
            raise RowsLostError(self._lost(lost))
        self._mark(decision)
        with step(Step.COMMIT_SWEEP):
            self._sweep(decision)
        rows = self.answers.rows_by_topic
        log.info(
            "%s is committed: %s",
            self._name,
            ", ".join(f"{count} rows to {topic}" for topic, count in sorted(rows.items()))
            or "it has no rows",
        )

    def _lost(self, lost: Sequence[Entry]) -> str:
        if self.answers.task.batch_id is None:
            then = (
                "A job without 'batchId' cannot be repeated in part: write these rows again by "
                "other means, and then call it settled with "
                f"{operator_command(self._x, '--recover --accept-loss')}"
            )
        else:
            then = "Run it again (restart the query): that writes the lost rows alone"
        return (
            f"{self._name} is committed, but the brokers have aborted, and so lost, "
            f"{_listing(lost)}: their transactions timed out or were fenced between the last look "
            f"at them and their commit. {then}. If it was the timeout, raise 'transactionTimeout'"
        )

    def _mark(self, decision: Decision) -> None:
        topic = CommitTopic(self.client, self.options.commit_topic)
        try:
            with step(Step.COMMIT_MARK):
                topic.mark_finished(decision)
        except KafkaError as error:
            log.warning(
                "%s is committed, but could not be marked as finished, which the next start of a "
                "batch makes up for: %s",
                self._name,
                error,
            )

    def _sweep(self, decision: Decision) -> None:
        """A job that cannot be repeated must not fail any more; a fenced query has to stop."""
        try:
            sweep(
                self.client,
                self._x,
                self.answers.owner,
                run=self.answers.task.run,
                spare=frozenset(entry.transactional_id for entry in decision.entries),
                two_phase_commit=self.options.two_phase_commit,
                decided_with=self.answers.version,
            )
        except SinkFencedError as error:
            if self.answers.task.batch_id is not None:
                raise
            log.warning("%s is committed; meanwhile another has taken over: %s", self._name, error)
        except KafkaError as error:
            log.warning(
                "%s is committed, but what attempts without success left open could not be "
                "ended, which the next start of a batch makes up for: %s",
                self._name,
                error,
            )


@contextmanager
def _told_as_decided(answers: TaskResults) -> Iterator[None]:
    try:
        yield
    except (RowsLostError, TransactionOutcomeUnknownError):
        raise
    except Exception as error:
        error.add_note(
            f"{answers.task.batch} is decided all the same: its rows are committed, or will be "
            "when the next batch is begun under its transactionalId. Do not write them again by "
            "other means"
        )
        raise


def _fault(entry: Entry, found: TransactionDescription | None, now_ms: int) -> str | None:
    """What speaks against committing a prepared transaction, if anything."""
    if found is None:
        return "is not known to the brokers any more"
    if found.producer != entry.producer:
        return f"was taken by another ({found.producer}, and it was {entry.producer})"
    if found.state is not TransactionState.ONGOING:
        return f"is not open any more, but {found.state.value}"
    wrote_to = frozenset(entry.last_offsets)
    if found.partitions != wrote_to:
        listed = [", ".join(map(str, sorted(some))) for some in (found.partitions, wrote_to)]
        return f"is of the partitions {listed[0]}, and its task has written to {listed[1]}"
    began_ms = _began_ms(entry, found)
    left_ms = began_ms + found.timeout_ms - now_ms
    if left_ms < _time_left_ms_min(found):
        return (
            f"is {now_ms - began_ms} ms old and will time out in {left_ms} ms, by the clocks of "
            "its broker and this driver, which is too soon to begin"
        )
    return None


def _began_ms(entry: Entry, found: TransactionDescription) -> int:
    return found.started_ms or entry.started_ms


def _time_left_ms_min(found: TransactionDescription) -> int:
    return min(_TIME_LEFT_MS_MIN, found.timeout_ms // _TIME_LEFT_SHARE)


def _listing(entries: Sequence[Entry]) -> str:
    named = [
        f"{entry.totals.row_count} rows of partition {entry.partition} ("
        f"{entry.transactional_id}, last offsets "
        + ", ".join(f"{where}@{offset}" for where, offset in sorted(entry.last_offsets.items()))
        + ")"
        for entry in entries[:_NAMED_MAX]
    ]
    more = f" and those of {len(entries) - _NAMED_MAX} more" if entries[_NAMED_MAX:] else ""
    return "; ".join(named) + more
