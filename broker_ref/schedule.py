"""What a node does from time to time, or once when its time comes.

Purpose: run tasks at fixed intervals of virtual time, and timers once. Invariant: a task runs at
most once however far the time has moved; a timer that was cancelled never runs; timers run in the
order of their deadlines; those that were cancelled are let go of long before theirs, so that no
more than twice the pending ones are kept. What it must not know: what the tasks do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TIMERS_KEPT_MIN: Final = 64
"""As many timers may be kept without a look at whether they are still pending."""


@dataclass(slots=True, kw_only=True)
class _Task:
    interval_ms: int
    run: Callable[[int], None]
    next_ms: int


@dataclass(slots=True, kw_only=True)
class Timer:
    """Something that runs once; `cancel` makes it never run."""

    deadline_ms: int
    run: Callable[[int], None] | None

    def cancel(self) -> None:
        """Not to run any more; nothing happens where it has run."""
        self.run = None

    @property
    def is_pending(self) -> bool:
        """Whether it is still to run."""
        return self.run is not None


class Schedule:
    """Tasks and timers, and when each is next due."""

    def __init__(self, now_ms: int) -> None:
        self._start_ms = now_ms
        self._tasks: list[_Task] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._timers_made = 0
        self._timers_kept_max = TIMERS_KEPT_MIN

    def every(self, interval_ms: int, run: Callable[[int], None]) -> None:
        """Run a task, which gets the time, each time this many milliseconds have passed."""
        self._tasks.append(
            _Task(interval_ms=interval_ms, run=run, next_ms=self._start_ms + interval_ms)
        )

    def at(self, deadline_ms: int, run: Callable[[int], None]) -> Timer:
        """Run once, with the time, when the deadline has come."""
        if len(self._timers) >= self._timers_kept_max:
            self._drop_cancelled()
        timer = Timer(deadline_ms=deadline_ms, run=run)
        self._timers_made += 1
        heapq.heappush(self._timers, (deadline_ms, self._timers_made, timer))
        return timer

    def run(self, now_ms: int) -> None:
        """Run the tasks and timers that are due; a timer set meanwhile waits for the next call."""
        for task in self._tasks:
            if task.next_ms <= now_ms:
                task.next_ms = now_ms + task.interval_ms
                task.run(now_ms)
        newest = self._timers_made
        later = []
        try:
            while self._timers and self._timers[0][0] <= now_ms:
                entry = heapq.heappop(self._timers)
                _, number, timer = entry
                run = timer.run
                if number > newest:
                    later.append(entry)
                elif run is not None:
                    timer.run = None
                    run(now_ms)
        finally:
            for entry in later:
                heapq.heappush(self._timers, entry)

    def _drop_cancelled(self) -> None:
        """Most timers are cancelled, some of them hours before their deadline."""
        self._timers = [entry for entry in self._timers if entry[2].is_pending]
        heapq.heapify(self._timers)
        self._timers_kept_max = max(2 * len(self._timers), TIMERS_KEPT_MIN)

    def next_deadline_ms(self) -> int | None:
        """When the next task or timer is due."""
        while self._timers and self._timers[0][2].run is None:
            heapq.heappop(self._timers)
        deadlines = [task.next_ms for task in self._tasks]
        if self._timers:
            deadlines.append(self._timers[0][0])
        return min(deadlines, default=None)
