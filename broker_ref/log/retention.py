"""How many of a log's oldest segments have to go (UnifiedLog.deleteOldSegments).

| reason      | a segment goes while                                                        |
| ----------- | --------------------------------------------------------------------------- |
| log start   | all of it lies below the log start offset; whatever the policy              |
| size        | without it the log still has `retention.bytes`; policy `delete`             |
| time        | its newest record is older than `retention.ms`; policy `delete`             |

Purpose: that table. Invariant: only a run of the oldest segments goes, all below the high
watermark, and never an empty active segment. What it must not know: how segments are removed.
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
    """How many of the oldest segments are to be deleted. All of them: the active one as well."""

    def count_while(first: int, condition: Callable[[LogSegment, int], bool]) -> int:
        """The index of the first segment from `first` on that stays."""
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
    """Whether the log is still large enough without a segment and those asked about before it."""

    def exceeds(segment: LogSegment, _: int) -> bool:
        nonlocal excess_bytes
        if excess_bytes < 0 or excess_bytes < segment.size_bytes:
            return False
        excess_bytes -= segment.size_bytes
        return True

    return exceeds


def _age_from(segment: LogSegment) -> int:
    """The time from which a segment's age counts: its newest record's, else when it was opened."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
