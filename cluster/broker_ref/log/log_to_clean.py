"""The part of a log that can be compacted, and its priority (`LogToClean`, `LogCleanerManager`).

    log start offset    first dirty offset    first uncleanable offset    log end offset
    | compacted         | dirty, cleanable    | dirty, not cleanable      |

Invariant: records at or above the last stable offset, records in the active segment, and records
that are younger than `min.compaction.lag.ms` are not compacted.
"""

from __future__ import annotations

import logging

from broker_ref.frozen import dataclass
from broker_ref.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogToClean:
    """A log with dirty records. `ratio` is dirty bytes divided by clean plus dirty bytes."""

    log: PartitionLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    ratio: float


def find_cleanable(
    log: PartitionLog, *, checkpoint: int | None, last_stable_offset: int, now_ms: int
) -> LogToClean | None:
    """Return the part of a log that must be compacted, or None if no compaction is necessary.

    `checkpoint` is the offset up to which the log has been compacted, or None.
    """
    segments, config = log.segments, log.config
    first_dirty = log.log_start_offset if checkpoint is None else checkpoint
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        if not config.delete:
            logger.warning(
                "%s: the checkpointed offset %d is not between the log start offset %d and the "
                "log end offset %d. The entire log will be compacted again",
                log.directory, first_dirty, log.log_start_offset, log.log_end_offset,
            )  # fmt: skip
        first_dirty = log.log_start_offset
    active_offset = segments.active.base_offset
    dirty = segments.between(first_dirty, active_offset)
    bounds = [last_stable_offset, active_offset]
    if config.min_compaction_lag_ms > 0:
        newest_ms = now_ms - config.min_compaction_lag_ms
        bounds += [s.base_offset for s in dirty if s.max_timestamp > newest_ms][:1]
    first_uncleanable = min(segments[segments.index_of(min(bounds))].base_offset, active_offset)
    first_uncleanable = max(first_uncleanable, segments[0].base_offset)
    dirty_bytes = sum(s.size_bytes for s in dirty if s.base_offset < first_uncleanable)
    if dirty_bytes == 0 or first_uncleanable <= first_dirty:
        return None
    clean_bytes = sum(
        s.size_bytes for s in segments if s.base_offset < first_dirty and s not in dirty
    )
    oldest_ms = now_ms - config.max_compaction_lag_ms
    is_late = any(0 < segment.first_timestamp < oldest_ms for segment in dirty)
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    if not is_late and ratio <= config.min_cleanable_dirty_ratio:
        return None
    return LogToClean(
        log=log,
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        ratio=ratio,
    )
