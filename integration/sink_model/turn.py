"""One driver that acts: where it stands, and how a state is made in which it stands elsewhere.

Purpose: what all steps of a driver share. Invariant: a driver changes its own place and work only;
all else it changes by requests of `cluster`. What it must not know: the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from integration.sink_model.case import Case
from integration.sink_model.garbage import forget
from integration.sink_model.places import DEAD, TITLES
from integration.sink_model.state import (
    NO_WORK,
    NONE,
    Driver,
    LateRequest,
    State,
    TaskRequest,
    Work,
    replaced,
)

Transition = tuple[str, State]
Transitions = Iterator[Transition]

DEAD_DRIVER: Final = Driver(DEAD, 0, NONE, NONE, 0, ())


class Turn:
    """Driver `number` of `state`, which is to act."""

    __slots__ = ("case", "driver", "is_lossy", "number", "query", "state")

    def __init__(self, case: Case, state: State, number: int) -> None:
        self.case = case
        self.state = state
        self.number = number
        self.driver = state.drivers[number]
        self.query = case.queries[number]
        self.is_lossy = state.faults.answers > 0

    def to(
        self,
        state: State,
        at: int,
        *,
        owner: int | None = None,
        unfinished: tuple[tuple[int, int], ...] | None = None,
    ) -> State:
        """The state with this driver elsewhere."""
        old = self.driver
        driver = Driver(
            at,
            old.batch,
            old.owner if owner is None else owner,
            old.last,
            old.number,
            old.unfinished if unfinished is None else unfinished,
        )
        return state._replace(drivers=replaced(state.drivers, self.number, driver))

    def dies(self, state: State) -> State:
        """The driver ends: its query has failed. Attempts of its tasks may still act."""
        state = state._replace(drivers=replaced(state.drivers, self.number, DEAD_DRIVER))
        return forget(self.case, self.with_works(state, [NO_WORK] * len(state.partitions)))

    def with_works(self, state: State, works: Sequence[Work]) -> State:
        """The state with other work of this driver, by partition."""
        return state._replace(
            partitions=tuple(
                part._replace(works=replaced(part.works, self.number, work))
                for part, work in zip(state.partitions, works, strict=True)
            )
        )

    def with_work(self, state: State, index: int, work: Work) -> State:
        """The state with other work of this driver with one partition."""
        part = state.partitions[index]
        part = part._replace(works=replaced(part.works, self.number, work))
        return state._replace(partitions=replaced(state.partitions, index, part))

    def works(self, state: State) -> list[Work]:
        """The work of this driver, by partition."""
        return [part.works[self.number] for part in state.partitions]

    def lossy(self, state: State) -> State:
        """One answer less to lose."""
        return state._replace(faults=state.faults._replace(answers=state.faults.answers - 1))

    def late(self, state: State, kind: int, first: int, second: int = 0) -> State:
        """A request of X is under way and its sender does not wait for it."""
        request = LateRequest(kind, first, second)
        return self.lossy(state._replace(late=tuple(sorted((*state.late, request)))))

    def late_about_task(self, state: State, index: int, request: TaskRequest) -> State:
        """The same about a task's id."""
        part = state.partitions[index]
        part = part._replace(late=tuple(sorted((*part.late, request))))
        return self.lossy(state._replace(partitions=replaced(state.partitions, index, part)))

    def says(self, what: str) -> str:
        """A line of a schedule."""
        driver = self.driver
        return f"driver {self.number}, batch {driver.batch}: {TITLES[driver.at]}: {what}"
