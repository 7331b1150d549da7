"""Determines the state of a sink with read-only requests.

Returns a frozen `Report` with decisions, open transactions, the sink's owner and the partitions in
which read_committed consumers are blocked.
Invariant: this module only reads from Kafka, so a report can be made at any time, even while the
query is running. The report is a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import AccessError, AuthorizationError, CommitTopicError, reason_of
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionState,
)
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic, SinkNotRegisteredError
from pyspark_kafka.sink.exactly_once.decisions import Decision, Entry, QueryState, SinkState
from pyspark_kafka.sink.exactly_once.names import is_task_id_of, prefix, unused_task_id
from pyspark_kafka.sink.exactly_once.roll_forward import ENDING, Outcome, look_up_outcomes

_OPEN: Final = ENDING | {TransactionState.ONGOING}
_BACKOFFS_S: Final = (0.05, 0.2, 0.8, 3.2)
"""Backoffs between requests while the transaction of the sink id is ending."""
_FIRST_WINDOW: Final = 1_000
_SEARCHED_MAX: Final = 1_000_000
"""The maximum number of offsets per partition to search for a transaction's first row."""


class EntryState(Enum):
    """The state of a decided transaction."""

    PREPARED = "prepared"
    """The transaction is open, contains all rows, and can be committed."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"
    """The outcome is no longer recorded by the transaction coordinator or in the log."""


_ENTRY_STATES: Final = {
    Outcome.DONE: EntryState.COMMITTED,
    Outcome.AGAIN: EntryState.COMMITTING,
    Outcome.LOST: EntryState.LOST,
    Outcome.UNKNOWN: EntryState.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """The offsets of a transaction's rows. `first_offset` is None if it cannot be determined."""

    partition: TopicPartition
    first_offset: int | None
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryReport:
    """The state of a decided transaction.

    `rows` is empty unless the transaction is lost or its outcome is unknown.
    """

    entry: Entry
    state: EntryState
    rows: tuple[RowRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReport:
    """The last decision of a query.

    `entries` is empty for a finished decision, because all of its transactions are committed.
    """

    decision: Decision
    is_finished: bool
    entries: tuple[EntryReport, ...]

    def in_state(self, *states: EntryState) -> tuple[EntryReport, ...]:
        """Return the transactions that have one of these states."""
        return tuple(entry for entry in self.entries if entry.state in states)

    @property
    def needs_operator(self) -> tuple[EntryReport, ...]:
        """Return transactions that were aborted, or whose outcome can no longer be determined."""
        return self.in_state(EntryState.LOST, EntryState.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A task's transaction that is ongoing or is being completed.

    `is_decided` is set if an unfinished decision contains the transaction.
    """

    description: TransactionDescription
    is_decided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition in which read_committed consumers are blocked at `last_stable_offset`.

    `holder` is the producer of the open transaction, or None if the producer is not found in the
    log. `transactional_id` and `started_ms` are set if the transaction belongs to this sink.
    """

    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    holder: ProducerIdAndEpoch | None
    transactional_id: str | None
    started_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of a sink.

    `owner` is None if the transaction coordinator does not know the sink id.
    """

    sink_id: str
    commit_topic: str
    taken_ms: int
    owner: TransactionDescription | None
    is_registered: bool
    decisions: tuple[DecisionReport, ...]
    damage: CommitTopicError | None
    """The reason why the decisions are unknown, or None."""
    open_transactions: tuple[OpenTransaction, ...]
    held: tuple[HeldPartition, ...]
    held_is_unknown: str | None
    """The reason why the held partitions are unknown, or None."""
    known_ids: int

    @property
    def is_unknown(self) -> bool:
        """Return whether the cluster has neither transactional ids nor records of the sink."""
        return not (self.owner or self.known_ids or self.is_registered)

    @property
    def unfinished(self) -> tuple[DecisionReport, ...]:
        return tuple(decision for decision in self.decisions if not decision.is_finished)

    @property
    def leftover(self) -> tuple[OpenTransaction, ...]:
        """Return the open, undecided transactions of a running or failed batch."""
        return tuple(
            one
            for one in self.open_transactions
            if not one.is_decided and one.description.state is TransactionState.ONGOING
        )

    @property
    def needs_operator(self) -> bool:
        """Return whether rows of a decided batch are lost or may be lost."""
        return any(decision.needs_operator for decision in self.unfinished)


def is_open(state: TransactionState) -> bool:
    """Return whether a transaction has begun and has not completed."""
    return state in _OPEN


def examine(
    client: TransactionalClient,
    sink_id: str,
    commit_topic: str,
    *,
    now_ms: int,
    sleep: Callable[[float], None] = time.sleep,
) -> Report:
    """Return the state of the sink, or raise a subclass of `KafkaError`.

    Open transactions are listed before decisions are read, so a transaction that is reported as
    undecided was undecided when it was listed. Brokers respond to EndTxn before they write the
    transaction markers. Therefore, the transaction of the sink id can be committed before its
    decision can be read from the commit topic. In this case, the function waits a few seconds for
    the marker.
    """
    owner = _owner(client, sink_id)
    for backoff_s in _BACKOFFS_S:
        if owner is None or owner.state not in ENDING:
            break
        sleep(backoff_s)
        owner = _owner(client, sink_id)
    listed = [
        one.transactional_id
        for one in client.list_transactions(prefix(sink_id))
        if is_task_id_of(one.transactional_id, sink_id)
    ]
    found, damage = _read(client, sink_id, commit_topic)
    states = {} if found is None else found.queries
    decided = {
        entry.transactional_id: entry
        for state in states.values()
        if not state.is_finished
        for entry in state.decision.entries
    }
    described = client.describe_transactions({*listed, *decided})
    tasks = sorted(described.values(), key=lambda one: one.transactional_id)
    everybody = [*tasks, *([owner] if owner else [])]
    held, held_is_unknown = _held(client, [one for one in everybody if is_open(one.state)])
    return Report(
        sink_id=sink_id,
        commit_topic=commit_topic,
        taken_ms=now_ms,
        owner=owner,
        is_registered=not isinstance(damage, SinkNotRegisteredError),
        decisions=tuple(_decision(client, state) for _, state in sorted(states.items())),
        damage=damage,
        open_transactions=tuple(
            OpenTransaction(description=one, is_decided=_is_of(decided, one))
            for one in tasks
            if is_open(one.state)
        ),
        held=held,
        held_is_unknown=held_is_unknown,
        known_ids=len(tasks),
    )


def _owner(client: TransactionalClient, sink_id: str) -> TransactionDescription | None:
    """Describe the sink's transactional id.

    The DescribeTransactions request also contains a transactional id that no task uses. The request
    therefore fails if the principal lacks DESCRIBE on the transactional ids of tasks, which
    ListTransactions would silently omit.
    """
    try:
        return client.describe_transactions([sink_id, unused_task_id(sink_id)]).get(sink_id)
    except AuthorizationError as error:
        raise AuthorizationError(
            f"The principal is not allowed to describe transactionalId '{sink_id}'. "
            f"{reason_of(error)}.",
            advice="Grant the principal DESCRIBE on the transactional ids with the prefix "
            f"'{sink_id}'. --recover and --forget also need WRITE.",
            transactional_id=sink_id,
        ) from error


def _read(
    client: TransactionalClient, sink_id: str, commit_topic: str
) -> tuple[SinkState | None, CommitTopicError | None]:
    try:
        return CommitTopic(client, commit_topic, sink_id).read(), None
    except CommitTopicError as error:
        return None, error
    except AuthorizationError as error:
        raise AuthorizationError(
            "The principal is not allowed to read the commit decisions of transactionalId "
            f"'{sink_id}'. {reason_of(error)}.",
            advice=f"Grant the principal READ on topic '{commit_topic}'. --recover and --forget "
            "also need WRITE.",
            topic=commit_topic,
            transactional_id=sink_id,
        ) from error


def _is_of(decided: Mapping[str, Entry], one: TransactionDescription) -> bool:
    entry = decided.get(one.transactional_id)
    return entry is not None and entry.producer.producer_id == one.producer.producer_id


def entry_states(client: TransactionalClient, entries: Sequence[Entry]) -> Mapping[str, EntryState]:
    """Return the states of decided transactions, by transactional id."""
    found = client.describe_transactions([entry.transactional_id for entry in entries])
    outcomes = look_up_outcomes(client, entries, found)
    return {name: _entry_state(outcome, found.get(name)) for name, outcome in outcomes.items()}


def _entry_state(outcome: Outcome, found: TransactionDescription | None) -> EntryState:
    state = None if found is None else found.state
    if outcome is Outcome.AGAIN and state is TransactionState.ONGOING:
        return EntryState.PREPARED
    if outcome is Outcome.DONE and state is TransactionState.PREPARE_COMMIT:
        return EntryState.COMMITTING
    return _ENTRY_STATES[outcome]


def _decision(client: TransactionalClient, state: QueryState) -> DecisionReport:
    decision = state.decision
    found = {} if state.is_finished else entry_states(client, decision.entries)
    return DecisionReport(
        decision=decision,
        is_finished=state.is_finished,
        entries=()
        if state.is_finished
        else tuple(
            _entry(client, entry, found[entry.transactional_id]) for entry in decision.entries
        ),
    )


def _entry(client: TransactionalClient, entry: Entry, state: EntryState) -> EntryReport:
    is_doubtful = state in (EntryState.LOST, EntryState.UNKNOWN)
    rows = row_ranges(client, entry) if is_doubtful else ()
    return EntryReport(entry=entry, state=state, rows=rows)


def row_ranges(client: TransactionalClient, entry: Entry) -> tuple[RowRange, ...]:
    """Return the offsets of a transaction's rows, regardless of its outcome.

    A decision's entry contains only the last offsets. The search for the first offsets proceeds
    backwards from the last offsets in growing windows, until it has found all rows of the entry.
    """
    try:
        first = _first_offsets(client, entry)
    except AccessError:
        first = {}
    return tuple(
        RowRange(
            partition=partition,
            first_offset=first.get(partition),
            last_offset=entry.last_offsets[partition],
        )
        for partition in sorted(entry.last_offsets)
    )


def _first_offsets(client: TransactionalClient, entry: Entry) -> Mapping[TopicPartition, int]:
    """Return the first offset in each partition, or an empty mapping if not all rows are found."""
    partitions = _existing(client, entry.last_offsets)
    starts = _offsets(client, partitions, EARLIEST, IsolationLevel.READ_UNCOMMITTED)
    ends = {partition: entry.last_offsets[partition] + 1 for partition in partitions}
    first: dict[TopicPartition, int] = {}
    found, window, searched = 0, _FIRST_WINDOW, 0
    while ends and found < entry.totals.row_count and searched < _SEARCHED_MAX:
        for partition, end in list(ends.items()):
            start = max(starts[partition], end - window)
            for base_offset, last_offset in _rows_between(client, entry, partition, start, end):
                first[partition] = min(base_offset, first.get(partition, base_offset))
                found += last_offset - base_offset + 1
            ends[partition] = start
            if start == starts[partition]:
                del ends[partition]
        searched, window = searched + window, window * 2
    return first if found >= entry.totals.row_count else {}


def _rows_between(
    client: TransactionalClient, entry: Entry, partition: TopicPartition, start: int, end: int
) -> list[tuple[int, int]]:
    """Return the offset ranges of the entry's batches whose last offset is in `[start, end)`."""
    if start >= end:
        return []
    return [
        (batch.base_offset, batch.last_offset)
        for batch in client.read_log(partition, start, end)
        if batch.producer == entry.producer and start <= batch.last_offset < end
    ]


def _held(
    client: TransactionalClient, transactions: Collection[TransactionDescription]
) -> tuple[tuple[HeldPartition, ...], str | None]:
    """Return the partitions with blocked consumers, or the message of an `AccessError`."""
    try:
        return _held_partitions(client, transactions), None
    except AccessError as error:
        return (), str(error)


def _held_partitions(
    client: TransactionalClient, transactions: Collection[TransactionDescription]
) -> tuple[HeldPartition, ...]:
    """Return the partitions in which open transactions block read_committed consumers."""
    partitions = _existing(client, {p for one in transactions for p in one.partitions})
    stable = _offsets(client, partitions, LATEST, IsolationLevel.READ_COMMITTED)
    ends = _offsets(client, partitions, LATEST, IsolationLevel.READ_UNCOMMITTED)
    by_producer_id = {one.producer.producer_id: one for one in transactions}
    held = []
    for partition in partitions:
        if stable[partition] < ends[partition]:
            holder = _writer_at(client, partition, stable[partition])
            ours = by_producer_id.get(holder.producer_id) if holder else None
            held.append(
                HeldPartition(
                    partition=partition,
                    last_stable_offset=stable[partition],
                    high_watermark=ends[partition],
                    holder=holder,
                    transactional_id=ours.transactional_id if ours else None,
                    started_ms=ours.started_ms if ours else None,
                )
            )
    return tuple(held)


def _writer_at(
    client: TransactionalClient, partition: TopicPartition, offset: int
) -> ProducerIdAndEpoch | None:
    for batch in client.read_log(partition, offset, offset + 1):
        if batch.is_transactional and batch.base_offset <= offset <= batch.last_offset:
            return batch.producer
    return None


def _existing(
    client: TransactionalClient, partitions: Collection[TopicPartition]
) -> list[TopicPartition]:
    """Return the existing partitions in order, without the partitions of internal topics."""
    described = client.describe_topics({one.topic for one in partitions}) if partitions else {}
    return sorted(
        one
        for one in partitions
        if one.topic in described
        and one.partition in described[one.topic].partitions
        and not described[one.topic].is_internal
    )


def _offsets(
    client: TransactionalClient,
    partitions: Collection[TopicPartition],
    which: int,
    isolation_level: IsolationLevel,
) -> Mapping[TopicPartition, int]:
    if not partitions:
        return {}
    found = client.list_offsets(dict.fromkeys(partitions, which), isolation_level)
    # ListOffsets returns None only for a lookup by timestamp.
    return {partition: offset for partition, offset in found.items() if offset is not None}
