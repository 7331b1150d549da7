"""Symmetry reduction: maps equivalent states to one canonical state.

This mapping reduces the number of states. Invariant: a state and its canonical form have the same
behavior, except that partitions and epochs may be numbered differently.

Partitions are symmetric. They are sorted by their values, so every run explores the same states.
Only the current and the previous epoch of the sink id are distinguished; all older epochs are
equivalent. An attempt whose plan has been fenced has no owner.
"""

from __future__ import annotations

from typing import Final

from integration.sink_model.state import MARK, NONE, Partition, State

_MAX_EPOCH: Final = 2


def canonicalize(state: State) -> State:
    """Return the canonical form of a state."""
    shift = max(state.sink_id.epoch - _MAX_EPOCH, 0)
    owners = [each.owner for part in state.partitions for each in part.attempts]
    if any(owner != NONE and (shift or owner != state.sink_id.epoch) for owner in owners):
        partitions = tuple(_with_owners(state, part, shift) for part in state.partitions)
        state = state._replace(partitions=partitions)
    if shift:
        state = _shifted(state, shift)
    first, *others = state.partitions
    if others and others[-1] < first:
        return state._replace(partitions=state.partitions[::-1])
    return state


def _with_owners(state: State, part: Partition, shift: int) -> Partition:
    """Return the partition with the canonical owners of its attempts."""
    attempts = tuple(
        each._replace(owner=each.owner - shift if each.owner == state.sink_id.epoch else NONE)
        for each in part.attempts
    )
    return part._replace(attempts=tuple(sorted(attempts)))


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
