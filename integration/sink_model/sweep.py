"""The driver's actions in a sweep, which lists transactional ids, checks the owner and fences ids.

Models steps 3 and 11 of the protocol, and the sweep in abort(). Invariant: an id is fenced only if
it was listed before the owner of the sink id was checked. With transaction version 2, the id must
also still have the listed epoch.

The model is simpler than the code in three respects. The list of ids is complete, so one round
of the sweep is sufficient. An initialized id without a transaction is listed only if an attempt can
still use it, because fencing an id that no attempt can use has no effect. (With version 1, the code
uses the timeout of an id to recognize that a sweep has fenced it.) Decided transactions need no
special case: all of them have ended.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model import labels
from integration.sink_model.case import (
    BY_SWEEP,
    NOTHING_OPEN_AFTER_SWEEP,
    InvariantViolationError,
)
from integration.sink_model.cluster import end_task_transaction, init_task_id
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.job import launch_tasks
from integration.sink_model.mutations import (
    LOOK_BEFORE_LISTING,
    SWEEP_ALL_GENERATIONS,
    SWEEP_BY_END_TXN_V4,
    SWEEP_BY_INIT,
    SWEEP_NOTHING_WHEN_PLANNING,
    SWEEP_ONLY_OPEN,
    SWEEP_WITHOUT_LOOKING,
)
from integration.sink_model.state import (
    COMPLETE_COMMIT,
    EMPTY,
    END_ABORT,
    INIT,
    NONE,
    ONGOING,
    PREPARE_COMMIT,
    Listed,
    Partition,
    State,
    TaskId,
    TaskRequest,
    TransactionalId,
    find,
    without,
)
from integration.sink_model.task import can_produce

_LIST: Final = (labels.PLAN_SWEEP, labels.COMMIT_SWEEP, labels.ABORT_SWEEP)
_COMMIT: Final = (
    labels.COMMIT_SWEEP,
    labels.COMMIT_SWEEP_LOOK,
    labels.COMMIT_SWEEP_FENCE,
)
_PLAN: Final = (labels.PLAN_SWEEP, labels.PLAN_SWEEP_LOOK, labels.PLAN_SWEEP_FENCE)


def list_open(action: DriverAction) -> Transitions:
    """Send ListTransactions to all brokers, and DescribeTransactions for the listed ids.

    If there are no ids to fence, the same action also checks the owner.
    """
    case, at = action.case, action.driver.pc
    if case.mutation == SWEEP_NOTHING_WHEN_PLANNING and at in _PLAN:
        yield action.describe("is skipped"), _continue(action, action.state)
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
            Listed(task_id, current.epoch if _needs_epoch(action) else NONE)
            for task_id, current in part.ids
            if _is_in_scope(action, task_id)
            and task_id not in part.works[action.number].spare
            and _is_swept(action, part, task_id, current)
        )
        for part in action.state.partitions
    ]
    looks = case.mutation not in (SWEEP_WITHOUT_LOOKING, LOOK_BEFORE_LISTING)
    if looks and not any(listed) and not _is_owner(action):
        yield action.describe("the sink id has a newer owner"), _stops(action)
        return
    if not any(listed):
        yield action.describe("there is nothing to fence"), _after_sweep(action, action.state)
        return
    works = [
        work._replace(listed=ids)
        for work, ids in zip(action.works(action.state), listed, strict=True)
    ]
    skips = case.mutation == SWEEP_WITHOUT_LOOKING
    state = action.go_to(action.with_works(action.state, works), at + (2 if skips else 1))
    names = [[str(each.task_id) for each in ids] for ids in listed]
    yield action.describe(f"lists ids, by partition: {names}"), state


def _is_swept(
    action: DriverAction, part: Partition, task_id: TaskId, current: TransactionalId
) -> bool:
    if current.status == ONGOING:
        return True
    if current.status != EMPTY or action.case.mutation == SWEEP_ONLY_OPEN:
        return False
    return any(each.task_id == task_id and can_produce(part, each) for each in part.attempts)


def _needs_epoch(action: DriverAction) -> bool:
    return action.case.version == 2 and action.case.mutation != SWEEP_BY_INIT


def _is_in_scope(action: DriverAction, task_id: TaskId) -> bool:
    if action.driver.pc in _PLAN:
        return True
    if action.case.mutation == SWEEP_ALL_GENERATIONS:
        return True
    return task_id.generation == action.driver.generation


def _is_owner(action: DriverAction) -> bool:
    """Return whether the driver still owns the sink id.

    With transaction version 2, the driver's own EndTxn(commit) bumps the sink id's epoch. After
    this request, the sink id's epoch is one higher than the driver's epoch.
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
    """Send EndTxn(abort) or InitProducerId for every listed id, in any order."""
    for index, part in enumerate(action.state.partitions):
        for listed in part.works[action.number].listed:
            if _needs_epoch(action) or action.case.mutation == SWEEP_BY_END_TXN_V4:
                yield from _end(action, index, listed)
            else:
                yield from _init(action, index, listed)


