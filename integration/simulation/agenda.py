"""The event queue of a simulation, in virtual time.

Purpose: one queue for nodes, network and clients. Invariant: events happen in the order of their
times, events of the same time in the order of insertion, and time never goes back; so a run depends
only on the inserted events. What it must not know: the events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

START_MS: Final = 1_700_000_000_000

STEPS_MAX: Final = 20_000
"""Limit per millisecond: more events mean that nodes message each other forever."""


class RestlessError(Exception):
    """Events keep happening without any time passing."""


class Agenda:
    """The queue, and the virtual clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._entered = 0
        self.steps = 0

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the start."""
        return self.now_ms - START_MS

    def at(self, when_ms: int, act: Callable[[], None]) -> None:
        """Run an action at a time, or now if that time is past."""
        self._entered += 1
        heapq.heappush(self._entries, (max(when_ms, self.now_ms), self._entered, act))

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Run an action after a delay."""
        self.at(self.now_ms + delay_ms, act)

    def run_until(self, end_ms: int) -> None:
        """Advance the clock and run the events that are due."""
        moment_ms, first = -1, 0
        while self._entries and self._entries[0][0] <= end_ms:
            when_ms, _, act = heapq.heappop(self._entries)
            self.steps += 1
            if when_ms != moment_ms:
                moment_ms, first = when_ms, self.steps
            elif self.steps - first > STEPS_MAX:
                raise RestlessError(f"{STEPS_MAX} steps without any time passing")
            self.now_ms = when_ms
            act()
        self.now_ms = max(self.now_ms, end_ms)
