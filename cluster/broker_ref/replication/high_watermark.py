"""The high watermark of a replica.

Invariants: the high watermark is never below the log start offset or above the log end offset. On a
leader, it never decreases. Source: Kafka's `UnifiedLog.updateHighWatermark`.
"""

from __future__ import annotations

from broker_ref.log.partition_log import PartitionLog


class HighWatermark:
    """The high watermark of the replica that stores `log`. The initial value is `checkpointed`."""

    def __init__(self, log: PartitionLog, checkpointed: int) -> None:
        self._log = log
        self._offset = checkpointed
        self._update_log()

    @property
    def offset(self) -> int:
        """Return the high watermark; all records below it are committed."""
        log, offset = self._log, self._offset
        end_offset = log.log_end_offset
        offset = min(offset, end_offset)
        start_offset = log.log_start_offset
        return max(offset, start_offset)

    def maybe_increment(self, offset: int) -> bool:
        """Increase the high watermark to at least `offset`; return whether it has changed."""
        before = self.offset
        self._offset = max(before, offset)
        self._update_log()
        return self.offset != before

    def maybe_update(self, leader_offset: int) -> bool:
        """Set the high watermark to the leader's high watermark; return whether it has changed.

        The high watermark is limited to the log end offset. It may decrease.
        """
        before = self.offset
        self._offset = min(leader_offset, self._log.log_end_offset)
        self._update_log()
        return self.offset != before

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Set the high watermark to the offset at which the empty log starts."""
        self._offset = offset

    def _update_log(self) -> None:
        self._log.producers.remove_replicated(self.offset)
