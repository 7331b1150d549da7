"""The high watermark of a replica.

Purpose: keep the high watermark within the bounds of the log. Invariant: it is never below the log
start offset or above the log end offset; on a leader it never decreases. Must not know: who is
leader, the offsets of followers. Source: Kafka's `UnifiedLog.updateHighWatermark`.
"""

from __future__ import annotations

from broker_ref.log.partition_log import PartitionLog


class HighWatermark:
    """The high watermark of the replica with this `log`, initially the checkpointed one."""

    def __init__(self, log: PartitionLog, checkpointed: int) -> None:
        self._log = log
        self._offset = checkpointed
        self._update_log()

    @property
    def offset(self) -> int:
        """All records below this offset are committed."""
        return max(self._log.log_start_offset, min(self._offset, self._log.log_end_offset))

    def maybe_increment(self, offset: int) -> bool:
        """Increase to `offset` if that is higher; return whether it changed."""
        before = self.offset
        self._offset = max(before, offset)
        self._update_log()
        return self.offset != before

    def maybe_update(self, leader_offset: int) -> bool:
        """Set to the leader's, limited to the log end; it may decrease. Return whether it did
        change.
        """
        before = self.offset
        self._offset = min(leader_offset, self._log.log_end_offset)
        self._update_log()
        return self.offset != before

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Set to the offset at which the log restarts."""
        self._offset = offset

    def _update_log(self) -> None:
        self._log.producers.forget_replicated(self.offset)
