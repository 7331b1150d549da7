"""The start offsets of leader epochs in a log (KIP-101, Kafka's `LeaderEpochFileCache`).

Purpose: the (epoch, start offset) history of one log, stored in `leader-epoch-checkpoint`.
Invariant: epochs and start offsets are strictly ascending; a new epoch is on disk before its first
record. Must not know: who leads.
"""

from __future__ import annotations

from bisect import bisect_right

from broker_ref.log.checkpoints import LEADER_EPOCH_FILE, read_epochs, write_epochs
from broker_ref.log.errors import CorruptLogError
from broker_ref.log.storage import Storage

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class LeaderEpochFileCache:
    """The epochs of one log, oldest first."""

    def __init__(self, *, storage: Storage, directory: str) -> None:
        """Read the checkpoint. Raises: CorruptLogError naming it."""
        self._storage = storage
        self._path = f"{directory}/{LEADER_EPOCH_FILE}"
        self._entries: list[tuple[int, int]] = []
        for epoch, start_offset in read_epochs(storage, self._path):
            if self._entries and (
                epoch <= self._entries[-1][0] or start_offset <= self._entries[-1][1]
            ):
                raise CorruptLogError(
                    self._path, 0, f"epoch {epoch} does not follow the previous entry"
                )
            self._entries.append((epoch, start_offset))

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Return (epoch, start offset) entries, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """Return the newest epoch, or None if there is none."""
        return self._entries[-1][0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Store that `epoch` starts at `start_offset`; removes contradicting entries."""
        if self._entries and self._entries[-1][0] == epoch and start_offset >= self._entries[-1][1]:
            return
        entries = list(self._entries)
        while entries and (entries[-1][0] > epoch or entries[-1][1] >= start_offset):
            entries.pop()
        if not entries or entries[-1][0] != epoch:
            entries.append((epoch, start_offset))
        self._write(entries)

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch that wrote `offset`, or None if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else None

    def end_offset_for_epoch(self, epoch: int, *, log_end_offset: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch up to the requested one.

        Returns (-1, -1) if it is newer than all known epochs. An epoch older than all known ones
        ends at the start of the first known one.
        """
        if epoch == UNDEFINED_EPOCH or not self._entries or epoch > self._entries[-1][0]:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        floor_epoch = self._entries[index - 1][0] if index else epoch
        return floor_epoch, self._entries[index][1]

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at or after `end_offset`."""
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if len(kept) != len(self._entries):
            self._write(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end before `start_offset`, where the next one then starts."""
        index = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if index and self._entries[:index] != [(self._entries[index - 1][0], start_offset)]:
            first = (self._entries[index - 1][0], start_offset)
            self._write([first, *self._entries[index:]])

    def clear(self) -> None:
        """Remove all epochs."""
        if self._entries:
            self._write([])

    def _write(self, entries: list[tuple[int, int]]) -> None:
        write_epochs(self._storage, self._path, entries)
        self._entries = entries
