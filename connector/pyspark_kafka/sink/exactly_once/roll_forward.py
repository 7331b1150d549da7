"""Commit what was decided: every task's transaction, and where one refuses, see what became of it.

Purpose: step 9 of the protocol, a ladder of outcomes. Invariant: an entry is called lost only where
brokers say that its very transaction was aborted, and done only where they say that it was
committed; all else is an error that names it. RetryLoop again, by whomever, does no harm: what has
ended cannot be ended otherwise. What it must not know: who asks, the commit topic.

    EndTxn(commit) of every entry      NONE: done
    (a) the decision is finished       done: nothing is even asked
    (b) the coordinator has the very   CompleteCommit: done. CompleteAbort: lost. PrepareCommit, or
        transaction, under the epoch   still open: ask again
        that its end leaves
    (c) the log has the marker that    commit: done. abort: lost
        ended it
    (d) neither                        OutcomeUnknownError
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import (
    AccessError,
    KafkaError,
    OutcomeUnknownError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionResult,
    TransactionState,
)
from pyspark_kafka.sink.exactly_once.decisions import Decision, Entry, QueryState
from pyspark_kafka.sink.exactly_once.operator_command import operator_command

log = logging.getLogger(__name__)

_PAUSES_S: Final = (0.1, 0.4, 1.6, 3.2)
"""Between rounds of the ladder. The client itself has waited before for what mostly passes."""
_NAMED_MAX: Final = 10


class Outcome(Enum):
    """What became of a decided transaction, or is to be found out yet."""

    DONE = "done"
    LOST = "lost"
    AGAIN = "not known yet"
    UNKNOWN = "unknown"


class TransactionOutcomeUnknownError(OutcomeUnknownError):
    """What became of an entry cannot be found out, which stops the query of its decision alone."""


class TransactionOutcomeExpiredError(TransactionOutcomeUnknownError):
    """It is written nowhere any more: asking again will not tell."""


_BY_STATE: Final = {
    TransactionState.COMPLETE_COMMIT: Outcome.DONE,
    TransactionState.COMPLETE_ABORT: Outcome.LOST,
    TransactionState.PREPARE_ABORT: Outcome.LOST,
    TransactionState.PREPARE_COMMIT: Outcome.AGAIN,
}
"""Of the very transaction. What is prepared can only end so."""

ENDING: Final = frozenset(
    {
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)
"""Markers are on their way."""

_BY_VERDICT: Final = {TransactionResult.COMMIT: Outcome.DONE, TransactionResult.ABORT: Outcome.LOST}


def roll_forward(
    client: TransactionalClient,
    state: QueryState,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[Entry, ...]:
    """Commit every transaction of a decision; the answer is the entries that are lost.

    Raises `OutcomeUnknownError` for entries of which it cannot be told now, and `TransactionOutcomeUnknownError` for those of
    which it cannot be found out, naming them.
    """
    if state.is_finished:
        return ()
    decision = state.decision
    ladder = _Committer(client)
    try:
        ladder.climb(decision.entries)
        for pause_s in _PAUSES_S:
            if not (left := ladder.where(decision, Outcome.AGAIN)):
                break
            pause(pause_s)
            ladder.climb(left)
    except KafkaError as error:
        raise OutcomeUnknownError(
            f"{_name(decision)} stands, but committing its transactions was interrupted: {error}. "
            f"{_GOES_ON}"
        ) from error
    if gone := ladder.where(decision, Outcome.UNKNOWN):
        raise (_may_not_be_told if ladder.may_not_read else _forgotten)(
            decision, gone, ladder.refusals
        )
    if left := ladder.where(decision, Outcome.AGAIN):
        raise OutcomeUnknownError(
            f"{_name(decision)} stands, but the brokers have not said yet that these are "
            f"committed: {_listing(left)}. {_GOES_ON}"
        )
    lost = ladder.where(decision, Outcome.LOST)
    if lost:
        log.error(
            "%s has lost rows, which brokers have aborted: %s",
            _name(decision),
            _listing(lost),
            extra={"lost_transactional_ids": tuple(entry.transactional_id for entry in lost)},
        )
    return lost


def look(
    client: TransactionalClient,
    entries: Iterable[Entry],
    described: Mapping[str, TransactionDescription],
) -> Mapping[str, Outcome]:
    """What became of transactions, by id; asks for the end of none, so that `AGAIN` may be open."""
    ladder = _Committer(client)
    return {
        entry.transactional_id: ladder.look(entry, described.get(entry.transactional_id))
        for entry in entries
    }


@dataclass(slots=True)
class _Committer:
    """What is known so far, by transactional id; `refusals` are of partitions not to be read.

    `may_not_read` says that one of these is for want of a right.
    """

    client: TransactionalClient
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    may_not_read: bool = False

    def where(self, decision: Decision, outcome: Outcome) -> tuple[Entry, ...]:
        found = self.outcomes
        return tuple(e for e in decision.entries if found[e.transactional_id] is outcome)

    def climb(self, entries: Sequence[Entry]) -> None:
        answers = self.client.end_transactions([_commit(entry) for entry in entries])
        refused = []
        for entry in entries:
            answer = answers.get(entry.transactional_id)
            if answer is ErrorCode.none:
                self.outcomes[entry.transactional_id] = Outcome.DONE
            else:
                refused.append(entry)
                log.info("%s answered %s to its commit", entry.transactional_id, answer)
        found = self.client.describe_transactions([e.transactional_id for e in refused])
        for entry in refused:
            outcome = self.look(entry, found.get(entry.transactional_id))
            self.outcomes[entry.transactional_id] = outcome
            log.info("%s is %s", entry.transactional_id, outcome.value)

    def look(self, entry: Entry, found: TransactionDescription | None) -> Outcome:
        outcome = _by_coordinator(entry, found)
        if outcome is Outcome.UNKNOWN:
            outcome = self._by_log(entry)
        if outcome is Outcome.UNKNOWN and found is not None and found.state in ENDING:
            return Outcome.AGAIN
        return outcome

    def _by_log(self, entry: Entry) -> Outcome:
        """By whichever partition has the marker; all partitions of a transaction have the same."""
        for partition in sorted(entry.last_offsets):
            try:
                verdict = self._verdict(entry, partition)
            except (AccessError, UnknownTopicOrPartitionError) as error:
                self.refusals.append(f"{partition}: {error}")
                self.may_not_read |= isinstance(error, AccessError)
                continue
            if verdict is not None:
                return _BY_VERDICT[verdict]
        return Outcome.UNKNOWN

    def _verdict(self, entry: Entry, partition: TopicPartition) -> TransactionResult | None:
        last_offset = entry.last_offsets[partition]
        ends = self.client.list_offsets({partition: LATEST}, IsolationLevel.READ_UNCOMMITTED)
        end_offset = ends[partition]
        if end_offset is None or end_offset <= last_offset:
            return None
        return _first_verdict(
            entry, last_offset, self.client.read_log(partition, last_offset, end_offset)
        )


def _first_verdict(
    entry: Entry, last_offset: int, batches: Iterable[LogBatch]
) -> TransactionResult | None:
    """Of the first marker behind the entry's last record, if that can only be its own.

    It is while the records themselves are there, since brokers drop them first; or if the epoch is
    one that only the entry's end has.
    """
    ending = _ended(entry)
    has_records = False
    for batch in batches:
        if batch.producer.producer_id != entry.producer.producer_id:
            continue
        if batch.ends_with is not None:
            return batch.ends_with if has_records or batch.producer == ending else None
        if batch.producer == entry.producer and batch.base_offset <= last_offset:
            has_records = True
    return None


def _by_coordinator(entry: Entry, found: TransactionDescription | None) -> Outcome:
    if found is None:
        return Outcome.UNKNOWN
    if found.producer == entry.producer and found.state is TransactionState.ONGOING:
        return Outcome.AGAIN
    if found.producer == _ended(entry):
        return _BY_STATE.get(found.state, Outcome.UNKNOWN)
    return Outcome.UNKNOWN


def _ended(entry: Entry) -> ProducerIdAndEpoch:
    """Whom the coordinator and the markers name once the transaction is ended as asked.

    Version 2 ends with the next epoch; with version 1 that could be the next owner's already.
    """
    bump = 1 if entry.version == 2 else 0
    return ProducerIdAndEpoch(
        producer_id=entry.producer.producer_id,
        producer_epoch=entry.producer.producer_epoch + bump,
    )


def _commit(entry: Entry) -> EndTransaction:
    return EndTransaction(
        transactional_id=entry.transactional_id,
        producer=entry.producer,
        is_commit=True,
        version=entry.version,
    )


# --- what is told ---

_GOES_ON: Final = "Nothing is lost by that: the next start of the query goes on with it"


def _may_not_be_told(
    decision: Decision, entries: Sequence[Entry], refusals: Sequence[str]
) -> TransactionOutcomeUnknownError:
    return TransactionOutcomeUnknownError(
        f"{_name(decision)} stands, but whether these transactions of it were committed or aborted "
        f"cannot be told: {_listing(entries)}. Their coordinators have gone on, and this principal "
        f"may not read the markers that ended them: {'; '.join(refusals[:_NAMED_MAX])}. Allow it "
        f"READ on these topics. {_GOES_ON}"
    )


def _forgotten(
    decision: Decision, entries: Sequence[Entry], refusals: Sequence[str]
) -> TransactionOutcomeExpiredError:
    refused = f" Not read: {'; '.join(refusals[:_NAMED_MAX])}." if refusals else ""
    return TransactionOutcomeExpiredError(
        f"{_name(decision)} stands, but whether these transactions of it were committed or aborted "
        f"cannot be told any more: {_listing(entries)}. Their coordinators have gone on, and the "
        f"markers that ended them are gone from the logs (retention).{refused} Nothing else was "
        "touched. Look whether the rows are there for a read_committed reader, at and before these "
        "offsets, write by hand what is not, and then have the decision settled with "
        f"{operator_command(decision.sink_id, '--recover --accept-loss')}"
    )


def _name(decision: Decision) -> str:
    batch = "" if decision.batch_id is None else f" (batch {decision.batch_id})"
    return (
        f"decision {decision.number} of query {decision.query_id}{batch} under transactionalId "
        f"'{decision.sink_id}'"
    )


def _listing(entries: Sequence[Entry]) -> str:
    named = [
        f"'{entry.transactional_id}' with {entry.totals.row_count} rows up to "
        + ", ".join(f"{p} offset {offset}" for p, offset in sorted(entry.last_offsets.items()))
        for entry in entries[:_NAMED_MAX]
    ]
    more = f"; and {len(entries) - _NAMED_MAX} more" if entries[_NAMED_MAX:] else ""
    return "; ".join(named) + more
