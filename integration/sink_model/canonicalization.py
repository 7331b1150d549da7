"""Symmetry reduction: maps equivalent states to one canonical state.

This reduces the number of states. Invariant: a state and its canonical form have the same behavior,
except that partitions and epochs may have different numbers.

Partitions are symmetric. They are sorted by their values, so that every run explores the same
states. Of the sink id's epochs, only the current one and the previous one are distinguished from
older epochs. Delayed requests that cannot have an effect are removed.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model.state import (
    END_ABORT,
    INIT,
    MARK,
    NONE,
    ONGOING,
    LateRequest,
    Partition,
    State,
    TaskRequest,
    find,
)

_MAX_EPOCH: Final = 2


def canonicalize(state: State) -> State:
    """Return the canonical form of a state."""
    if state.late:
        late = tuple(each for each in state.late if _is_effective(state, each))
        if len(late) != len(state.late):
            state = state._replace(late=late)
    for part in state.partitions:
        if part.late:
            state = state._replace(
                partitions=tuple(_without_ineffective_requests(p) for p in state.partitions)
            )
            break
    shift = state.sink_id.epoch - _MAX_EPOCH
    if shift > 0:
        state = _shifted(state, shift)
    first, *others = state.partitions
    if others and others[-1] < first:
        return state._replace(partitions=state.partitions[::-1])
    return state


def _is_effective(state: State, request: LateRequest) -> bool:
    if request.kind == INIT:
        return True
    if request.kind == MARK:
        return request.second > state.marks[request.first]
    return state.sink_id.status == ONGOING and state.sink_id.epoch == request.first


def _without_ineffective_requests(part: Partition) -> Partition:
    late = tuple(each for each in part.late if _is_effective_on_task(part, each))
    return part if len(late) == len(part.late) else part._replace(late=late)


def _is_effective_on_task(part: Partition, request: TaskRequest) -> bool:
    if request.kind == INIT:
        return True
    current = find(part.ids, request.task_id)
    may_end = current.status == ONGOING or request.kind == END_ABORT
    return may_end and current.epoch == request.epoch


def _shifted(state: State, shift: int) -> State:
    sink_id = state.sink_id
    last = sink_id.last_epoch if sink_id.last_epoch == NONE else sink_id.last_epoch - shift
    return state._replace(
        sink_id=sink_id._replace(epoch=_MAX_EPOCH, last_epoch=last),
        drivers=tuple(
            driver if driver.owner == NONE else driver._replace(owner=max(driver.owner - shift, 0))
            for driver in state.drivers
        ),
        late=tuple(
            request
            if request.kind == MARK or request.first == NONE
            else request._replace(first=max(request.first - shift, 0))
            for request in state.late
        ),
    )
