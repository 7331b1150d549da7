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
from integration.sink_model.state import NONE, ONGOING, Faults, State
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
                for fresh in range(ERRORS_MAX + 2)
            ]
            for query in range(case.query_count)
        ]
        self._seen: set[State] = set()
        self.errors_max = 0

    def check(self, state: State) -> None:
        """Raises `Violation` where they do not finish."""
        case = self._cases[0][0]
        state = remains(case, state)
        if state in self._seen:
            return
        self._seen.add(state)
        for cases in self._cases:
            state = self._finished(cases, state)
        open_ids = [
            task_id for part in state.partitions for task_id, now in part.ids if now.status == ONGOING
        ]
        if open_ids or state.x.status == ONGOING:
            raise Violation(f"a fresh driver leaves nothing open: {open_ids or 'X'} stays open")

    def _finished(self, cases: list[Case], state: State) -> State:
        for errors in range(ERRORS_MAX + 1):
            case = cases[errors + 1]
            padding = (DEAD_DRIVER,) * (len(case.queries) - 1)
            state = state._replace(drivers=padding)
            state = self._run(case, environment.started(case, _with_works(state)))
            if state.drivers[-1].at == FINISHED:
                self.errors_max = max(self.errors_max, errors)
                return remains(case, state)
            state = remains(case, state)
        raise Violation(f"a fresh driver always finishes: {ERRORS_MAX + 1} in a row fail")

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
                raise Violation(f"a fresh driver always finishes: it is stuck, {state}")
            state = after[1]
        raise Violation("a fresh driver always finishes: it never ends")


def _with_works(state: State) -> State:
    from integration.sink_model.state import NO_WORK

    return state._replace(
        partitions=tuple(
            part._replace(works=(NO_WORK,) * len(state.drivers)) for part in state.partitions
        )
    )
