"""The offset index and the time index of a segment, in Kafka's binary formats.

    .index      relative offset int32 | position int32    the last offset of the batch at `position`
    .timeindex  timestamp int64 | relative offset int32    the largest timestamp up to that offset

A lookup returns the position or offset at which a search in the log file starts. Invariants:
entries are in ascending order. An index may be incomplete, but all its entries are correct. An
index can be rebuilt from the log file. Only the number of entries is cached in memory, so a lookup
reads a few blocks of the file. Source: `OffsetIndex`, `TimeIndex`, `AbstractIndex`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

from broker_ref.log.records import NO_TIMESTAMP
from broker_ref.log.storage import File

_OFFSET_ENTRY = struct.Struct("!ii")
_TIME_ENTRY = struct.Struct("!qi")
# A binary search reads single entries until at most this number of entries remains. It reads the
# remaining entries in one block.
_BLOCK_ENTRIES = 256
RELATIVE_OFFSET_MAX = 2**31 - 1


class _SortedEntries:
    """A file of fixed-size entries with two columns, both in ascending order."""

    def __init__(self, file: File, entry: struct.Struct, bytes_max: int) -> None:
        self.file = file
        self._entry = entry
        self.entries_max = bytes_max // entry.size
        self.entries = file.size() // entry.size

    @property
    def has_torn_entry(self) -> bool:
        return self.file.size() % self._entry.size != 0

    def append(self, *values: int) -> None:
        self.file.append(self._entry.pack(*values))
        self.entries += 1

    def read(self, index: int) -> tuple[int, int]:
        first, second = self._entry.unpack(
            self.file.read(index * self._entry.size, self._entry.size)
        )
        return first, second

    def last(self) -> tuple[int, int] | None:
        return self.read(self.entries - 1) if self.entries else None

    def floor(self, key: int) -> tuple[int, int] | None:
        """Return the last entry whose first column is at most `key`, or None."""
        low, high = 0, self.entries
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            if self.read(middle)[0] <= key:
                low = middle
            else:
                high = middle
        found = None
        size = self._entry.size
        block = self.file.read(low * size, (high - low) * size)
        for first, second in self._entry.iter_unpack(block[: len(block) // size * size]):
            if first > key:
                break
            found = (first, second)
        return found

    def truncate_to(self, key: int, *, column: int) -> None:
        """Remove the entries whose `column` is at least `key`."""
        self.entries = bisect_left(
            range(self.entries), key, key=lambda index: self.read(index)[column]
        )
        self.file.truncate(self.entries * self._entry.size)

    def clear(self) -> None:
        self.file.truncate(0)
        self.entries = 0


class OffsetIndex:
    """Maps offsets to positions in the segment's log file."""

    def __init__(self, file: File, *, base_offset: int, bytes_max: int) -> None:
        self._entries = _SortedEntries(file, _OFFSET_ENTRY, bytes_max)
        self._base_offset = base_offset
        self.file = file

    @property
    def is_full(self) -> bool:
        return self._entries.entries >= self._entries.entries_max

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch at `position`, whose last offset is `last_offset`."""
        self._entries.append(last_offset - self._base_offset, position)

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry at or before `offset` as (last offset, position), or None."""
        found = self._entries.floor(min(offset - self._base_offset, RELATIVE_OFFSET_MAX))
        return None if found is None else (self._base_offset + found[0], found[1])

    def damage(self, log_bytes: int) -> str | None:
        """Return the reason why the index cannot belong to a log file of this size, or None."""
        if self._entries.has_torn_entry:
            return f"its size of {self.file.size()} bytes is not a multiple of the entry size"
        last = self._entries.last()
        if last is not None and (last[0] < 0 or not 0 < last[1] < log_bytes):
            return f"its last entry {last} is invalid for a log file of {log_bytes} bytes"
        return None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries of batches that end at or after `offset`."""
        self._entries.truncate_to(offset - self._base_offset, column=0)

    def clear(self) -> None:
        self._entries.clear()


class TimeIndex:
    """Maps timestamps to offsets."""

    def __init__(self, file: File, *, base_offset: int, bytes_max: int) -> None:
        self._entries = _SortedEntries(file, _TIME_ENTRY, bytes_max)
        self._base_offset = base_offset
        self.file = file
        self._last: tuple[int, int] | None = None

    @property
    def is_full(self) -> bool:
        """Return whether the index is full. One entry is reserved for the end of the segment."""
        return self._entries.entries >= self._entries.entries_max - 1

    def last(self) -> tuple[int, int]:
        """Return (largest timestamp, offset), or (-1, base offset) if the index is empty."""
        if self._last is None:
            entry = self._entries.last()
            self._last = (
                (NO_TIMESTAMP, self._base_offset)
                if entry is None
                else (entry[0], self._base_offset + entry[1])
            )
        return self._last

    def append_if_larger(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is larger than the timestamp of the last entry."""
        if timestamp > self.last()[0]:
            self._entries.append(timestamp, offset - self._base_offset)
            self._last = (timestamp, offset)

    def lookup(self, timestamp: int) -> int:
        """Return an offset in the batch where a search for this timestamp must start."""
        found = self._entries.floor(timestamp)
        return self._base_offset + found[1] if found else self._base_offset

    def damage(self) -> str | None:
        """Return the reason why the index is invalid, or None."""
        if self._entries.has_torn_entry:
            return f"its size of {self.file.size()} bytes is not a multiple of the entry size"
        last = self._entries.last()
        if last is not None and (last[1] < 0 or last[0] < self._entries.read(0)[0]):
            return f"its last entry {last} is smaller than its first entry"
        return None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries for batches that end at or after `offset`."""
        self._entries.truncate_to(offset - self._base_offset, column=1)
        self._last = None

    def clear(self) -> None:
        self._entries.clear()
        self._last = None
