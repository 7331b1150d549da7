"""The offset of the last record of each key, within a memory limit (`OffsetMap`).

Purpose: the map that compaction compares records with. Invariant: memory stays below the limit,
except for a single key that exceeds it. Unlike Kafka's `SkimpyOffsetMap` it stores keys, not
hashes. Must not know: segments.
"""

from __future__ import annotations

# Memory of an entry in addition to its key: the bytes object, the integer, a slot.
_ENTRY_BYTES = 200


class OffsetMap:
    """Maps keys to offsets, using at most about `bytes_max` bytes."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Store the last offset of a key; returns False if full. The first always fits."""
        if key not in self._offsets:
            size_bytes = self._bytes + len(key) + _ENTRY_BYTES
            if size_bytes > self._bytes_max and self._offsets:
                return False
            self._bytes = size_bytes
        self._offsets[key] = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of a key, or -1."""
        return self._offsets.get(key, -1)
