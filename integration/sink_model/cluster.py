"""The effects of requests on the cluster: transactional ids, rows, markers and the commit topic.

Each function models one request that reaches its broker, or one action of the coordinator.
Invariant: rows become committed only in this module, when the coordinator writes PREPARE_COMMIT.
This module also checks the invariants about rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from integration.sink_model import coordinator
from integration.sink_model.case import (
    BATCHES_RISE,
    DECIDED_STAYS,
    NO_ROW_TWICE,
    Case,
    InvariantViolationError,
)
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.mutations import (
    IGNORE_THE_QUERY_ID,
    LATE_MARK_HIDES_A_NEWER_DECISION,
    READ_TO_THE_LAST_STABLE_OFFSET,
)
from integration.sink_model.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EXPIRED,
    NONE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    Entry,
    Marker,
    Partition,
    Record,
    State,
    TaskId,
    TransactionalId,
    find,
    replaced,
)

DONE: Final = 0
LOST: Final = 1
WAIT: Final = 2
UNKNOWN: Final = 3
"""The possible outcomes of a decided transaction."""

_OUTCOMES: Final = {
    PREPARE_COMMIT: DONE,
    COMPLETE_COMMIT: DONE,
    PREPARE_ABORT: LOST,
    COMPLETE_ABORT: LOST,
}
"""The outcomes by state, for an id with the epoch that follows the transaction's end."""


# Ids of task attempts


def init_task_id(
    case: Case, state: State, index: int, task_id: TaskId, who: str
) -> tuple[State, int, int]:
    """Send InitProducerId for a task attempt. Return the state, the response and the epoch."""
    while True:
        before = find(state.partitions[index].ids, task_id)
        after, response = coordinator.init_producer_id(before, case.version)
        if after is not before:
            state = _store(case, state, index, task_id, after, who)
        if response != CONCURRENT or case.slow_markers:
            return state, response, after.epoch


def end_task_transaction(  # noqa: PLR0917 - the arguments are the fields of the request
    case: Case,
    state: State,
    index: int,
    task_id: TaskId,
    epoch: int,
    who: str,
    *,
    is_commit: bool,
    version: int | None = None,
) -> tuple[State, int]:
    """Send EndTxn for a task attempt, by default with the transaction version of the case."""
    before = find(state.partitions[index].ids, task_id)
    after, response = coordinator.end(before, epoch, version or case.version, is_commit=is_commit)
    if after is before:
        return state, response
    return _store(case, state, index, task_id, after, who), response


def time_out(case: Case, state: State, index: int, task_id: TaskId, who: str) -> State:
    """Let the coordinator abort an open transaction after its timeout."""
    before = find(state.partitions[index].ids, task_id)
    return _store(case, state, index, task_id, coordinator.fenced(before, case.version), who)


def expire(state: State, index: int, task_id: TaskId) -> State:
    """Let the coordinator remove an idle transactional id."""
    part = state.partitions[index]
    after = coordinator.expired(find(part.ids, task_id))
    return _with_id(state, index, part, task_id, after)


def write_markers(state: State, index: int, task_id: TaskId) -> State:
    """Let the coordinator complete a task's prepared transaction."""
    part = state.partitions[index]
    return _with_id(state, index, part, task_id, coordinator.completed(find(part.ids, task_id)))


def produce_rows(  # noqa: PLR0917 - the arguments are the fields of the request
    case: Case, state: State, index: int, task_id: TaskId, epoch: int, rows: int, *, goes_on: bool
) -> State | None:
    """Produce rows in a transaction; return None if the broker rejects them.

    With transaction version 2, the first rows after the end of a transaction begin the next
    transaction implicitly. With version 1, only the first request of a task adds partitions to the
    transaction.
    """
    part = state.partitions[index]
    current = find(part.ids, task_id)
    if current.epoch != epoch or current.status in PREPARED or current.status == EXPIRED:
        return None
    if current.status == ONGOING:
        rows |= current.rows
    elif goes_on and case.version == 1:
        return None
    return _with_id(
        state, index, part, task_id, TransactionalId(epoch, ONGOING, current.last_epoch, rows)
    )


def _with_id(
    state: State, index: int, part: Partition, task_id: TaskId, current: TransactionalId
) -> State:
    ids = [each for each in part.ids if each[0] != task_id]
    ids.append((task_id, current))
    ids.sort()
    part = part._replace(ids=tuple(ids))
    return state._replace(partitions=replaced(state.partitions, index, part))


