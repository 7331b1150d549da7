"""What is to happen when, in virtual time.

Purpose: one list of things to do, for nodes, network and clients alike. Invariant: things happen in
the order of their times, those of one time in the order in which they were entered, and time never
goes back; so a run depends on nothing but what was entered. What it must not know: what happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

START_MS: Final = 1_700_000_000_000

STEPS_MAX: Final = 20_000
"""Within one millisecond: more are nodes that send each other the same for ever."""


class RestlessError(Exception):
    """Things go on happening without any time passing."""


class Agenda:
    """The things to do, and the time."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._entered = 0
        self.steps = 0

    @property
    def elapsed_ms(self) -> int:
        """Since the beginning."""
        return self.now_ms - START_MS

    def at(self, when_ms: int, act: Callable[[], None]) -> None:
        """Do something when a time has come; now where that is past."""
        self._entered += 1
        heapq.heappush(self._entries, (max(when_ms, self.now_ms), self._entered, act))

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something some time from now."""
        self.at(self.now_ms + delay_ms, act)

    def run_until(self, end_ms: int) -> None:
        """Let time pass."""
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
