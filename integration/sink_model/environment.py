"""What happens by itself: drivers start, requests come late, markers are written, things time out.

Purpose: every transition that is not a step of a driver or a task. Invariant: faults are spent; what
Kafka promises to do in the end may always be done. What it must not know: the protocol.
"""

from __future__ import annotations

from integration.sink_model import cluster, job
from integration.sink_model.case import BY_ABORT, BY_ROLL_FORWARD, BY_SWEEP, BY_TIMEOUT, Case
from integration.sink_model.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    END_COMMIT,
    INIT,
    MARK,
    NO_WORK,
    NONE,
    ONGOING,
    PREPARED,
    State,
    replaced,
)
from integration.sink_model.turn import Transitions


def steps(case: Case, state: State) -> Transitions:
    """What may happen without a driver or a task."""
    yield from _starts(case, state)
    if case.slow_markers or case.slow_decisions:
        yield from markers(case, state)
    if state.late:
        yield from _late(case, state)
    for index, part in enumerate(state.partitions):
        if part.late:
            yield from _late_about_tasks(case, state, index)
    if state.faults.timeouts:
        yield from _timeouts(case, state)
    if state.faults.expiries:
        yield from _expiries(state)
    if state.faults.strangers or any(record.query == NONE for record in state.log):
        yield from _strangers(case, state)


def started(case: Case, state: State) -> State:
    """The next driver starts, with the batch after the last of Spark's commit log."""
    number = len(state.drivers)
    driver = job.start(case, state.completed[case.queries[number]] + 1)
    return state._replace(
        drivers=(*state.drivers, driver),
        partitions=tuple(part._replace(works=(*part.works, NO_WORK)) for part in state.partitions),
    )


def _starts(case: Case, state: State) -> Transitions:
    number = len(state.drivers)
    if number < len(case.queries):
        batch = state.completed[case.queries[number]] + 1
        if batch < case.batches_of(number):
            yield f"driver {number} starts with batch {batch}", started(case, state)


def markers(case: Case, state: State) -> Transitions:
    """Transactions that were ended get their markers."""
    if state.x.status in PREPARED:
        yield "the coordinator writes the marker of X", cluster.write_markers_of_x(case, state)
    for index, part in enumerate(state.partitions):
        for task_id, current in part.ids:
            if current.status in PREPARED:
                text = f"the coordinator writes the markers of partition {index}'s {task_id}"
                yield text, cluster.write_markers(state, index, task_id)


def _late(case: Case, state: State) -> Transitions:
    for position, request in enumerate(state.late):
        after = state._replace(late=state.late[:position] + state.late[position + 1 :])
        if request.kind == MARK:
            text = f"the mark of query {request.first}'s decision {request.second}"
            after = cluster.mark_finished(case, after, request.first, request.second)
        elif request.kind == END_COMMIT:
            text = f"EndTxn(X, commit) of epoch {request.first}"
            after, _ = cluster.end_x(case, after, request.first)
        else:
            text = f"InitProducerId(X) that names epoch {request.first}"
            expected = None if request.first == NONE else request.first
            after, _ = cluster.init_x(case, after, expected)
        yield f"late: {text} arrives", after


def _late_about_tasks(case: Case, state: State, index: int) -> Transitions:
    part = state.partitions[index]
    for position, request in enumerate(part.late):
        left = part._replace(late=part.late[:position] + part.late[position + 1 :])
        after = state._replace(partitions=replaced(state.partitions, index, left))
        if request.kind == INIT:
            text = "InitProducerId"
            after, _, _ = cluster.init_task_id(case, after, index, request.task_id, BY_SWEEP)
        else:
            is_commit = request.kind == END_COMMIT
            text = f"EndTxn({'commit' if is_commit else 'abort'}) of epoch {request.epoch}"
            after, _ = cluster.end_task_transaction(
                case,
                after,
                index,
                request.task_id,
                request.epoch,
                BY_ROLL_FORWARD if is_commit else BY_ABORT,
                is_commit=is_commit,
            )
        yield f"late: {text} of partition {index}'s {request.task_id} arrives", after


def _timeouts(case: Case, state: State) -> Transitions:
    spent = state._replace(faults=state.faults._replace(timeouts=state.faults.timeouts - 1))
    if state.x.status == ONGOING:
        yield "the open decision times out", cluster.time_out_x(case, spent)
    for index, part in enumerate(state.partitions):
        for task_id, current in part.ids:
            if current.status == ONGOING:
                text = f"partition {index}'s {task_id}, epoch {current.epoch}, times out"
                yield text, cluster.time_out(case, spent, index, task_id, BY_TIMEOUT)


def _expiries(state: State) -> Transitions:
    spent = state._replace(faults=state.faults._replace(expiries=state.faults.expiries - 1))
    for index, part in enumerate(state.partitions):
        for task_id, current in part.ids:
            if current.status in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
                text = f"partition {index}'s {task_id} expires"
                yield text, cluster.expire(spent, index, task_id)


def _strangers(case: Case, state: State) -> Transitions:
    if state.faults.strangers:
        faults = state.faults._replace(strangers=state.faults.strangers - 1)
        text = "another sink writes its decision into the commit topic"
        yield text, cluster.begin_stranger(state._replace(faults=faults))
    if any(record.query == NONE for record in state.log):
        yield "the other sink's decision is ended", cluster.end_stranger(case, state)
