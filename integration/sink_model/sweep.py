"""The driver's actions in a sweep: list open transactions, check the owner, fence the listed ids.

Models steps 3 and 11, and the end of abort(). Invariant: an id is fenced only if it was listed
before the owner of the sink id was checked.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model import labels
from integration.sink_model.case import BY_SWEEP
from integration.sink_model.cluster import end_task_transaction, init_task_id
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.job import launch_tasks
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

_LIST: Final = (labels.PLAN_SWEEP, labels.COMMIT_SWEEP, labels.ABORT_SWEEP)
_COMMIT: Final = (
    labels.COMMIT_SWEEP,
    labels.COMMIT_SWEEP_LOOK,
    labels.COMMIT_SWEEP_FENCE,
)
_PLAN: Final = (labels.PLAN_SWEEP, labels.PLAN_SWEEP_LOOK, labels.PLAN_SWEEP_FENCE)


def list_open(action: DriverAction) -> Transitions:
    """Send ListTransactions to all brokers.

    If no transaction is open, the same action also checks the owner.
    """
    case, at = action.case, action.driver.pc
    if case.mutation == SWEEP_NOTHING_WHEN_PLANNING and at in _PLAN:
        yield action.describe("is skipped"), _after_sweep(action, action.state)
        return
    checks_first = case.mutation == LOOK_BEFORE_LISTING
    if checks_first and at in _LIST:
        after = (
            action.go_to(action.state, at + 1) if _is_owner(action) else action.fail(action.state)
        )
        yield action.describe("checks the owner of the sink id"), after
        return
    listed = [
        tuple(
            task_id
            for task_id, current in part.ids
            if current.status == ONGOING and _is_in_scope(action, task_id)
        )
        for part in action.state.partitions
    ]
    looks = case.mutation not in (SWEEP_WITHOUT_LOOKING, LOOK_BEFORE_LISTING)
    if looks and not any(listed) and not _is_owner(action):
        yield action.describe("the sink id has a newer owner"), _stops(action)
        return
    if not any(listed):
        yield action.describe("no transaction is open"), _after_sweep(action, action.state)
        return
    works = [
        work._replace(listed=ids)
        for work, ids in zip(action.works(action.state), listed, strict=True)
    ]
    skips = case.mutation == SWEEP_WITHOUT_LOOKING
    state = action.go_to(action.with_works(action.state, works), at + (2 if skips else 1))
    names = [[str(each) for each in ids] for ids in listed]
    yield action.describe(f"lists open transactions, by partition: {names}"), state


def _is_in_scope(action: DriverAction, task_id: TaskId) -> bool:
    if action.driver.pc in _PLAN:
        return True
    if action.case.mutation in (SWEEP_ALL_RUNS, REUSE_IDS_ACROSS_RUNS):
        return True
    return task_id.run == action.number


def _is_owner(action: DriverAction) -> bool:
    """Return whether the driver still owns the sink id.

    With transaction version 2, the driver's own EndTxn has raised the sink id's epoch by one.
    """
    sink_id, owner = action.state.sink_id, action.driver.owner
    if sink_id.epoch == owner:
        return True
    is_decided = action.driver.pc in _COMMIT and action.case.version == 2
    return (
        is_decided
        and sink_id.epoch == owner + 1
        and sink_id.status in (PREPARE_COMMIT, COMPLETE_COMMIT)
    )


def look(action: DriverAction) -> Transitions:
    """Send DescribeTransactions for the sink id."""
    if action.case.mutation == LOOK_BEFORE_LISTING:
        yield from list_open(action)
        return
    if _is_owner(action):
        yield (
            action.describe("the driver still owns the sink id"),
            action.go_to(action.state, action.driver.pc + 1),
        )
    else:
        yield action.describe("the sink id has a newer owner"), _stops(action)


def fence(action: DriverAction) -> Transitions:
    """Send InitProducerId for every listed id, in any order."""
    for index, part in enumerate(action.state.partitions):
        for task_id in part.works[action.number].listed:
            yield from _fence(action, index, task_id)


def _fence(action: DriverAction, index: int, task_id: TaskId) -> Transitions:
    case, state = action.case, action.state
    if case.mutation == SWEEP_BY_END_TXN:
        epoch = find(state.partitions[index].ids, task_id).epoch
        state, response = end_task_transaction(
            case, state, index, task_id, epoch, BY_SWEEP, is_commit=False, version=1
        )
    else:
        state, response, _ = init_task_id(case, state, index, task_id, BY_SWEEP)
    name = f"partition {index}, id {task_id}"
    if response == CONCURRENT:
        if state is not action.state:
            yield action.describe(f"aborts the transaction of {name}"), state
        return
    work = state.partitions[index].works[action.number]
    state = action.with_work(state, index, work._replace(listed=without(work.listed, task_id)))
    is_done = not any(each.listed for each in action.works(state))
    yield action.describe(f"fences {name}"), _after_sweep(action, state) if is_done else state
    if action.may_lose_response and case.late_inits:
        state = action.delay_for_task(state, index, TaskRequest(INIT, task_id, 0))
        text = action.describe(f"fences {name}; a copy is delayed")
        yield text, _after_sweep(action, state) if is_done else state


def _after_sweep(action: DriverAction, state: State) -> State:
    """Return the state after the sweep."""
    if action.driver.pc in _PLAN:
        return launch_tasks(action, state)
    if action.driver.pc in _COMMIT:
        return action.go_to(state, labels.COMMITTED, owner=NONE)
    return action.fail(state)


def _stops(action: DriverAction) -> State:
    """Stop because there is a newer owner, which runs its own sweep.

    Decisions stay valid, and abort() does nothing.
    """
    return action.fail(action.state)
