"""Sweeping: list what is open under X (and a run), look who owns X, fence what was listed.

Purpose: steps 3 and 11, and the end of abort. Invariant: an id is fenced only if it was listed
before X was seen to be ours. What it must not know: why a driver sweeps.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model import places
from integration.sink_model.case import BY_SWEEP
from integration.sink_model.cluster import end_task_transaction, init_task_id
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.job import launched
from integration.sink_model.mutations import (
    LOOK_BEFORE_LISTING,
    REUSE_IDS_ACROSS_RUNS,
    SWEEP_ALL_RUNS,
    SWEEP_BY_END_TXN,
    SWEEP_NOTHING_WHEN_PLANNING,
    SWEEP_WITHOUT_LOOKING,
)
from integration.sink_model.state import (
    COMPLETE_COMMIT,
    INIT,
    NONE,
    ONGOING,
    PREPARE_COMMIT,
    State,
    TaskId,
    TaskRequest,
    find,
    without,
)
from integration.sink_model.turn import Transitions, Turn

_LIST: Final = (places.PLAN_SWEEP, places.COMMIT_SWEEP, places.ABORT_SWEEP)
_COMMIT: Final = (
    places.COMMIT_SWEEP,
    places.COMMIT_SWEEP_LOOK,
    places.COMMIT_SWEEP_FENCE,
)
_PLAN: Final = (places.PLAN_SWEEP, places.PLAN_SWEEP_LOOK, places.PLAN_SWEEP_FENCE)


def list_open(turn: Turn) -> Transitions:
    """ListTransactions of all brokers. Where nothing is open the look that follows goes with it."""
    case, at = turn.case, turn.driver.at
    if case.mutation == SWEEP_NOTHING_WHEN_PLANNING and at in _PLAN:
        yield turn.says("is left out"), _ends(turn, turn.state)
        return
    looks_first = case.mutation == LOOK_BEFORE_LISTING
    if looks_first and at in _LIST:
        after = turn.to(turn.state, at + 1) if _is_ours(turn) else turn.dies(turn.state)
        yield turn.says("looks who owns X"), after
        return
    listed = [
        tuple(
            task_id
            for task_id, current in part.ids
            if current.status == ONGOING and _is_asked_for(turn, task_id)
        )
        for part in turn.state.partitions
    ]
    looks = case.mutation not in (SWEEP_WITHOUT_LOOKING, LOOK_BEFORE_LISTING)
    if looks and not any(listed) and not _is_ours(turn):
        yield turn.says("X is not ours any more"), _stops(turn)
        return
    if not any(listed):
        yield turn.says("nothing is open"), _ends(turn, turn.state)
        return
    works = [
        work._replace(listed=ids) for work, ids in zip(turn.works(turn.state), listed, strict=True)
    ]
    skips = case.mutation == SWEEP_WITHOUT_LOOKING
    state = turn.to(turn.with_works(turn.state, works), at + (2 if skips else 1))
    names = [[str(each) for each in ids] for ids in listed]
    yield turn.says(f"lists by partition {names}"), state


def _is_asked_for(turn: Turn, task_id: TaskId) -> bool:
    if turn.driver.at in _PLAN:
        return True
    if turn.case.mutation in (SWEEP_ALL_RUNS, REUSE_IDS_ACROSS_RUNS):
        return True
    return task_id.run == turn.number


def _is_ours(turn: Turn) -> bool:
    """Whether X has the epoch that we got, or is as our own EndTxn left it."""
    x, owner = turn.state.x, turn.driver.owner
    if x.epoch == owner:
        return True
    is_decided = turn.driver.at in _COMMIT and turn.case.version == 2
    return is_decided and x.epoch == owner + 1 and x.status in (PREPARE_COMMIT, COMPLETE_COMMIT)


def look(turn: Turn) -> Transitions:
    """DescribeTransactions(X)."""
    if turn.case.mutation == LOOK_BEFORE_LISTING:
        yield from list_open(turn)
        return
    if _is_ours(turn):
        yield turn.says("X is ours"), turn.to(turn.state, turn.driver.at + 1)
    else:
        yield turn.says("X is not ours any more"), _stops(turn)


def fence(turn: Turn) -> Transitions:
    """InitProducerId of every id that was listed, side by side."""
    for index, part in enumerate(turn.state.partitions):
        for task_id in part.works[turn.number].listed:
            yield from _fence(turn, index, task_id)


def _fence(turn: Turn, index: int, task_id: TaskId) -> Transitions:
    case, state = turn.case, turn.state
    if case.mutation == SWEEP_BY_END_TXN:
        epoch = find(state.partitions[index].ids, task_id).epoch
        state, answer = end_task_transaction(
            case, state, index, task_id, epoch, BY_SWEEP, is_commit=False, version=1
        )
    else:
        state, answer, _ = init_task_id(case, state, index, task_id, BY_SWEEP)
    name = f"partition {index}'s {task_id}"
    if answer == CONCURRENT:
        if state is not turn.state:
            yield turn.says(f"aborts {name}"), state
        return
    work = state.partitions[index].works[turn.number]
    state = turn.with_work(state, index, work._replace(listed=without(work.listed, task_id)))
    is_over = not any(each.listed for each in turn.works(state))
    yield turn.says(f"fences {name}"), _ends(turn, state) if is_over else state
    if turn.is_lossy and case.late_inits:
        state = turn.late_about_task(state, index, TaskRequest(INIT, task_id, 0))
        text = turn.says(f"fences {name}; the request comes once more")
        yield text, _ends(turn, state) if is_over else state


def _ends(turn: Turn, state: State) -> State:
    """All is swept."""
    if turn.driver.at in _PLAN:
        return launched(turn, state)
    if turn.driver.at in _COMMIT:
        return turn.to(state, places.COMMITTED, owner=NONE)
    return turn.dies(state)


def _stops(turn: Turn) -> State:
    """Another owner is at work, who sweeps; what is decided stays decided. (abort() does nothing.)"""
    return turn.dies(turn.state)
