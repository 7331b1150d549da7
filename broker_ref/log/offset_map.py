"""Where the last record of every key is, within bounds (OffsetMap, SkimpyOffsetMap).

Purpose: what compaction compares records against. Invariant: no more memory than allowed, but for
the batch that fills it. Unlike Kafka's it holds keys, not hashes. What it must not know: segments.
"""

from __future__ import annotations

from collections.abc import Iterable

# What Python keeps for an entry besides the bytes of its key: the bytes object, the number, a slot.
_ENTRY_BYTES = 200


class OffsetMap:
    """Key to offset; grows up to about `bytes_max` bytes."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._offsets: dict[bytes, int] = {}

    def put_all(self, records: Iterable[tuple[bytes | None, int]], *, start_offset: int) -> bool:
        """Note the records of a batch from an offset on; False where the map has become too large.

        What did not fit is noted all the same, which does no harm: nothing at or above the
        offset up to which the map counts is compacted, and what is below gives way to it.
        """
        for key, offset in records:
            if key is not None and offset >= start_offset:
                if key not in self._offsets:
                    self._bytes += len(key) + _ENTRY_BYTES
                self._offsets[key] = offset
        return self._bytes <= self._bytes_max

    def get(self, key: bytes) -> int:
        """The last offset of a key, -1 where it has none here."""
        return self._offsets.get(key, -1)