def _store(  # noqa: PLR0917 - the arguments are the fields of the request
    case: Case, state: State, index: int, task_id: TaskId, after: TransactionalId, who: str
) -> State:
    """Store the result of a request, and apply the effects of the request to rows and markers."""
    part = state.partitions[index]
    before = find(part.ids, task_id)
    if before.status == ONGOING:
        is_commit = after.status == PREPARE_COMMIT
        if is_commit:
            part = part._replace(committed=_committed(part, before.rows, task_id, who))
        elif not case.may_abort_decided(who):
            _check_undecided(state, part, task_id, before.epoch, who)
        marker = Marker(task_id, before.epoch, is_commit)
        part = part._replace(markers=tuple(sorted((*part.markers, marker))))
    if after.status in PREPARED and not case.slow_markers:
        after = coordinator.completed(after)
    return _with_id(state, index, part, task_id, after)


def _committed(part: Partition, rows: int, task_id: TaskId, who: str) -> int:
    if part.committed & rows:
        raise InvariantViolationError(f"{NO_ROW_TWICE}: {who} commits rows of {task_id} again")
    return part.committed | rows


def _check_undecided(state: State, part: Partition, task_id: TaskId, epoch: int, who: str) -> None:
    undecided = None
    for record in state.log:
        if record.is_open and record.query != NONE and state.sink_id.status != PREPARE_COMMIT:
            undecided = record.query, record.number
    for entry in part.entries:
        if (entry.task_id, entry.epoch) == (task_id, epoch) and entry[:2] != undecided:
            raise InvariantViolationError(
                f"{DECIDED_STAYS}: {who} aborts {task_id}, epoch {epoch}, of decision "
                f"{entry.number}"
            )


def outcome_of(
    case: Case, part: Partition, entry: Entry, *, trusts_next_epoch: bool = False
) -> int:
    """Return the outcome of a transaction whose EndTxn(commit) was rejected.

    This function models rows (c) and (e) of the table in the sink's `roll_forward` module. The
    outcome of a decided transaction that has ended never changes, so a later call returns the same
    outcome.
    """
    current = find(part.ids, entry.task_id)
    bump = 1 if case.version == 2 or trusts_next_epoch else 0
    if current.epoch == entry.epoch + bump and current.status in _OUTCOMES:
        return _OUTCOMES[current.status]
    if current.status in PREPARED:
        return WAIT
    for marker in part.markers:
        if (marker.task_id, marker.epoch) == (entry.task_id, entry.epoch):
            return DONE if marker.is_commit else LOST
    return UNKNOWN


# The sink id and the commit topic


def init_sink_id(case: Case, state: State, expected: int | None = None) -> tuple[State, int]:
    """Send InitProducerId for the sink id; return the state and the response."""
    while True:
        after, response = coordinator.init_producer_id(state.sink_id, case.version, expected)
        if after is not state.sink_id:
            state = _with_sink_id(case, state, after)
        if response != CONCURRENT or case.slow_decisions:
            return state, response


def can_decide(state: State, owner: int) -> bool:
    """Return whether this owner of the sink id can still commit a batch (`task.look`)."""
    is_decided = state.sink_id.status in (PREPARE_COMMIT, COMPLETE_COMMIT)
    return state.sink_id.epoch == owner and not is_decided


def end_decision(case: Case, state: State, epoch: int, *, is_commit: bool) -> tuple[State, int]:
    """Send EndTxn for the sink id."""
    after, response = coordinator.end(state.sink_id, epoch, case.version, is_commit=is_commit)
    if after is state.sink_id:
        return state, response
    return _with_sink_id(case, _decided(state) if is_commit else state, after), response


def time_out_decision(case: Case, state: State) -> State:
    """Let the coordinator abort the open transaction of a decision after its timeout."""
    return _with_sink_id(case, state, coordinator.fenced(state.sink_id, case.version))


def write_decision_marker(case: Case, state: State) -> State:
    """Let the coordinator write the marker of the decision to the commit topic."""
    return _with_marker(case, state, coordinator.completed(state.sink_id))


