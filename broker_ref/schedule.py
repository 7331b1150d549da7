"""What a broker does from time to time.

Purpose: run tasks at fixed intervals of virtual time. Invariant: a task runs at most once however
far the time has moved. What it must not know: what the tasks do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class _Task:
    interval_ms: int
    run: Callable[[int], None]
    next_ms: int


class Schedule:
    """Tasks and when each is next due."""

    def __init__(self, now_ms: int) -> None:
        self._start_ms = now_ms
        self._tasks: list[_Task] = []

    def every(self, interval_ms: int, run: Callable[[int], None]) -> None:
        """Run a task, which gets the time, each time this many milliseconds have passed."""
        self._tasks.append(
            _Task(interval_ms=interval_ms, run=run, next_ms=self._start_ms + interval_ms)
        )

    def run(self, now_ms: int) -> None:
        """Run the tasks that are due."""
        for task in self._tasks:
            if task.next_ms <= now_ms:
                task.next_ms = now_ms + task.interval_ms
                task.run(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next task is due."""
        return min((task.next_ms for task in self._tasks), default=None)
