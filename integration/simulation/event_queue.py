"""The event queue of a simulation, in virtual time.

The nodes, the network and the clients share one queue. Invariant: events run in chronological
order, events with the same time run in order of insertion, and time never goes backwards. Therefore
a run depends only on the inserted events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

START_MS: Final = 1_700_000_000_000

STEPS_MAX: Final = 20_000
"""The limit on events per virtual millisecond, which only an endless loop exceeds."""


class EndlessLoopError(Exception):
    """Too many events have run at the same virtual time, which indicates an endless loop."""


class EventQueue:
    """The event queue and the virtual clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._entered = 0
        self.steps = 0

    @property
    def elapsed_ms(self) -> int:
        """The virtual milliseconds since the start of the simulation."""
        return self.now_ms - START_MS

    @property
    def next_ms(self) -> int | None:
        """The time of the next event, or None if there is none."""
        return self._entries[0][0] if self._entries else None

    def at(self, when_ms: int, act: Callable[[], None]) -> None:
        """Run an action at a virtual time, or at the current time if that time has passed."""
        self._entered += 1
        now_ms = self.now_ms
        heapq.heappush(self._entries, (max(now_ms, when_ms), self._entered, act))

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Run an action after a delay in virtual time."""
        self.at(self.now_ms + delay_ms, act)

    def run_until(self, end_ms: int) -> None:
        """Run all events up to a virtual time, and advance the clock to this time."""
        moment_ms, first = -1, 0
        entries = self._entries
        while entries and entries[0][0] <= end_ms:
            when_ms, _, act = heapq.heappop(entries)
            self.steps += 1
            if when_ms != moment_ms:
                moment_ms, first = when_ms, self.steps
            elif self.steps - first > STEPS_MAX:
                raise EndlessLoopError(f"{STEPS_MAX} events ran, but virtual time did not advance")
            self.now_ms = when_ms
            act()
        self.now_ms = max(self.now_ms, end_ms)
