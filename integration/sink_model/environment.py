"""The environment's actions: driver starts, delayed requests, markers, timeouts and expirations.

Contains all actions that belong neither to a driver nor to a task. Invariant: each fault reduces
the number of faults that can still occur. Actions that Kafka eventually takes are always enabled.
"""

from __future__ import annotations

from integration.sink_model import cluster, job
from integration.sink_model.case import (
    BY_DELAYED_INIT,
    BY_ROLL_FORWARD,
    BY_SWEEP,
    BY_TIMEOUT,
    Case,
)
from integration.sink_model.driver_action import Transitions
from integration.sink_model.state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    END_ABORT,
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


def steps(case: Case, state: State) -> Transitions:
    """Yield the enabled actions of the environment."""
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
    """Start the next driver, with the batch that follows the last one in Spark's commit log."""
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
    """Yield the actions that complete prepared transactions."""
    if state.sink_id.status in PREPARED:
        yield (
            "the coordinator writes the marker of the sink id",
            cluster.write_decision_marker(case, state),
        )
    for index, part in enumerate(state.partitions):
        for task_id, current in part.ids:
            if current.status in PREPARED:
                text = f"the coordinator writes the markers for partition {index}, id {task_id}"
                yield text, cluster.write_markers(state, index, task_id)


def _late(case: Case, state: State) -> Transitions:
    for position, request in enumerate(state.late):
        after = state._replace(late=state.late[:position] + state.late[position + 1 :])
        if request.kind == MARK:
            text = f"the finished mark of query {request.first}, decision {request.second}"
            after = cluster.mark_finished(case, after, request.first, request.second)
        elif request.kind in (END_COMMIT, END_ABORT):
            is_commit = request.kind == END_COMMIT
            result = "commit" if is_commit else "abort"
            text = f"EndTxn(sink id, {result}) with epoch {request.first}"
            after, _ = cluster.end_decision(case, after, request.first, is_commit=is_commit)
        else:
            text = f"InitProducerId(sink id) with epoch {request.first}"
            expected = None if request.first == NONE else request.first
            after, _ = cluster.init_sink_id(case, after, expected)
        yield f"delayed request arrives: {text}", after


def _late_about_tasks(case: Case, state: State, index: int) -> Transitions:
    part = state.partitions[index]
    for position, request in enumerate(part.late):
        left = part._replace(late=part.late[:position] + part.late[position + 1 :])
        after = state._replace(partitions=replaced(state.partitions, index, left))
        if request.kind == INIT:
            text = "InitProducerId"
            task_id = request.task_id
            after, _, _ = cluster.init_task_id(case, after, index, task_id, BY_DELAYED_INIT)
        else:
            is_commit = request.kind == END_COMMIT
            text = f"EndTxn({'commit' if is_commit else 'abort'}) with epoch {request.epoch}"
            after, _ = cluster.end_task_transaction(
                case,
                after,
                index,
                request.task_id,
                request.epoch,
                BY_ROLL_FORWARD if is_commit else BY_SWEEP,
                is_commit=is_commit,
            )
        yield f"delayed request arrives: {text}, partition {index}, id {request.task_id}", after


def _timeouts(case: Case, state: State) -> Transitions:
    spent = state._replace(faults=state.faults._replace(timeouts=state.faults.timeouts - 1))
    if state.sink_id.status == ONGOING:
        yield "the open decision times out", cluster.time_out_decision(case, spent)
    for index, part in enumerate(state.partitions):
        for task_id, current in part.ids:
            if current.status == ONGOING:
                text = f"partition {index}, id {task_id}, epoch {current.epoch}: times out"
                yield text, cluster.time_out(case, spent, index, task_id, BY_TIMEOUT)


def _expiries(state: State) -> Transitions:
    spent = state._replace(faults=state.faults._replace(expiries=state.faults.expiries - 1))
    for index, part in enumerate(state.partitions):
        for task_id, current in part.ids:
            if current.status in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
                text = f"partition {index}, id {task_id}: expires"
                yield text, cluster.expire(spent, index, task_id)


def _strangers(case: Case, state: State) -> Transitions:
    if state.faults.strangers:
        faults = state.faults._replace(strangers=state.faults.strangers - 1)
        text = "another sink writes a decision to the commit topic"
        yield text, cluster.begin_stranger(state._replace(faults=faults))
    if any(record.query == NONE for record in state.log):
        yield "the other sink ends its transaction", cluster.end_stranger(case, state)
