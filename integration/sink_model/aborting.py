"""abort(), which Spark calls after any failure in tasks or commit().

Purpose: what the code's `abort.abort` does: look, fence, read, abort, sweep. Invariant: as there;
what may be decided is left alone. What it must not know: why the batch failed.
"""

from __future__ import annotations

from integration.sink_model import places
from integration.sink_model.case import BY_ABORT, Violation
from integration.sink_model.cluster import end_task_transaction, init_x, read_commit_topic
from integration.sink_model.coordinator import CONCURRENT, REFUSED
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
from integration.sink_model.turn import Transitions, Turn


def look(turn: Turn) -> Transitions:
    """`abort.look`: DescribeTransactions(X)."""
    x = turn.state.x
    text = turn.says(f"X has epoch {x.epoch} and is {STATUS_NAMES[x.status]}")
    mutation = turn.case.mutation
    if x.epoch == turn.driver.owner or mutation == ABORT_WITHOUT_LOOKING:
        at = places.ABORT_READ if mutation == ABORT_WITHOUT_FENCING else places.ABORT_FENCE
        state = turn.to(turn.state, at)
        yield (
            text,
            turn.with_works(state, [w._replace(to_do=(), lost=()) for w in turn.works(state)]),
        )
    else:
        yield f"{text}: all is left to the next planning", turn.dies(turn.state)


def fence(turn: Turn) -> Transitions:
    """`abort.fence`: InitProducerId(X) that names our epoch."""
    case = turn.case
    expected = None if case.mutation == ABORT_UNDER_ANY_EPOCH else turn.driver.owner
    state, answer = init_x(case, turn.state, expected)
    if answer == CONCURRENT:
        if state is not turn.state:
            yield turn.says("aborts the open decision"), state
        return
    if answer == REFUSED:
        yield turn.says("InitProducerId(X) is refused"), turn.dies(state)
        return
    if turn.driver.owner not in (turn.state.x.epoch, turn.state.x.last_epoch):
        raise Violation("abort() never takes X from a newer owner: it was granted X")
    epoch = state.x.epoch
    state = turn.to(state, places.ABORT_READ, owner=epoch)
    yield turn.says(f"InitProducerId(X) gets epoch {epoch}"), state
    if turn.is_lossy and case.late_inits:
        state = turn.late(state, INIT, turn.driver.owner)
        yield turn.says(f"InitProducerId(X) gets epoch {epoch}; the request comes once more"), state


def read(turn: Turn) -> Transitions:
    """`abort.read`: is our decision there?"""
    decisions = read_commit_topic(turn.case, turn.state).values()
    names = {(record.query, record.number) for record in decisions}
    is_ours = any(
        entry[2:] == message[2:]
        for part in turn.state.partitions
        if (message := part.works[turn.number].message) != NO_MESSAGE
        for entry in part.entries
        if entry[:2] in names
    )
    if is_ours and turn.case.mutation != ABORT_WHAT_WAS_DECIDED:
        yield turn.says("our decision is there: all is left to roll-forward"), turn.dies(turn.state)
    else:
        yield turn.says("our decision is not there"), _aborts(turn, turn.state)


def abort_tasks(turn: Turn) -> Transitions:
    """`abort.tasks`: EndTxn(abort) for every prepared transaction, side by side."""
    for index, part in enumerate(turn.state.partitions):
        message = part.works[turn.number].message
        if message == NO_MESSAGE:
            continue
        work = part.works[turn.number]._replace(message=NO_MESSAGE)
        state, _ = end_task_transaction(
            turn.case,
            turn.state,
            index,
            message.task_id,
            message.epoch,
            BY_ABORT,
            is_commit=False,
        )
        text = turn.says(f"EndTxn(abort) of partition {index}'s {message.task_id}")
        yield text, _aborts(turn, turn.with_work(state, index, work))
        if turn.is_lossy:
            request = TaskRequest(END_ABORT, message.task_id, message.epoch)
            state = turn.with_work(turn.state, index, work)
            state = turn.late_about_task(state, index, request)
            yield f"{text} comes late", _aborts(turn, state)


def _aborts(turn: Turn, state: State) -> State:
    """On to the sweep once nothing is left."""
    is_over = all(work.message == NO_MESSAGE for work in turn.works(state))
    return turn.to(state, places.ABORT_SWEEP if is_over else places.ABORT_TASKS)
