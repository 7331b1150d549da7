"""A map from each key to the offset of its last record (Kafka's `OffsetMap`).

Compaction removes a record if the map contains a higher offset for its key. Invariant: the map does
not exceed its memory limit, unless it contains only one key. The map contains keys, whereas Kafka's
`SkimpyOffsetMap` contains hashes of keys.
"""

from __future__ import annotations

# Memory of an entry in addition to its key: the bytes object, the integer and the dict slot.
_ENTRY_BYTES = 200


class OffsetMap:
    """Maps keys to offsets. The memory use is limited to about `bytes_max` bytes."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Store the last offset of a key. Return False if the map is full.

        The first key is always stored.
        """
        if key not in self._offsets:
            size_bytes = self._bytes + len(key) + _ENTRY_BYTES
            if size_bytes > self._bytes_max and self._offsets:
                return False
            self._bytes = size_bytes
        self._offsets[key] = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of a key, or -1 if the map does not contain the key."""
        return self._offsets.get(key, -1)
