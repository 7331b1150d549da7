"""Tests that periodic work visits each partition once, a limited number in each step."""

from __future__ import annotations

from typing import Any

import pytest

from broker_ref.replication.partition import PartitionKey
from broker_ref.replication.partition_walk import DISK_WORK, WORK_PER_STEP, PartitionWalk
from broker_ref.schedule import Schedule

COUNT = 3 * WORK_PER_STEP


@pytest.mark.parametrize(("uses_disk", "per_step"), [(False, WORK_PER_STEP), (True, 5)])
def test_a_walk_visits_a_limited_number_of_partitions_per_step(
    uses_disk: bool, per_step: int
) -> None:
    assert WORK_PER_STEP // DISK_WORK == 5
    partitions: dict[PartitionKey, Any] = {
        PartitionKey(topic="t", partition=index): index for index in range(COUNT)
    }
    schedule = Schedule(0)
    visited: list[Any] = []
    ended: list[int] = []

    def visit(partition: Any, now_ms: int) -> bool:
        del now_ms
        visited.append(partition)
        return uses_disk

    walk = PartitionWalk(partitions, schedule=schedule, visit=visit, end=ended.append)
    walk.start(0)
    assert visited == list(range(per_step))
    walk.start(0)  # The walk has not ended.
    del partitions[PartitionKey(topic="t", partition=COUNT - 1)]
    while not ended:
        before = len(visited)
        schedule.run(1)
        assert len(visited) - before <= per_step
    assert visited == list(range(COUNT - 1))
    walk.start(2)
    assert visited[COUNT - 1 :] == visited[:per_step]
