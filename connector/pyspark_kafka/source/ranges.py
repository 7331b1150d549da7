"""Arithmetic on ranges of offsets: how a read is shared out over tasks and over micro-batches.

Purpose: pure functions with the rules of Spark's connector (KafkaOffsetRangeCalculator and
KafkaMicroBatchStream.rateLimit), so that the same options give the same tasks and the same
micro-batches. What it must not know: clients, options, Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.kafka.topics import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """One task's work. `topic_id` tells a topic from another one created later by its name."""

    fetch_range: FetchRange
    topic_id: str | None


def split(
    ranges: Iterable[FetchRange], *, min_partitions: int | None, max_records: int | None
) -> list[FetchRange]:
    """Leave out empty ranges and cut large ones.

    First every range is cut so that none has more than `max_records` offsets; then, where that
    makes fewer than `min_partitions`, the larger ranges are cut in proportion to their size. The
    result has about `min_partitions` ranges, more or less by rounding.
    """
    found = [r for r in ranges if r.size > 0]
    if max_records is not None:
        found = [part for r in found for part in _cut(r, -(-r.size // max_records))]
    if min_partitions is None or len(found) >= min_partitions:
        return found
    # Ranges too small to be cut are left out of the proportions of those that are.
    total = sum(r.size for r in found)
    small = [r for r in found if _parts(r.size, total, min_partitions) == 1]
    large_total = total - sum(r.size for r in small)
    large_parts = max(min_partitions - len(small), 1)
    kept = set(small)
    return [
        part
        for r in found
        for part in _cut(r, 1 if r in kept else _parts(r.size, large_total, large_parts))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _cut(fetch_range: FetchRange, parts: int) -> Sequence[FetchRange]:
    """Cut into ranges that differ by at most one offset; never an empty one."""
    cuts = []
    start, remaining = fetch_range.start_offset, fetch_range.size
    for part in range(parts):
        size = remaining // (parts - part)
        remaining -= size
        if size:
            cuts.append(
                FetchRange(
                    topic_partition=fetch_range.topic_partition,
                    start_offset=start,
                    end_offset=start + size,
                )
            )
        start += size
    return cuts


def backlog(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """Offsets between `start` and `latest`; a partition that went backwards counts as zero."""
    return sum(max(end - start.get(partition, end), 0) for partition, end in latest.items())


def rate_limit(
    limit: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends of a micro-batch of about `limit` offsets, shared out by backlog.

    `start` must know every partition of `latest`. No partition with a backlog is starved: each
    gets at least one offset, so that many partitions can together exceed the limit.
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
