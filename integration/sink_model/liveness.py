"""Checks liveness: from every state, a new driver finishes and leaves no transaction open.

Simulates a crash of all processes and then runs successive new drivers without faults. Invariant:
the result depends only on durable state: the cluster, the commit topic and Spark's commit log.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from integration.sink_model import driver, environment, task
from integration.sink_model.canonicalization import canonicalize
from integration.sink_model.case import FINISHES, NOTHING_OPEN, Case, InvariantViolationError
from integration.sink_model.driver_action import DEAD_DRIVER
from integration.sink_model.labels import DEAD, FINISHED, TASKS
from integration.sink_model.pruning import prune
from integration.sink_model.state import NO_WORK, NONE, ONGOING, Faults, Partition, State

ERRORS_MAX: Final = 2
"""The number of drivers that may fail. The first can find lost rows, and the second can find that
the rows that replaced them are also lost."""

STEPS_MAX: Final = 400


def after_crash(case: Case, state: State) -> State:
    """Return the state after a crash of all processes."""
    state = state._replace(
        drivers=(),
        late=(),
        faults=Faults(),
        log=tuple(record for record in state.log if record.query != NONE),
        partitions=tuple(
            part._replace(attempts=(), late=(), works=()) for part in state.partitions
        ),
    )
    return canonicalize(prune(case, state))


class FreshDrivers:
    """Runs fresh drivers, once for each durable state."""

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
        """Raise `InvariantViolationError` if new drivers do not finish from the given state.

        The error contains the actions of the drivers.
        """
        what_durable_part = (
            state.sink_id,
            state.log,
            state.marks,
            state.completed,
            *map(_durable_part, state.partitions),
        )
        if what_durable_part in self._known:
            return
        self._known.add(what_durable_part)
        state = after_crash(self._case, state)
        if state in self._seen:
            return
        self._seen.add(state)
        self._lines = ["all processes crash; fresh drivers run without faults"]
        try:
            for cases in self._cases:
                state = self._finished(cases, state)
            _check_nothing_open(state)
        except InvariantViolationError as violation:
            raise InvariantViolationError(str(violation), self._lines) from None

    def _finished(self, cases: list[Case], state: State) -> State:
        for case in cases:
            state = self._run(case, environment.started(case, _with_dead_drivers(case, state)))
            has_finished = state.drivers[-1].pc == FINISHED
            state = after_crash(case, state)
            if has_finished:
                return state
        raise InvariantViolationError(f"{FINISHES}: {len(cases)} successive drivers failed")

    def _run(self, case: Case, state: State) -> State:
        number = len(state.drivers) - 1
        for _ in range(STEPS_MAX):
            at = state.drivers[number].pc
            if at in (DEAD, FINISHED):
                return state
            after = next(environment.markers(case, state), None)
            if after is None:
                after = next(driver.steps(case, state, number), None)
            if after is None and at == TASKS:
                after = next(task.steps(case, state), None)
            if after is None:
                raise InvariantViolationError(f"{FINISHES}: the driver is deadlocked")
            line, state = after
            self._lines.append(line)
        raise InvariantViolationError(f"{FINISHES}: the driver does not terminate")


def _durable_part(part: Partition) -> tuple[object, ...]:
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
                raise InvariantViolationError(f"{NOTHING_OPEN}: {task_id} is open")
    if state.sink_id.status == ONGOING:
        raise InvariantViolationError(f"{NOTHING_OPEN}: the sink id is open")
