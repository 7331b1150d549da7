"""Divides a read into tasks and micro-batches.

`split` and `rate_limit` implement the rules of Spark's connector (`KafkaOffsetRangeCalculator` and
`KafkaMicroBatchStream.rateLimit`). Therefore, the same options result in the same tasks and
micro-batches.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """A range that a task reads. If the topic is recreated, its id differs from `topic_id`."""

    fetch_range: FetchRange
    topic_id: str | None


def split(
    ranges: Iterable[FetchRange], *, min_partitions: int | None, max_records: int | None
) -> list[FetchRange]:
    """Remove empty ranges and split large ranges.

    First, each range with more than `max_records` offsets is split into ranges of at most this
    size. If the result has fewer than `min_partitions` ranges, the larger ranges are split in
    proportion to their size. The total is then about `min_partitions` ranges. If a range is too
    small to be split, the other ranges of its topic partition are not split either.
    """
    found = [r for r in ranges if r.size > 0]
    if max_records is not None:
        found = [part for r in found for part in _split_evenly(r, -(-r.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    # Ranges that are too small to be split do not affect how the other ranges are split.
    total = sum(r.size for r in found)
    small = [r for r in found if _parts(r.size, total, min_partitions) == 1]
    large_total = total - sum(r.size for r in small)
    large_parts = max(min_partitions - len(small), 1)
    kept = {r.topic_partition for r in small}
    return [
        part
        for r in found
        for part in _split_evenly(
            r, 1 if r.topic_partition in kept else _parts(r.size, large_total, large_parts)
        )
    ]


def pack(
    ranges: Sequence[T], max_partitions: int | None, size: Callable[[T], int]
) -> list[tuple[T, ...]]:
    """Distribute ranges among at most `max_partitions` tasks of similar size.

    The largest ranges are distributed first. Each range is added to the task that is currently the
    smallest. The ranges of a task remain in their original order. Without `max_partitions`, there
    is one task for each range.
    """
    if max_partitions is None or len(ranges) <= max_partitions:
        return [(each,) for each in ranges]
    tasks: list[list[int]] = [[] for _ in range(max_partitions)]
    smallest_first = [(0, task) for task in range(max_partitions)]
    for index in sorted(range(len(ranges)), key=lambda index: -size(ranges[index])):
        total, task = smallest_first[0]
        tasks[task].append(index)
        heapq.heapreplace(smallest_first, (total + size(ranges[index]), task))
    return [tuple(ranges[index] for index in sorted(task)) for task in tasks]


def _parts(size: int, total: int, total_parts: int) -> int:
    return max(math.floor(size / total * total_parts + 0.5), 1)


def _split_evenly(fetch_range: FetchRange, parts: int) -> Sequence[FetchRange]:
    """Split a range into ranges that are not empty and whose sizes differ by at most one."""
    found = []
    start, remaining = fetch_range.start_offset, fetch_range.size
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        if size:
            found.append(
                FetchRange(
                    topic_partition=fetch_range.topic_partition,
                    start_offset=start,
                    end_offset=start + size,
                )
            )
        start += size
    return found


def backlog(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets between `start` and `latest`.

    A partition whose latest offset is lower than its start offset counts as zero.
    """
    return sum(max(end - start.get(partition, end), 0) for partition, end in latest.items())


def rate_limit(
    limit: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the end offsets of a micro-batch with about `limit` offsets.

    The limit is divided among the partitions in proportion to their backlog. `start` must contain
    every partition of `latest`. At least one offset is read from every partition with a backlog,
    so the total can exceed the limit if there are many partitions.
    """
    total = backlog(start, latest)
    if total == 0:
        return dict(latest)
    ends = {}
    for partition, end in latest.items():
        size = end - start[partition]
        if size <= 0:
            ends[partition] = end
            continue
        share = limit * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        ends[partition] = min(end, start[partition] + whole)
    return ends
