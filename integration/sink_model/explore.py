"""Exploring: every state of a case, breadth first, so that a schedule found is a shortest one.

Purpose: run a case and tell what was found. Invariant: a state is expanded once, in its canonical
form; a schedule is one of states as they are, so that a partition keeps its number. What it must not
know: the protocol.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import ge

from integration.sink_model import driver, environment, task
from integration.sink_model.canonical import canonical
from integration.sink_model.case import Case, Violation
from integration.sink_model.liveness import FreshDrivers
from integration.sink_model.state import NO_FAULTS, Faults, State, initial

Transition = tuple[str, State]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What exploring a case has found. `is_complete` is False where there were too many states.

    `schedule` leads from the beginning to where the violation is one transition away, or a fresh
    driver's whole way; a line for each transition.
    """

    case: Case
    states: int
    depth: int
    seconds: float
    is_complete: bool
    violation: str | None
    schedule: tuple[str, ...] = ()


def transitions(case: Case, state: State) -> Iterator[Transition]:
    """All that may happen next."""
    for number in range(len(state.drivers)):
        yield from driver.steps(case, state, number)
    yield from task.steps(case, state)
    yield from environment.steps(case, state)


def beginning(case: Case) -> State:
    """Nothing has ever happened."""
    return initial(case.query_count, case.empty, case.faults)


def _check_offsets(state: State) -> None:
    """Offsets commit with their decision or not at all."""
    decided = [-1] * len(state.offsets)
    for record in state.log:
        if record.query >= 0 and (not record.is_open or state.x.status == 2):
            decided[record.query] = record.batch
    if tuple(decided) != state.offsets:
        raise Violation(
            "offsets commit with their decision or not at all: by query, decided are batches "
            f"{decided} and the group has the offsets of {list(state.offsets)}"
        )


def explore(case: Case, *, states_max: int = 5_000_000) -> Outcome:
    """Every state of a case, until a property is violated or there are too many."""
    begun_s = time.process_time()
    fresh_drivers = FreshDrivers(case)
    first = canonical(beginning(case))
    parents: dict[State, State | None] = {first: None}
    faults_left: dict[State, list[Faults]] = {}
    frontier, depth = [first], 0
    violation: str | None = None
    lines: tuple[str, ...] = ()
    at = first
    gc.disable()  # states hold each other and nothing holds itself
    try:
        while frontier and len(parents) <= states_max:
            following: list[State] = []
            for at in frontier:
                _check_offsets(at)
                fresh_drivers.check(at)
                for _, following_state in transitions(case, at):
                    after = canonical(following_state)
                    if _is_new(faults_left, after):
                        parents[after] = at
                        following.append(after)
            frontier = following
            depth += bool(frontier)
    except Violation as found:
        violation, lines = str(found), found.lines
    finally:
        gc.enable()
    return Outcome(
        case=case,
        states=len(parents),
        depth=depth,
        seconds=time.process_time() - begun_s,
        is_complete=violation is None and not frontier,
        violation=violation,
        schedule=() if violation is None else _schedule(case, parents, at) + lines,
    )


def _is_new(faults_left: dict[State, list[Faults]], state: State) -> bool:
    """Whether more may happen from here than from any state before: none had as many faults left."""
    left = state.faults
    known = faults_left.setdefault(state._replace(faults=NO_FAULTS), [])
    for other in known:
        if all(map(ge, other, left)):
            return False
    known.append(left)
    return True


def _schedule(case: Case, parents: dict[State, State | None], last: State) -> tuple[str, ...]:
    """How a state is reached: that from which the next transition violates, or which does itself."""
    chain: list[State] = []
    here: State | None = last
    while here is not None:
        chain.append(here)
        here = parents[here]
    state, lines = beginning(case), []
    for wanted in chain[-2::-1]:
        for line, after in transitions(case, state):
            if canonical(after) == wanted:
                state = after
                lines.append(line)
                break
        else:
            raise AssertionError("a canonical form does not behave as its state")
    return tuple(lines)
