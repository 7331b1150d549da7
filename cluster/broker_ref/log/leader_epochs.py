"""The start offsets of leader epochs in a log (KIP-101, Kafka's `LeaderEpochFileCache`).

The (leader epoch, start offset) entries of a log are stored in `leader-epoch-checkpoint`.
Invariants: leader epochs and start offsets are strictly ascending. A new leader epoch is written to
disk before its first record is appended. A crash may lose a leader epoch that has no records. This
is safe, because the next leader has a higher leader epoch.
"""

from __future__ import annotations

from bisect import bisect_right

from broker_ref.log.checkpoints import LEADER_EPOCH_FILE, read_epochs, write_epochs
from broker_ref.log.errors import CorruptLogError
from broker_ref.log.storage import Storage

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class LeaderEpochFileCache:
    """The leader epochs of one log, oldest first."""

    def __init__(self, *, storage: Storage, directory: str) -> None:
        """Read the checkpoint file. Raises: CorruptLogError with the name of the file."""
        self._storage = storage
        self._path = f"{directory}/{LEADER_EPOCH_FILE}"
        self._entries: list[tuple[int, int]] = []
        self._is_written = True
        for epoch, start_offset in read_epochs(storage, self._path):
            if self._entries and (
                epoch <= self._entries[-1][0] or start_offset <= self._entries[-1][1]
            ):
                raise CorruptLogError(
                    self._path, 0, f"leader epoch {epoch} is inconsistent with the previous entry"
                )
            self._entries.append((epoch, start_offset))

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Return the (leader epoch, start offset) entries, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """Return the newest leader epoch, or None if there are no entries."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add the start offset of a leader epoch, and remove conflicting entries.

        `flush` must be called before the first record of the leader epoch is written.
        """
        if self._entries and self._entries[-1][0] == epoch and start_offset >= self._entries[-1][1]:
            return
        entries = list(self._entries)
        while entries and (entries[-1][0] > epoch or entries[-1][1] >= start_offset):
            entries.pop()
        if not entries or entries[-1][0] != epoch:
            entries.append((epoch, start_offset))
        self._entries = entries
        self._is_written = False

    def flush(self) -> None:
        """Write the entries to disk if `assign` has changed them."""
        if not self._is_written:
            self._write(self._entries)

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the leader epoch of the record at `offset`, or None if it is unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else None

    def end_offset_for_epoch(self, epoch: int, *, log_end_offset: int) -> tuple[int, int]:
        """Return the largest leader epoch that is at most `epoch`, and its end offset.

        Return (-1, -1) if `epoch` is newer than all known leader epochs. If `epoch` is older than
        all known leader epochs, return `epoch` and the start offset of the oldest known leader
        epoch.
        """
        if epoch == UNDEFINED_EPOCH or not self._entries or epoch > self._entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        floor_epoch = self._entries[index - 1][0] if index else epoch
        return floor_epoch, self._entries[index][1]

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the leader epochs that start at or after `end_offset`."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if len(kept) != len(self._entries):
            self._write(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the leader epochs that end at or before `start_offset`.

        After this call, the leader epoch of the record at `start_offset` starts at this offset.
        """
        index = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if index and self._entries[:index] != [(self._entries[index - 1][0], start_offset)]:
            first = (self._entries[index - 1][0], start_offset)
            self._write([first, *self._entries[index:]])

    def clear(self) -> None:
        """Remove all leader epochs."""
        if self._entries:
            self._write([])

    def _write(self, entries: list[tuple[int, int]]) -> None:
        write_epochs(self._storage, self._path, entries)
        self._entries = entries
        self._is_written = True
