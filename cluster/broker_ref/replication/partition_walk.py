"""Periodic work on all partitions of a broker, in bounded steps.

Invariants: one step visits a limited number of partitions, so that the broker can serve requests
and send heartbeats between the steps. A partition that is removed during an iteration is not
visited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.schedule import Schedule

WORK_PER_STEP: Final = 250
"""The number of partitions that one step visits if they require no disk access."""

DISK_WORK: Final = 50
"""A visit with disk access counts as this many visits without disk access."""

Visit = Callable[[Partition, int], bool]
"""Does the work for one partition at the current time. Returns whether it accessed the disk."""


class PartitionWalk:
    """A task that visits all partitions whenever it is started."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        *,
        schedule: Schedule,
        visit: Visit,
        end: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Create the task. `end` is called after the last visit, with the current time."""
        self._partitions = partitions
        self._schedule = schedule
        self._visit = visit
        self._end = end
        self._left: list[PartitionKey] | None = None

    def start(self, now_ms: int) -> None:
        """Start visiting all partitions, unless the previous walk is still running."""
        if self._left is None:
            self._left = list(self._partitions)[::-1]
            self._step(now_ms)

    def _step(self, now_ms: int) -> None:
        left, self._left = self._left, None  # If a visit fails, the walk ends.
        assert left is not None
        work = 0
        while left and work < WORK_PER_STEP:
            partition = self._partitions.get(left.pop())
            if partition is not None:
                work += DISK_WORK if self._visit(partition, now_ms) else 1
        if left:
            self._left = left
            self._schedule.at(now_ms, self._step)
        else:
            self._end(now_ms)
