"""What stands under a `transactionalId`, found by looking alone.

Purpose: decisions, open transactions, the owner and the readers held back, as one frozen `Report`.
Invariant: nothing here changes anything in Kafka, so it may be run beside a living query at any
time; what it finds is of that moment. What it must not know: how it is printed, what is done about
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import AccessError, AuthorizationError, CommitTopicError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionState,
)
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.decisions import Decision, Entry, QueryState
from pyspark_kafka.sink.exactly_once.names import is_task_id_of, prefix, task_id
from pyspark_kafka.sink.exactly_once.roll_forward import ENDING, Outcome, look

NEVER_TIMES_OUT_MS: Final = 2**31 - 1
"""What brokers keep as the timeout of a two-phase transaction."""

_OPEN: Final = ENDING | {TransactionState.ONGOING}
_PAUSES_S: Final = (0.05, 0.2, 0.8, 3.2)
"""Between looks at an owner that is ending its transaction."""
_FIRST_WINDOW: Final = 1_000
_SEARCHED_MAX: Final = 1_000_000
"""Offsets that are searched in a partition for the first row of an aborted transaction."""


class EntryState(Enum):
    """What became of a decided transaction."""

    PREPARED = "prepared"
    """Open and complete: committing it makes its rows visible."""
    COMMITTING = "committing"
    COMMITTED = "committed"
    LOST = "lost"
    UNKNOWN = "unknown"
    """Neither its coordinator nor the log can tell any more."""


_STANDINGS: Final = {
    Outcome.DONE: EntryState.COMMITTED,
    Outcome.AGAIN: EntryState.COMMITTING,
    Outcome.LOST: EntryState.LOST,
    Outcome.UNKNOWN: EntryState.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Offsets between which a transaction's rows lie; `first_offset` None where it is not found."""

    partition: TopicPartition
    first_offset: int | None
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryReport:
    """A decided transaction; `rows` of one that is lost or unknown alone."""

    entry: Entry
    state: EntryState
    rows: tuple[RowRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReport:
    """The last decision of a query. Transactions of a finished one are committed, and not listed."""

    decision: Decision
    is_finished: bool
    entries: tuple[EntryReport, ...]

    def state(self, *entry_states: EntryState) -> tuple[EntryReport, ...]:
        """The transactions that stand so."""
        return tuple(entry for entry in self.entries if entry.state in entry_states)

    @property
    def needs_judgement(self) -> tuple[EntryReport, ...]:
        """Transactions that nobody can commit any more, or of which that is not known."""
        return self.state(EntryState.LOST, EntryState.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A task's transaction that is open, or being ended; `is_decided` by an unfinished decision."""

    description: TransactionDescription
    is_decided: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition whose read_committed readers wait at `last_stable_offset`.

    `holder` is who wrote what they wait for, where the log tells; `transactional_id` and
    `started_ms` where that is one of ours.
    """

    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    holder: ProducerIdAndEpoch | None
    transactional_id: str | None
    started_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that is found. `owner` is None where X's coordinator does not know it (any more)."""

    sink_id: str
    commit_topic: str
    has_commit_topic: bool
    taken_ms: int
    owner: TransactionDescription | None
    decisions: tuple[DecisionReport, ...]
    damage: str | None
    """Why the decisions cannot be read."""
    open_transactions: tuple[OpenTransaction, ...]
    held: tuple[HeldPartition, ...]
    held_is_unknown: str | None
    """Why it cannot be told whose readers wait."""
    known_ids: int
    is_two_phase: bool

    @property
    def is_unknown(self) -> bool:
        """Whether nothing at all is known of X."""
        return not (self.owner or self.decisions or self.known_ids or self.damage)

    @property
    def unfinished(self) -> tuple[DecisionReport, ...]:
        return tuple(decision for decision in self.decisions if not decision.is_finished)

    @property
    def leftover(self) -> tuple[OpenTransaction, ...]:
        """Open and not decided: of a batch that is under way, or of one that has failed."""
        return tuple(
            one
            for one in self.open_transactions
            if not one.is_decided and one.description.state is TransactionState.ONGOING
        )

    @property
    def needs_judgement(self) -> bool:
        """Whether rows that were decided are lost, or may be."""
        return any(decision.needs_judgement for decision in self.unfinished)


def is_open(state: TransactionState) -> bool:
    """Whether a transaction has begun and not ended."""
    return state in _OPEN


def examine(
    client: TransactionalClient,
    sink_id: str,
    commit_topic: str,
    *,
    now_ms: int,
    pause: Callable[[float], None] = time.sleep,
) -> Report:
    """Look at all of X; raises errors of `KafkaError`.

    What is open is listed before the decisions are read: so what is called undecided was so when
    it was listed. A decision that its coordinator has, and the commit topic not yet (EndTxn is
    answered before its markers are written), is waited for some seconds.
    """
    owner = _owner(client, sink_id)
    for pause_s in _PAUSES_S:
        if owner is None or owner.state not in ENDING:
            break
        pause(pause_s)
        owner = _owner(client, sink_id)
    listed = [
        one.transactional_id
        for one in client.list_transactions(prefix(sink_id))
        if is_task_id_of(one.transactional_id, sink_id)
    ]
    has_topic = bool(client.describe_topics([commit_topic]))
    states, damage = _read(client, sink_id, commit_topic) if has_topic else ({}, None)
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
        has_commit_topic=has_topic,
        taken_ms=now_ms,
        owner=owner,
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
        is_two_phase=any(one.timeout_ms == NEVER_TIMES_OUT_MS for one in tasks),
    )


def _owner(client: TransactionalClient, sink_id: str) -> TransactionDescription | None:
    """Also asks for an id that nobody has: who may not see those is told nothing by lists."""
    nobody = str(task_id(sink_id, "nobody", partition=0, attempt=0, task_attempt_id=0))
    try:
        return client.describe_transactions([sink_id, nobody]).get(sink_id)
    except AccessError as error:
        raise AuthorizationError(
            f"what stands under transactionalId '{sink_id}' may not be looked at: {error}. Allow this "
            f"principal DESCRIBE, and for --recover and --forget WRITE, on the transactional ids "
            f"with the prefix '{sink_id}'"
        ) from error


def _read(
    client: TransactionalClient, sink_id: str, commit_topic: str
) -> tuple[Mapping[str, QueryState], str | None]:
    try:
        return CommitTopic(client, commit_topic).read(sink_id), None
    except CommitTopicError as error:
        return {}, str(error)
    except AccessError as error:
        raise AuthorizationError(
            f"the decisions of transactionalId '{sink_id}' may not be read: {error}. Allow this "
            f"principal READ on topic '{commit_topic}', and for --recover and --forget WRITE"
        ) from error


def _is_of(decided: Mapping[str, Entry], one: TransactionDescription) -> bool:
    entry = decided.get(one.transactional_id)
    return entry is not None and entry.producer.producer_id == one.producer.producer_id


def entry_states(client: TransactionalClient, entries: Sequence[Entry]) -> Mapping[str, EntryState]:
    """What became of decided transactions, by their ids."""
    found = client.describe_transactions([entry.transactional_id for entry in entries])
    outcomes = look(client, entries, found)
    return {
        transactional_id: EntryState.PREPARED
        if outcome is Outcome.AGAIN and found[transactional_id].state is TransactionState.ONGOING
        else _STANDINGS[outcome]
        for transactional_id, outcome in outcomes.items()
    }


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
    """Where a transaction's rows lie, whatever became of it.

    An entry says where they end. Where they begin is searched backwards from there, in windows that
    grow, until as many rows are found as were counted.
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
    """Empty where not all rows are found: what was found is then not known to be the first."""
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
    """First and last offset of the entry's batches that end in `start <= offset < end`."""
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
    """Who may not read the topics is told all else, and why not this."""
    try:
        return _held_partitions(client, transactions), None
    except AccessError as error:
        return (), str(error)


def _held_partitions(
    client: TransactionalClient, transactions: Collection[TransactionDescription]
) -> tuple[HeldPartition, ...]:
    """The partitions of open transactions in which read_committed readers wait."""
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
    """In order, without those of topics that were deleted since, and of groups' offsets."""
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
    # None is the answer to timestamps alone.
    return {partition: offset for partition, offset in found.items() if offset is not None}
