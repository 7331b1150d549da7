"""Periodic tasks and one-time timers of a node, in virtual time.

Invariants: a task runs at most once per call to `run`, even if several intervals have passed. A
cancelled timer never runs. Timers run in the order of their deadlines. Cancelled timers do not
accumulate, because they are removed when the number of stored timers reaches a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from broker_ref.frozen import dataclass

TIMERS_KEPT_MIN: Final = 64
"""Cancelled timers are removed only if at least this many timers are stored."""


@dataclass(slots=True, kw_only=True)
class _Task:
    interval_ms: int
    run: Callable[[int], None]
    next_ms: int


@dataclass(slots=True, kw_only=True)
class Timer:
    """A callback that runs once unless it is cancelled."""

    deadline_ms: int
    run: Callable[[int], None] | None

    def cancel(self) -> None:
        """Prevent the timer from running, unless it has already run."""
        self.run = None

    @property
    def is_pending(self) -> bool:
        """Return whether the timer has neither run nor been cancelled."""
        return self.run is not None


class Schedule:
    """The tasks and timers of a node, and their deadlines."""

    def __init__(self, now_ms: int) -> None:
        self._start_ms = now_ms
        self._tasks: list[_Task] = []
        self._timers: list[tuple[int, int, Timer]] = []
        self._next_task_ms: int | None = None
        self._timers_made = 0
        self._timers_kept_max = TIMERS_KEPT_MIN

    def every(self, interval_ms: int, run: Callable[[int], None]) -> None:
        """Run a task every `interval_ms` milliseconds with the current time as its argument."""
        self._tasks.append(
            _Task(interval_ms=interval_ms, run=run, next_ms=self._start_ms + interval_ms)
        )
        self._update_next_task()

    def at(self, deadline_ms: int, run: Callable[[int], None]) -> Timer:
        """Run a callback once at the deadline, with the current time as its argument."""
        if len(self._timers) >= self._timers_kept_max:
            self._drop_cancelled()
        timer = Timer(deadline_ms=deadline_ms, run=run)
        self._timers_made += 1
        heapq.heappush(self._timers, (deadline_ms, self._timers_made, timer))
        return timer

    def run(self, now_ms: int) -> None:
        """Run all tasks and timers that are due.

        Timers that are added during this call do not run before the next call.
        """
        if self._next_task_ms is not None and self._next_task_ms <= now_ms:
            self._run_tasks(now_ms)
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

    def _run_tasks(self, now_ms: int) -> None:
        try:
            for task in self._tasks:
                if task.next_ms <= now_ms:
                    task.next_ms = now_ms + task.interval_ms
                    task.run(now_ms)
        finally:
            self._update_next_task()

    def _update_next_task(self) -> None:
        self._next_task_ms = min((task.next_ms for task in self._tasks), default=None)

    def _drop_cancelled(self) -> None:
        """Remove cancelled timers.

        Most timers are cancelled, some of them hours before their deadlines. Without this method, a
        cancelled timer would stay in memory until its deadline.
        """
        self._timers = [entry for entry in self._timers if entry[2].is_pending]
        heapq.heapify(self._timers)
        self._timers_kept_max = max(2 * len(self._timers), TIMERS_KEPT_MIN)

    def next_deadline_ms(self) -> int | None:
        """Return the deadline of the next task or timer, or None if there are none."""
        while self._timers and self._timers[0][2].run is None:
            heapq.heappop(self._timers)
        return earliest(self._next_task_ms, self._timers[0][0] if self._timers else None)


def earliest(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two deadlines. None means that there is no deadline."""
    if one_ms is None or (other_ms is not None and other_ms < one_ms):
        return other_ms
    return one_ms
