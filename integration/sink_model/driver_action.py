"""The context of a driver's action, and the state changes that several actions share.

The methods set the program counter and the remaining work. Invariant: a driver changes only its
program counter and its remaining work directly. Everything else changes through requests in
`cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from integration.sink_model.case import Case
from integration.sink_model.labels import DEAD, TITLES
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


class DriverAction:
    """An action of the driver `number` in `state`."""

    __slots__ = ("case", "driver", "may_lose_response", "number", "query", "state")

    def __init__(self, case: Case, state: State, number: int) -> None:
        self.case = case
        self.state = state
        self.number = number
        self.driver = state.drivers[number]
        self.query = case.queries[number]
        self.may_lose_response = state.faults.lost_responses > 0

    def go_to(
        self,
        state: State,
        pc: int,
        *,
        owner: int | None = None,
        unfinished: tuple[tuple[int, int], ...] | None = None,
    ) -> State:
        """Return the state with a new program counter of this driver.

        If `owner` is NONE, the driver forgets its plan.
        """
        old = self.driver
        driver = Driver(
            pc,
            old.batch,
            old.owner if owner is None else owner,
            old.last,
            old.number,
            old.unfinished if unfinished is None else unfinished,
            NONE if owner == NONE else old.generation,
        )
        return state._replace(drivers=replaced(state.drivers, self.number, driver))

    def fail(self, state: State) -> State:
        """Return the state after the driver's query has failed. Its task attempts can still act."""
        state = state._replace(drivers=replaced(state.drivers, self.number, DEAD_DRIVER))
        return self.with_works(state, [NO_WORK] * len(state.partitions))

    def with_works(self, state: State, works: Sequence[Work]) -> State:
        """Return the state with this driver's new work on each partition."""
        return state._replace(
            partitions=tuple(
                part._replace(works=replaced(part.works, self.number, work))
                for part, work in zip(state.partitions, works, strict=True)
            )
        )

    def with_work(self, state: State, index: int, work: Work) -> State:
        """Return the state with this driver's new work on one partition."""
        part = state.partitions[index]
        part = part._replace(works=replaced(part.works, self.number, work))
        return state._replace(partitions=replaced(state.partitions, index, part))

    def works(self, state: State) -> list[Work]:
        """Return the work of this driver on each partition."""
        return [part.works[self.number] for part in state.partitions]

    def spend_lost_response(self, state: State) -> State:
        """Return the state in which one fewer request can be delayed or lose its response."""
        return state._replace(
            faults=state.faults._replace(lost_responses=state.faults.lost_responses - 1)
        )

    def delay(self, state: State, kind: int, first: int, second: int = 0) -> State:
        """Return the state with a delayed request for the sink id or a delayed finished record."""
        request = LateRequest(kind, first, second)
        return self.spend_lost_response(state._replace(late=tuple(sorted((*state.late, request)))))

    def delay_for_task(self, state: State, index: int, request: TaskRequest) -> State:
        """Return the state with a delayed request for a task's transactional id."""
        part = state.partitions[index]
        part = part._replace(late=tuple(sorted((*part.late, request))))
        return self.spend_lost_response(
            state._replace(partitions=replaced(state.partitions, index, part))
        )

    def describe(self, what: str) -> str:
        """Return the line of the trace that describes the action."""
        driver = self.driver
        return f"driver {self.number}, batch {driver.batch}: {TITLES[driver.pc]}: {what}"
