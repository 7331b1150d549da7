"""The driver's actions in abort(), which Spark calls if a task or commit() fails.

Models the steps of `abort.abort` in order: `look`, `fence` and `read`. The module `sweep` models
the sweep that follows. Invariant: abort() never aborts a transaction that may already be decided.
"""

from __future__ import annotations

from integration.sink_model import cluster, labels
from integration.sink_model.case import (
    ABORT_IS_NOT_REJECTED,
    NEWER_OWNER_STAYS,
    InvariantViolationError,
)
from integration.sink_model.cluster import init_sink_id, read_commit_topic
from integration.sink_model.coordinator import CONCURRENT, REFUSED
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.mutations import (
    ABORT_UNDER_ANY_EPOCH,
    ABORT_WHAT_WAS_DECIDED,
    ABORT_WITH_AN_OPEN_DECISION,
    ABORT_WITHOUT_FENCING,
    ABORT_WITHOUT_LOOKING,
)
from integration.sink_model.state import (
    END_ABORT,
    INIT,
    NO_MESSAGE,
    ONGOING,
    STATUS_NAMES,
    LateRequest,
)


def look(action: DriverAction) -> Transitions:
    """Send DescribeTransactions for the sink id (`abort.look`)."""
    sink_id = action.state.sink_id
    text = action.describe(
        f"the sink id has epoch {sink_id.epoch} and is {STATUS_NAMES[sink_id.status]}"
    )
    mutation = action.case.mutation
    is_open = action.case.version == 1 and sink_id.status == ONGOING
    if sink_id.epoch == action.driver.owner or mutation == ABORT_WITHOUT_LOOKING:
        at = labels.ABORT_READ if mutation == ABORT_WITHOUT_FENCING else labels.ABORT_FENCE
        if is_open and mutation != ABORT_WITH_AN_OPEN_DECISION:
            at = labels.ABORT_LOOK_END
        state = action.go_to(action.state, at)
        yield (
            text,
            action.with_works(state, [w._replace(to_do=(), lost=()) for w in action.works(state)]),
        )
    else:
        message = f"{text}: abort() leaves the batch to the next planning run"
        yield message, action.fail(action.state)


def end_decision(action: DriverAction) -> Transitions:
    """Send EndTxn(abort) for the open transaction of the decision (transaction version 1)."""
    owner = action.driver.owner
    at = labels.ABORT_FENCE
    if action.case.mutation == ABORT_WITHOUT_FENCING:
        at = labels.ABORT_READ
    state, _ = cluster.end_decision(action.case, action.state, owner, is_commit=False)
    effect = "no effect" if state is action.state else "success"
    text = action.describe(f"EndTxn(sink id, abort) with epoch {owner}")
    yield f"{text}: {effect}", action.go_to(state, at)
    if action.may_lose_response:
        late = action.delay(action.state, END_ABORT, owner)
        yield f"{text} is delayed and gets no response", action.go_to(late, at)


def fence(action: DriverAction) -> Transitions:
    """Send InitProducerId for the sink id with the driver's epoch (`abort.fence`)."""
    case = action.case
    expected = None if case.mutation == ABORT_UNDER_ANY_EPOCH else action.driver.owner
    _check_not_rejected(action)
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


def _check_not_rejected(action: DriverAction) -> None:
    """Check that InitProducerId does not abort the batch's own decision (`transaction.version` 1).

    If InitProducerId aborted the decision, the coordinator would reject the driver's retry of
    InitProducerId, and abort() would leave the tasks' transactions open.
    """
    sink_id, owner = action.state.sink_id, action.driver.owner
    is_own = (sink_id.epoch, sink_id.status) == (owner, ONGOING)
    if (
        action.case.version == 1
        and is_own
        and LateRequest(END_ABORT, owner, 0) not in action.state.late
    ):
        raise InvariantViolationError(f"{ABORT_IS_NOT_REJECTED}: the batch's decision is open")


def read(action: DriverAction) -> Transitions:
    """Search the commit topic for the driver's decision (`abort.read`)."""
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
        works = [work._replace(message=NO_MESSAGE) for work in action.works(action.state)]
        state = action.go_to(action.with_works(action.state, works), labels.ABORT_SWEEP)
        yield action.describe("the decision does not exist"), state
