"""Commits the transactions of a decision and determines their outcomes.

Runs step 9 of the protocol. Invariant: an entry is lost only if the brokers report that its
transaction was aborted. An entry is done only if the brokers report that its transaction was
committed. In every other case, `roll_forward` raises an error that names the entry. Any process can
safely repeat this step, because the outcome of a transaction never changes.

    The outcome of an entry is the first of these that applies:
    (a) the decision is finished       done, without a request
    (b) EndTxn(commit) returns NONE    done
    (c) the coordinator stores the     PrepareCommit, CompleteCommit: done. PrepareAbort,
        producer id and epoch that     CompleteAbort: lost
        the transaction has after
        it ends
    (d) the transaction is open        EndTxn(commit) is sent again
    (e) the log has the marker that    commit: done. abort: lost
        ended it
    (f) all other cases                OutcomeUnknownError

If another process has written the decision, `roll_forward` sends DescribeTransactions before
EndTxn. A transaction in state PrepareCommit is already committed, but EndTxn would wait for its
markers. These markers cannot be written while a partition of the transaction is offline.
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
    counted,
    reason_of,
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

_BACKOFFS_S: Final = (0.1, 0.4, 1.6, 3.2)
"""Backoffs between attempts. The client has already retried errors that are usually transient."""
_NAMED_MAX: Final = 10


class Outcome(Enum):
    """The outcome of a decided transaction. `AGAIN` means that the commit must be retried."""

    DONE = "done"
    LOST = "lost"
    AGAIN = "not known yet"
    UNKNOWN = "unknown"


class TransactionOutcomeUnknownError(OutcomeUnknownError):
    """The outcome of a transaction cannot be determined.

    Only the query to which the transaction belongs must stop.
    """


class TransactionOutcomeExpiredError(TransactionOutcomeUnknownError):
    """The outcome of a transaction is no longer stored anywhere, so a retry cannot succeed."""


_BY_STATE: Final = {
    TransactionState.COMPLETE_COMMIT: Outcome.DONE,
    TransactionState.COMPLETE_ABORT: Outcome.LOST,
    TransactionState.PREPARE_ABORT: Outcome.LOST,
    TransactionState.PREPARE_COMMIT: Outcome.DONE,
}
"""The outcome for each state of the transaction. A prepared commit or abort always completes."""

ENDING: Final = frozenset(
    {
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)
"""The states of a transaction while its markers are being written."""

_BY_RESULT: Final = {TransactionResult.COMMIT: Outcome.DONE, TransactionResult.ABORT: Outcome.LOST}


def roll_forward(
    client: TransactionalClient,
    state: QueryState,
    *,
    is_new: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Entry, ...]:
    """Commit every transaction of a decision, and return the entries that are lost.

    `is_new` is set if this process has just written the decision and its transactions are still
    open. Raises `OutcomeUnknownError` if it is not known yet whether transactions are committed,
    and `TransactionOutcomeUnknownError` if the outcome of transactions cannot be determined. The
    errors name the entries.
    """
    if state.is_finished:
        return ()
    decision = state.decision
    committer = _Committer(client)
    try:
        if not is_new:
            committer.look_up(decision.entries)
        committer.commit(decision.entries if is_new else committer.to_commit(decision))
        for backoff_s in _BACKOFFS_S:
            if not (left := committer.to_commit(decision)):
                break
            sleep(backoff_s)
            committer.commit(left)
    except KafkaError as error:
        raise OutcomeUnknownError(
            f"{_name(decision)} is committed, but committing its transactions failed. "
            f"{reason_of(error)}. {_NOTHING_LOST}",
            advice=f"{error.advice} {_advice_to_continue(decision)}",
            transactional_id=decision.sink_id,
        ) from error
    if unknown := committer.entries_with(decision, Outcome.UNKNOWN):
        error_for = _unreadable_markers if committer.lacks_read else _expired
        raise error_for(decision, unknown, committer.unreadable)
    if left := committer.to_commit(decision):
        raise OutcomeUnknownError(
            f"{_name(decision)} is committed, but the brokers have not yet confirmed the commit of "
            f"these transactions: {listing(left)}. {_NOTHING_LOST}",
            advice=_advice_to_continue(decision),
            transactional_id=decision.sink_id,
        )
    lost = committer.entries_with(decision, Outcome.LOST)
    if lost:
        log.error(
            "%s has lost rows, because the brokers aborted these transactions: %s",
            _name(decision),
            listing(lost),
            extra={"lost_transactional_ids": tuple(entry.transactional_id for entry in lost)},
        )
    return lost


def look_up_outcomes(
    client: TransactionalClient,
    entries: Iterable[Entry],
    described: Mapping[str, TransactionDescription],
) -> Mapping[str, Outcome]:
    """Return the outcomes of transactions by transactional id, without ending any transaction.

    A transaction with the outcome `AGAIN` may still be open.
    """
    committer = _Committer(client)
    return {
        entry.transactional_id: committer.outcome_of(entry, described.get(entry.transactional_id))
        for entry in entries
    }


@dataclass(slots=True)
class _Committer:
    """Commits transactions and collects their outcomes, keyed by transactional id.

    `unreadable` lists partitions that cannot be read, with the reasons. `lacks_read` is set if the
    principal lacks READ on the topic of one of these partitions.
    """

    client: TransactionalClient
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    lacks_read: bool = False

    def entries_with(self, decision: Decision, outcome: Outcome) -> tuple[Entry, ...]:
        found = self.outcomes
        return tuple(e for e in decision.entries if found[e.transactional_id] is outcome)

    def to_commit(self, decision: Decision) -> tuple[Entry, ...]:
        return self.entries_with(decision, Outcome.AGAIN)

    def commit(self, entries: Sequence[Entry]) -> None:
        error_codes = self.client.end_transactions([_commit(entry) for entry in entries])
        refused = []
        for entry in entries:
            error_code = error_codes.get(entry.transactional_id)
            if error_code is ErrorCode.none:
                self.outcomes[entry.transactional_id] = Outcome.DONE
            else:
                refused.append(entry)
                log.info("EndTxn for '%s' returned %s", entry.transactional_id, error_code)
        self.look_up(refused)

    def look_up(self, entries: Sequence[Entry]) -> None:
        found = self.client.describe_transactions([e.transactional_id for e in entries])
        for entry in entries:
            outcome = self.outcome_of(entry, found.get(entry.transactional_id))
            self.outcomes[entry.transactional_id] = outcome
            log.info(
                "The outcome of transaction '%s' is: %s", entry.transactional_id, outcome.value
            )

    def outcome_of(self, entry: Entry, found: TransactionDescription | None) -> Outcome:
        outcome = _outcome_by_coordinator(entry, found)
        if outcome is Outcome.UNKNOWN:
            outcome = self._outcome_by_log(entry)
        if outcome is Outcome.UNKNOWN and found is not None and found.state in ENDING:
            return Outcome.AGAIN
        return outcome

    def _outcome_by_log(self, entry: Entry) -> Outcome:
        """Return the outcome according to the first transaction marker that is found.

        The markers of a transaction have the same result in all partitions.
        """
        for partition in sorted(entry.last_offsets):
            try:
                result = self._result(entry, partition)
            except (AccessError, UnknownTopicOrPartitionError) as error:
                self.unreadable.append(f"{partition} ({reason_of(error)})")
                self.lacks_read |= isinstance(error, AccessError)
                continue
            if result is not None:
                return _BY_RESULT[result]
        return Outcome.UNKNOWN

    def _result(self, entry: Entry, partition: TopicPartition) -> TransactionResult | None:
        last_offset = entry.last_offsets[partition]
        ends = self.client.list_offsets({partition: LATEST}, IsolationLevel.READ_UNCOMMITTED)
        end_offset = ends[partition]
        if end_offset is None or end_offset <= last_offset:
            return None
        return _first_result(
            entry, last_offset, self.client.read_log(partition, last_offset, end_offset)
        )


def _first_result(
    entry: Entry, last_offset: int, batches: Iterable[LogBatch]
) -> TransactionResult | None:
    """Return the result of the first marker after the entry's last record, or None.

    The result is None if the marker may belong to another transaction. The marker must belong to
    the entry's transaction in two cases: the log still contains records of the entry, or the epoch
    of the marker can only result from the end of this transaction. Brokers delete the records of a
    transaction before its marker.
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


