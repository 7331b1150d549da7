"""Pruning: removes parts of a state that no action can observe.

Pruning reduces the number of states. Invariant: pruning does not change the behavior of the model.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model.case import Case
from integration.sink_model.cluster import can_decide
from integration.sink_model.mutations import (
    LOOK_BEFORE_INIT,
    START_DESPITE_A_DECISION,
    START_WITHOUT_LOOKING,
)
from integration.sink_model.state import (
    END_ABORT,
    HALF_PRODUCED,
    INIT,
    MARK,
    NO_MESSAGE,
    ONGOING,
    PREPARED,
    TO_BEGIN,
    TO_PRODUCE,
    Attempt,
    LateRequest,
    Partition,
    State,
    TaskId,
    TaskRequest,
    find,
)
from integration.sink_model.task import is_expected

_OF_TASK_LOOK: Final = (START_WITHOUT_LOOKING, START_DESPITE_A_DECISION, LOOK_BEFORE_INIT)
"""The mutations with which an attempt can begin although its batch can no longer be decided."""


def prune(case: Case, state: State) -> State:
    """Remove delayed requests and late attempts that have no effect, and unused markers and ids.

    Markers, and ids without an unfinished transaction, are unused if no decision, driver, attempt
    or delayed request refers to them.
    """
    if state.late:
        late = tuple(each for each in state.late if _is_effective(state, each))
        if len(late) != len(state.late):
            state = state._replace(late=late)
    partitions = tuple(_pruned(case, state, part) for part in state.partitions)
    return state if partitions == state.partitions else state._replace(partitions=partitions)


def _is_effective(state: State, request: LateRequest) -> bool:
    if request.kind == INIT:
        return True
    if request.kind == MARK:
        return request.second > state.marks[request.first]
    return state.sink_id.status == ONGOING and state.sink_id.epoch == request.first


def _pruned(case: Case, state: State, part: Partition) -> Partition:
    if part.late:
        late = tuple(each for each in part.late if _is_effective_on_task(part, each))
        if len(late) != len(part.late):
            part = part._replace(late=late)
    if part.attempts:
        attempts = tuple(each for each in part.attempts if _can_act(case, state, part, each))
        if len(attempts) != len(part.attempts):
            part = part._replace(attempts=attempts)
    return _without_unnamed(case, part)


def _is_effective_on_task(part: Partition, request: TaskRequest) -> bool:
    if request.kind == INIT:
        return True
    current = find(part.ids, request.task_id)
    may_end = current.status == ONGOING or request.kind == END_ABORT
    return may_end and current.epoch == request.epoch


def _can_act(case: Case, state: State, part: Partition, attempt: Attempt) -> bool:
    """Return whether the attempt can affect its id or its job."""
    if is_expected(state, attempt):
        return True
    if attempt.phase in (TO_PRODUCE, HALF_PRODUCED):
        return find(part.ids, attempt.task_id).epoch == attempt.epoch
    if attempt.phase == TO_BEGIN and case.ids_are_unique and case.mutation not in _OF_TASK_LOOK:
        return can_decide(state, attempt.owner)
    return True


def _without_unnamed(case: Case, part: Partition) -> Partition:
    if not part.markers and all(current.status == ONGOING for _, current in part.ids):
        return part
    named: set[tuple[TaskId, int]] = {(entry.task_id, entry.epoch) for entry in part.entries}
    listed: set[TaskId] = {request.task_id for request in part.late}
    for work in part.works:
        for entries in (work.to_do, work.lost):
            named.update((entry.task_id, entry.epoch) for entry in entries)
        if work.message != NO_MESSAGE:
            named.add((work.message.task_id, work.message.epoch))
        listed.update(each.task_id for each in work.listed)
    for attempt in part.attempts:
        named.add((attempt.task_id, attempt.epoch))
        listed.add(attempt.task_id)
    markers = tuple(each for each in part.markers if (each.task_id, each.epoch) in named)
    listed.update(task_id for task_id, _ in named)
    ids = part.ids
    if case.ids_are_unique:
        ids = tuple(
            each
            for each in ids
            if each[1].status == ONGOING or each[1].status in PREPARED or each[0] in listed
        )
    if len(markers) == len(part.markers) and len(ids) == len(part.ids):
        return part
    return part._replace(markers=markers, ids=ids)
