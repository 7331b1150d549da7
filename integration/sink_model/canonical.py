"""The one form of all states that behave the same.

Purpose: fewer states. Invariant: what may happen from a state and from its canonical form is the
same, but for the names of partitions and epochs. What it must not know: who does what.

Partitions are sorted by their values, since which of two is which changes nothing; so every run keeps
the same one of two mirror images. All that matters of an epoch of X
that somebody holds is whether it is the present one, the one before, or older. A late request that
can change nothing any more is none.
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

_EPOCH_SHOWN: Final = 2


def canonical(state: State) -> State:
    """The state that stands for this one."""
    if state.late:
        late = tuple(each for each in state.late if _matters(state, each))
        if len(late) != len(state.late):
            state = state._replace(late=late)
    for part in state.partitions:
        if part.late:
            state = state._replace(
                partitions=tuple(_with_what_matters(p) for p in state.partitions)
            )
            break
    shift = state.x.epoch - _EPOCH_SHOWN
    if shift > 0:
        state = _shifted(state, shift)
    first, *others = state.partitions
    if others and others[-1] < first:
        return state._replace(partitions=state.partitions[::-1])
    return state


def _matters(state: State, request: LateRequest) -> bool:
    if request.kind == INIT:
        return True
    if request.kind == MARK:
        return request.second > state.marks[request.first]
    return state.x.status == ONGOING and state.x.epoch == request.first


def _with_what_matters(part: Partition) -> Partition:
    late = tuple(each for each in part.late if _matters_to(part, each))
    return part if len(late) == len(part.late) else part._replace(late=late)


def _matters_to(part: Partition, request: TaskRequest) -> bool:
    if request.kind == INIT:
        return True
    current = find(part.ids, request.task_id)
    may_end = current.status == ONGOING or request.kind == END_ABORT
    return may_end and current.epoch == request.epoch


def _shifted(state: State, shift: int) -> State:
    x = state.x
    last = x.last_epoch if x.last_epoch == NONE else x.last_epoch - shift
    return state._replace(
        x=x._replace(epoch=_EPOCH_SHOWN, last_epoch=last),
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
