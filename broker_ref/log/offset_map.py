"""Where the last record of every key is, within bounds (OffsetMap, SkimpyOffsetMap).

Purpose: what compaction compares records against. Invariant: no more memory than allowed, but for
a single key that needs more. Unlike Kafka's it holds keys, not hashes. What it must not know:
segments.
"""

from __future__ import annotations

# What Python keeps for an entry besides the bytes of its key: the bytes object, the number, a slot.
_ENTRY_BYTES = 200


class OffsetMap:
    """Key to offset; grows up to about `bytes_max` bytes."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Note the last offset of a key; False where there is no room. The first always fits."""
        if key not in self._offsets:
            size_bytes = self._bytes + len(key) + _ENTRY_BYTES
            if size_bytes > self._bytes_max and self._offsets:
                return False
            self._bytes = size_bytes
        self._offsets[key] = offset
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key, -1 where it has none here."""
        return self._offsets.get(key, -1)
