"""The model checker: a breadth-first search of a case's states.

Checks the invariants in every reachable state and finds a shortest counterexample. Invariant: each
canonical state is expanded once. A trace consists of concrete states, so a partition keeps its
number in the trace.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import ge

from integration.sink_model import driver, environment, task
from integration.sink_model.canonicalization import canonicalize
from integration.sink_model.case import OFFSETS_WITH_DECISION, Case, InvariantViolationError
from integration.sink_model.liveness import FreshDrivers
from integration.sink_model.pruning import prune
from integration.sink_model.state import NO_FAULTS, Faults, State, initial

Transition = tuple[str, State]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a case.

    `is_complete` is false after a violation or if there were too many states.

    `trace` is the counterexample, with one line per action. The trace ends in the state in which
    the next action violates the invariant. If a driver of the liveness check violates the
    invariant, the trace ends with the actions of this driver.
    """

    case: Case
    states: int
    depth: int
    seconds: float
    is_complete: bool
    violation: str | None
    trace: tuple[str, ...] = ()


def transitions(case: Case, state: State) -> Iterator[Transition]:
    """Yield the enabled actions, each with its next state."""
    for number in range(len(state.drivers)):
        for line, after in driver.steps(case, state, number):
            yield line, prune(case, after)
    for line, after in task.steps(case, state):
        yield line, prune(case, after)
    for line, after in environment.steps(case, state):
        yield line, prune(case, after)


def initial_state(case: Case) -> State:
    """Return the initial state of a case."""
    return initial(case.query_count, case.empty, case.faults)


def _check_offsets(state: State) -> None:
    """Check that offsets are committed with their decision or not at all."""
    decided = [-1] * len(state.offsets)
    for record in state.log:
        if record.query >= 0 and (not record.is_open or state.sink_id.status == 2):
            decided[record.query] = record.batch
    if tuple(decided) != state.offsets:
        raise InvariantViolationError(
            f"{OFFSETS_WITH_DECISION}: the last decided batches of the queries are {decided}, but "
            f"the group has the offsets of batches {list(state.offsets)}"
        )


def explore(case: Case, *, states_max: int = 5_000_000) -> Outcome:
    """Explore all states; stop at a violated invariant or after `states_max` states."""
    begun_s = time.process_time()
    fresh_drivers = FreshDrivers(case)
    first = canonicalize(initial_state(case))
    parents: dict[State, State | None] = {first: None}
    faults_left: dict[State, list[Faults]] = {}
    frontier, depth = [first], 0
    violation: str | None = None
    lines: tuple[str, ...] = ()
    at = first
    gc.disable()  # states contain no reference cycles
    try:
        while frontier and len(parents) <= states_max:
            following: list[State] = []
            for at in frontier:
                _check_offsets(at)
                fresh_drivers.check(at)
                for _, following_state in transitions(case, at):
                    after = canonicalize(following_state)
                    if _is_new(faults_left, after):
                        parents[after] = at
                        following.append(after)
            frontier = following
            depth += bool(frontier)
    except InvariantViolationError as found:
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
        trace=() if violation is None else _trace(case, parents, at) + lines,
    )


def _is_new(faults_left: dict[State, list[Faults]], state: State) -> bool:
    """Return False if an equal state that permits at least the same faults is already known."""
    left = state.faults
    known = faults_left.setdefault(state._replace(faults=NO_FAULTS), [])
    for other in known:
        if all(map(ge, other, left)):
            return False
    known.append(left)
    return True


def _trace(case: Case, parents: dict[State, State | None], last: State) -> tuple[str, ...]:
    """Return the actions that lead to a state."""
    chain: list[State] = []
    here: State | None = last
    while here is not None:
        chain.append(here)
        here = parents[here]
    state, lines = initial_state(case), []
    for wanted in chain[-2::-1]:
        for line, after in transitions(case, state):
            if canonicalize(after) == wanted:
                state = after
                lines.append(line)
                break
        else:
            raise AssertionError("a state and its canonical form behave differently")
    return tuple(lines)