def produce_decision(
    state: State, epoch: int, decision: Record, entries: tuple[Entry | None, ...]
) -> State | None:
    """Produce a decision with its offsets; return None if the broker rejects it."""
    sink_id = state.sink_id
    if sink_id.epoch != epoch or sink_id.status == ONGOING or sink_id.status in PREPARED:
        return None
    return state._replace(
        sink_id=TransactionalId(epoch, ONGOING, sink_id.last_epoch, 0),
        log=(*state.log, decision),
        partitions=tuple(
            part if entry is None else part._replace(entries=(*part.entries, entry))
            for part, entry in zip(state.partitions, entries, strict=True)
        ),
    )


def _with_sink_id(case: Case, state: State, after: TransactionalId) -> State:
    if after.status in PREPARED and not case.slow_decisions:
        return _with_marker(case, state, coordinator.completed(after))
    return state._replace(sink_id=after)


def _decided(state: State) -> State:
    """Record that the batch is decided: the coordinator has written PREPARE_COMMIT."""
    decision = next(each for each in state.log if each.is_open and each.query != NONE)
    query, batch = decision.query, decision.batch
    for record in state.log:
        if record.query == query and not record.is_open:
            again = batch == record.batch and not decision.supplements
            if batch < record.batch or again:
                raise InvariantViolationError(
                    f"{BATCHES_RISE}: query {query} decides batch {batch} after batch "
                    f"{record.batch}"
                )
    return state._replace(offsets=replaced(state.offsets, query, batch))


def _with_marker(case: Case, state: State, sink_id: TransactionalId) -> State:
    decision = next((each for each in state.log if each.is_open and each.query != NONE), None)
    if decision is None:
        return state._replace(sink_id=sink_id)
    log = tuple(each for each in state.log if each is not decision)
    if sink_id.status == COMPLETE_COMMIT:
        log = (*log, decision._replace(is_open=False))
    elif all(each[:2] != decision[:2] for each in log):
        entries_of = decision[:2]
        state = state._replace(
            partitions=tuple(
                part._replace(entries=tuple(e for e in part.entries if e[:2] != entries_of))
                for part in state.partitions
            )
        )
    return compacted(case, state._replace(sink_id=sink_id, log=log))


def compacted(case: Case, state: State) -> State:
    """Compact the commit topic.

    Removes every decision that a newer decision of the same query replaces, and the entries of
    finished decisions. Records after an open transaction of another sink are not compacted.
    """
    records = [each for each in state.log if each.query != NONE]
    if len(records) == len(state.log):
        newest = {(record.query, record.is_open): record for record in records}
        log = tuple(sorted(newest.values()))
        kept = {(record.query, record.number) for record in log}
        if case.mutation != LATE_MARK_HIDES_A_NEWER_DECISION:
            kept -= {each for each in kept if state.marks[each[0]] >= each[1]}
        state = state._replace(log=log)
    else:
        kept = {(record.query, record.number) for record in records}
    return state._replace(
        partitions=tuple(
            part
            if all(entry[:2] in kept for entry in part.entries)
            else part._replace(entries=tuple(e for e in part.entries if e[:2] in kept))
            for part in state.partitions
        )
    )


def mark_finished(case: Case, state: State, query: int, number: int) -> State:
    """Append a finished mark to the commit topic."""
    if case.mutation == LATE_MARK_HIDES_A_NEWER_DECISION:
        number = max(
            (each.number for each in state.log if each.query == query and not each.is_open),
            default=number,
        )
    marks = replaced(state.marks, query, max(state.marks[query], number))
    return compacted(case, state._replace(marks=marks))


def begin_stranger(state: State) -> State:
    """Let another sink that shares the commit topic produce a decision."""
    return state._replace(log=(*state.log, Record(NONE, 0, NONE, NONE, False, True)))


def end_stranger(case: Case, state: State) -> State:
    """Let the other sink end its transaction."""
    return compacted(
        case, state._replace(log=tuple(each for each in state.log if each.query != NONE))
    )


def read_commit_topic(case: Case, state: State) -> Mapping[int, Record]:
    """Return the last decision of each query.

    Reads up to the high watermark and uses control records to find the committed transactions.
    """
    decisions: dict[int, Record] = {}
    for record in state.log:
        if not record.is_open:
            decisions[record.query] = record
        elif case.mutation == READ_TO_THE_LAST_STABLE_OFFSET:
            break
    if case.mutation == IGNORE_THE_QUERY_ID and decisions:
        last = max(decisions.values(), key=lambda record: (record.number, record.query))
        return dict.fromkeys(range(len(state.marks)), last)
    return decisions
