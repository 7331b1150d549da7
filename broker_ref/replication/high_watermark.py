"""How far a replica's records are committed.

Purpose: the high watermark of one replica, kept within its log. Invariant: it is never below the
log start offset nor above the log end offset; as the leader moves it, it never falls. What it must
not know: who leads, and what the followers have. Source: Kafka's `UnifiedLog.updateHighWatermark`.
"""

from __future__ import annotations

from broker_ref.log.partition_log import PartitionLog


class HighWatermark:
    """The high watermark of the replica that has `log`, at first what was checkpointed of it."""

    def __init__(self, log: PartitionLog, checkpointed: int) -> None:
        self._log = log
        self._offset = checkpointed
        self._tell_log()

    @property
    def offset(self) -> int:
        """Everything below is committed."""
        return max(self._log.log_start_offset, min(self._offset, self._log.log_end_offset))

    def raise_to(self, offset: int) -> bool:
        """Move up, as the leader does; whether it moved."""
        before = self.offset
        self._offset = max(before, offset)
        self._tell_log()
        return self.offset != before

    def follow(self, leader_offset: int) -> bool:
        """Take the leader's over, as far as the log goes (it may be lower); whether it moved."""
        before = self.offset
        self._offset = min(leader_offset, self._log.log_end_offset)
        self._tell_log()
        return self.offset != before

    def restart_at(self, offset: int) -> None:
        """Begin anew where the log does."""
        self._offset = offset

    def _tell_log(self) -> None:
        self._log.producers.forget_replicated(self.offset)