def _outcome_by_coordinator(entry: Entry, found: TransactionDescription | None) -> Outcome:
    if found is None:
        return Outcome.UNKNOWN
    if found.producer == entry.producer and found.state is TransactionState.ONGOING:
        return Outcome.AGAIN
    if found.producer == _ended(entry):
        return _BY_STATE.get(found.state, Outcome.UNKNOWN)
    return Outcome.UNKNOWN


def _ended(entry: Entry) -> ProducerIdAndEpoch:
    """Return the producer id and epoch that the transaction has after it ends.

    The coordinator stores these values, and the markers contain them.

    Transaction version 2 bumps the epoch at the end of a transaction. With version 1, the epoch
    does not change when the transaction ends. In that case, an incremented epoch can belong to the
    next producer.
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


# --- errors ---

_NOTHING_LOST: Final = "This error does not cause any rows to be lost."


def _advice_to_continue(decision: Decision) -> str:
    """Return advice on how to complete a committed batch.

    A job without `batchId` must not be run again.
    """
    if decision.batch_id is not None:
        return "Start the query again. It will first commit the remaining transactions."
    return (
        "Do not run the job again, because that would write its rows twice. Complete it with "
        f"{operator_command(decision.sink_id, '--recover')}."
    )


def _unreadable_markers(
    decision: Decision, entries: Sequence[Entry], unreadable: Sequence[str]
) -> TransactionOutcomeUnknownError:
    return TransactionOutcomeUnknownError(
        f"{_name(decision)} is committed, but it is unknown whether some of its transactions were "
        f"committed or aborted: {listing(entries)}. Their transactional ids have been used for "
        "later transactions, and the principal is not allowed to read the markers in these "
        f"partitions: {'; '.join(unreadable[:_NAMED_MAX])}. {_NOTHING_LOST}",
        advice=f"Grant the principal READ on these topics. {_advice_to_continue(decision)}",
        transactional_id=decision.sink_id,
    )


def _expired(
    decision: Decision, entries: Sequence[Entry], unreadable: Sequence[str]
) -> TransactionOutcomeExpiredError:
    not_read = (
        f" Some partitions cannot be read: {'; '.join(unreadable[:_NAMED_MAX])}."
        if unreadable
        else ""
    )
    return TransactionOutcomeExpiredError(
        f"{_name(decision)} is committed, but it can no longer be determined whether some of its "
        f"transactions were committed or aborted: {listing(entries)}. The transaction "
        "coordinators no longer have these transactions, and retention has deleted their "
        f"markers.{not_read} Nothing was changed.",
        advice="Read the topics with isolation.level=read_committed up to these offsets, and write "
        "missing rows with another tool. Then mark the commit decision as finished with "
        f"{operator_command(decision.sink_id, '--recover --accept-loss')}.",
        transactional_id=decision.sink_id,
    )


def _name(decision: Decision) -> str:
    batch = "" if decision.batch_id is None else f" (batch {decision.batch_id})"
    return (
        f"Commit decision {decision.number} of query {decision.query_id}{batch} with "
        f"transactionalId '{decision.sink_id}'"
    )


def listing(entries: Sequence[Entry]) -> str:
    """Return the transactions with their row counts and last offsets, as text for messages."""
    named = [
        f"'{entry.transactional_id}' with {counted(entry.totals.row_count, 'row')} up to "
        + ", ".join(f"{p} offset {offset}" for p, offset in sorted(entry.last_offsets.items()))
        for entry in entries[:_NAMED_MAX]
    ]
    more = f"; and {len(entries) - _NAMED_MAX} more" if entries[_NAMED_MAX:] else ""
    return "; ".join(named) + more