def _end(action: DriverAction, index: int, listed: Listed) -> Transitions:
    """Send EndTxn(abort), which bumps the id's epoch unless the epoch has already changed."""
    case, state, (task_id, epoch) = action.case, action.state, listed
    version = 1 if case.mutation == SWEEP_BY_END_TXN_V4 else case.version
    if epoch == NONE:
        epoch = find(state.partitions[index].ids, task_id).epoch
    state, _ = end_task_transaction(
        case, state, index, task_id, epoch, BY_SWEEP, is_commit=False, version=version
    )
    effect = "no effect" if state is action.state else "success"
    name = f"EndTxn(abort) for partition {index}, id {task_id}, epoch {epoch}"
    yield action.describe(f"{name}: {effect}"), _after_fence(action, state, index, listed)
    if action.may_lose_response and state is not action.state:
        late = action.delay_for_task(action.state, index, TaskRequest(END_ABORT, task_id, epoch))
        yield (
            action.describe(f"{name} is delayed and gets no response"),
            _after_fence(action, late, index, listed),
        )


def _init(action: DriverAction, index: int, listed: Listed) -> Transitions:
    """Send InitProducerId, which bumps the epoch of the task's id regardless of its value."""
    case, task_id = action.case, listed.task_id
    state, response, _ = init_task_id(case, action.state, index, task_id, BY_SWEEP)
    name = f"partition {index}, id {task_id}"
    if response == CONCURRENT:
        if state is not action.state:
            yield action.describe(f"aborts the transaction of {name}"), state
        return
    yield action.describe(f"fences {name}"), _after_fence(action, state, index, listed)
    if action.may_lose_response and case.late_inits:
        late = action.delay_for_task(state, index, TaskRequest(INIT, task_id, 0))
        yield (
            action.describe(f"fences {name}; a copy is delayed"),
            _after_fence(action, late, index, listed),
        )


def _after_fence(action: DriverAction, state: State, index: int, listed: Listed) -> State:
    """Return the state after one id has been fenced. After the last id, the sweep is complete."""
    work = state.partitions[index].works[action.number]
    state = action.with_work(state, index, work._replace(listed=without(work.listed, listed)))
    is_done = not any(each.listed for each in action.works(state))
    return _after_sweep(action, state) if is_done else state


def _after_sweep(action: DriverAction, state: State) -> State:
    """Check the result of the sweep, and return the state after the sweep."""
    if _is_owner(action):
        _check_swept(action, state)
    return _continue(action, state)


def _check_swept(action: DriverAction, state: State) -> None:
    """Check that no transaction is open, and that no attempt can begin a transaction later.

    Delayed requests are treated as if they had arrived. An attempt that has not checked the owner
    yet does not begin a transaction (see `task`).
    """
    for index, part in enumerate(state.partitions):
        named = [
            task_id
            for task_id, current in part.ids
            if current.status == ONGOING
            and TaskRequest(END_ABORT, task_id, current.epoch) not in part.late
        ]
        named += [each.task_id for each in part.attempts if can_produce(part, each)]
        for task_id in named:
            if _is_in_scope(action, task_id):
                raise InvariantViolationError(
                    f"{NOTHING_OPEN_AFTER_SWEEP}: partition {index}, id {task_id} is not fenced"
                )


def _continue(action: DriverAction, state: State) -> State:
    if action.driver.pc in _PLAN:
        return launch_tasks(action, state)
    if action.driver.pc in _COMMIT:
        return action.go_to(state, labels.COMMITTED, owner=NONE)
    return action.fail(state)


def _stops(action: DriverAction) -> State:
    """Stop the driver because there is a newer owner, which runs its own sweep.

    The driver's decisions stay valid, and its abort() does nothing.
    """
    return action.fail(action.state)
