"""Counts the segments that retention deletes (`UnifiedLog.deleteOldSegments`).

| reason           | a segment is deleted if                                                       |
| ---------------- | ----------------------------------------------------------------------------- |
| log start offset | all its offsets are below the log start offset, whatever the cleanup policy   |
| size             | the later segments total at least `retention.bytes`, with policy `delete`     |
| time             | its newest record is older than `retention.ms`, with policy `delete`          |

Invariants: only the oldest segments are deleted. All deleted segments are below the high watermark.
An empty active segment is never deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_ref.log.config import LogConfig
from broker_ref.log.segment import LogSegment
from broker_ref.log.segments import LogSegments


def count_expired(
    segments: LogSegments,
    *,
    config: LogConfig,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments to delete. The active segment may be among them."""

    def count_while(first: int, condition: Callable[[LogSegment, int], bool]) -> int:
        """Return the index of the first segment at or after `first` that must be retained."""
        for index in range(first, len(segments)):
            segment, is_last = segments[index], index + 1 == len(segments)
            upper = log_end_offset if is_last else segments[index + 1].base_offset
            empty_active = is_last and segment.size_bytes == 0
            if empty_active or upper > high_watermark or not condition(segment, upper):
                return index
        return len(segments)

    count = count_while(0, lambda _, upper: upper <= log_start_offset)
    if not config.delete:
        return count
    if config.retention_bytes >= 0:
        kept_bytes = sum(segments[index].size_bytes for index in range(count, len(segments)))
        count = count_while(count, _exceeds(kept_bytes - config.retention_bytes))
    if config.retention_ms >= 0:
        count = count_while(
            count, lambda segment, _: now_ms - _age_from(segment) > config.retention_ms
        )
    return count


def _exceeds(excess_bytes: int) -> Callable[[LogSegment, int], bool]:
    """Return a predicate that accepts segments up to a total size of `excess_bytes`.

    Call the predicate once for each segment, oldest first.
    """

    def exceeds(segment: LogSegment, _: int) -> bool:
        nonlocal excess_bytes
        if excess_bytes < 0 or excess_bytes < segment.size_bytes:
            return False
        excess_bytes -= segment.size_bytes
        return True

    return exceeds


def _age_from(segment: LogSegment) -> int:
    """Return a segment's largest timestamp, or the time at which the segment was opened."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
