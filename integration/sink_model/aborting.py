"""The driver's actions in abort(), which Spark calls after a failure of tasks or of commit().

Models `abort.abort`: look, fence, read, abort, sweep. Invariant: abort() never aborts a transaction
that may be decided.
"""

from __future__ import annotations

from integration.sink_model import labels
from integration.sink_model.case import BY_ABORT, NEWER_OWNER_STAYS, InvariantViolationError
from integration.sink_model.cluster import end_task_transaction, init_sink_id, read_commit_topic
from integration.sink_model.coordinator import CONCURRENT, REFUSED
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.mutations import (
    ABORT_UNDER_ANY_EPOCH,
    ABORT_WHAT_WAS_DECIDED,
    ABORT_WITHOUT_FENCING,
    ABORT_WITHOUT_LOOKING,
)
from integration.sink_model.state import (
    END_ABORT,
    INIT,
    NO_MESSAGE,
    STATUS_NAMES,
    State,
    TaskRequest,
)


def look(action: DriverAction) -> Transitions:
    """Send DescribeTransactions for the sink id (`abort.look`)."""
    sink_id = action.state.sink_id
    text = action.describe(
        f"the sink id has epoch {sink_id.epoch} and is {STATUS_NAMES[sink_id.status]}"
    )
    mutation = action.case.mutation
    if sink_id.epoch == action.driver.owner or mutation == ABORT_WITHOUT_LOOKING:
        at = labels.ABORT_READ if mutation == ABORT_WITHOUT_FENCING else labels.ABORT_FENCE
        state = action.go_to(action.state, at)
        yield (
            text,
            action.with_works(state, [w._replace(to_do=(), lost=()) for w in action.works(state)]),
        )
    else:
        message = f"{text}: abort() leaves the batch to the next planning run"
        yield message, action.fail(action.state)


def fence(action: DriverAction) -> Transitions:
    """Send InitProducerId for the sink id with the driver's epoch (`abort.fence`)."""
    case = action.case
    expected = None if case.mutation == ABORT_UNDER_ANY_EPOCH else action.driver.owner
    state, response = init_sink_id(case, action.state, expected)
    if response == CONCURRENT:
        if state is not action.state:
            yield action.describe("aborts the open decision"), state
        return
    if response == REFUSED:
        yield action.describe("InitProducerId(sink id) is rejected"), action.fail(state)
        return
    if action.driver.owner not in (action.state.sink_id.epoch, action.state.sink_id.last_epoch):
        raise InvariantViolationError(f"{NEWER_OWNER_STAYS}: InitProducerId of abort() succeeded")
    epoch = state.sink_id.epoch
    state = action.go_to(state, labels.ABORT_READ, owner=epoch)
    yield action.describe(f"InitProducerId(sink id) returns epoch {epoch}"), state
    if action.may_lose_response and case.late_inits:
        state = action.delay(state, INIT, action.driver.owner)
        yield (
            action.describe(f"InitProducerId(sink id) returns epoch {epoch}; a copy is delayed"),
            state,
        )


def read(action: DriverAction) -> Transitions:
    """Look for the driver's decision in the commit topic (`abort.read`)."""
    decisions = read_commit_topic(action.case, action.state).values()
    names = {(record.query, record.number) for record in decisions}
    is_decided = any(
        entry[2:] == message[2:]
        for part in action.state.partitions
        if (message := part.works[action.number].message) != NO_MESSAGE
        for entry in part.entries
        if entry[:2] in names
    )
    if is_decided and action.case.mutation != ABORT_WHAT_WAS_DECIDED:
        yield (
            action.describe("the decision exists, so the next planning run rolls it forward"),
            action.fail(action.state),
        )
    else:
        yield action.describe("the decision does not exist"), _after_abort(action, action.state)


def abort_tasks(action: DriverAction) -> Transitions:
    """Send EndTxn(abort) for every prepared transaction, in any order (`abort.tasks`)."""
    for index, part in enumerate(action.state.partitions):
        message = part.works[action.number].message
        if message == NO_MESSAGE:
            continue
        work = part.works[action.number]._replace(message=NO_MESSAGE)
        state, _ = end_task_transaction(
            action.case,
            action.state,
            index,
            message.task_id,
            message.epoch,
            BY_ABORT,
            is_commit=False,
        )
        text = action.describe(f"EndTxn(abort) for partition {index}, id {message.task_id}")
        yield text, _after_abort(action, action.with_work(state, index, work))
        if action.may_lose_response:
            request = TaskRequest(END_ABORT, message.task_id, message.epoch)
            state = action.with_work(action.state, index, work)
            state = action.delay_for_task(state, index, request)
            yield f"{text} is delayed", _after_abort(action, state)


def _after_abort(action: DriverAction, state: State) -> State:
    """Continue with the sweep when all transactions are aborted."""
    is_done = all(work.message == NO_MESSAGE for work in action.works(state))
    return action.go_to(state, labels.ABORT_SWEEP if is_done else labels.ABORT_TASKS)
