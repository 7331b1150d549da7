"""Liveness: from any state a fresh driver, left alone, finishes and leaves nothing open.

Purpose: run it, with no faults, as often as Spark would start it again after an error. Invariant: of
a state only that counts which outlives all processes: the cluster, the commit topic, Spark's commit
log. What it must not know: how states are explored.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from integration.sink_model import driver, environment, task
from integration.sink_model.canonical import canonical
from integration.sink_model.case import Case, Violation
from integration.sink_model.garbage import forget
from integration.sink_model.places import DEAD, FINISHED, TASKS
from integration.sink_model.state import NO_WORK, NONE, ONGOING, Faults, Partition, State
from integration.sink_model.turn import DEAD_DRIVER

ERRORS_MAX: Final = 2
"""A driver may fail: a first one that finds lost rows, a second one that finds lost what it wrote."""

STEPS_MAX: Final = 400


def remains(case: Case, state: State) -> State:
    """What is left when every process is dead."""
    state = state._replace(
        drivers=(),
        late=(),
        faults=Faults(),
        log=tuple(record for record in state.log if record.query != NONE),
        partitions=tuple(
            part._replace(attempts=(), late=(), works=()) for part in state.partitions
        ),
    )
    return canonical(forget(case, state))


class FreshDrivers:
    """Runs them, once for each state that remains."""

    def __init__(self, case: Case) -> None:
        self._cases = [
            [
                dataclasses.replace(
                    case, queries=case.queries + (query,) * fresh, fresh_drivers=fresh
                )
                for fresh in range(1, ERRORS_MAX + 2)
            ]
            for query in range(case.query_count)
        ]
        self._case = case
        self._known: set[tuple[object, ...]] = set()
        self._seen: set[State] = set()
        self._lines: list[str] = []

    def check(self, state: State) -> None:
        """Raises `Violation` where they do not finish, with what they did."""
        what_lasts = (
            state.x,
            state.log,
            state.marks,
            state.completed,
            *map(_lasts, state.partitions),
        )
        if what_lasts in self._known:
            return
        self._known.add(what_lasts)
        state = remains(self._case, state)
        if state in self._seen:
            return
        self._seen.add(state)
        self._lines = ["from here on a fresh driver is alone"]
        try:
            for cases in self._cases:
                state = self._finished(cases, state)
            _check_nothing_open(state)
        except Violation as violation:
            raise Violation(str(violation), self._lines) from None

    def _finished(self, cases: list[Case], state: State) -> State:
        for case in cases:
            state = self._run(case, environment.started(case, _with_dead_drivers(case, state)))
            has_finished = state.drivers[-1].at == FINISHED
            state = remains(case, state)
            if has_finished:
                return state
        raise Violation(f"a fresh driver always finishes: {len(cases)} in a row fail")

    def _run(self, case: Case, state: State) -> State:
        number = len(state.drivers) - 1
        for _ in range(STEPS_MAX):
            at = state.drivers[number].at
            if at in (DEAD, FINISHED):
                return state
            after = next(environment.markers(case, state), None)
            if after is None:
                after = next(driver.steps(case, state, number), None)
            if after is None and at == TASKS:
                after = next(task.steps(case, state), None)
            if after is None:
                raise Violation("a fresh driver always finishes: it is stuck")
            line, state = after
            self._lines.append(line)
        raise Violation("a fresh driver always finishes: it goes on and on")


def _lasts(part: Partition) -> tuple[object, ...]:
    return part.ids, part.entries, part.markers, part.committed


def _with_dead_drivers(case: Case, state: State) -> State:
    count = len(case.queries) - 1
    return state._replace(
        drivers=(DEAD_DRIVER,) * count,
        partitions=tuple(part._replace(works=(NO_WORK,) * count) for part in state.partitions),
    )


def _check_nothing_open(state: State) -> None:
    for part in state.partitions:
        for task_id, current in part.ids:
            if current.status == ONGOING:
                raise Violation(f"a fresh driver leaves nothing open: {task_id} is open")
    if state.x.status == ONGOING:
        raise Violation("a fresh driver leaves nothing open: X is open")
