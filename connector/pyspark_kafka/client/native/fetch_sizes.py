"""The number of bytes that each fetch of a range requests.

A short range is read with one fetch that returns few records beyond the range. A long range is read
with a few large fetches. The last response provides estimates of the bytes per offset and of the
ratio of decoded bytes to fetched bytes. Invariant: a fetch requests at most `bytes_max` bytes, and
is expected to decode to at most `DECODED_BYTES_MAX` bytes of rows.

A task holds the response that is being decoded, the next response and the decoded rows in memory.
Together, these take up about `2 * FETCH_BYTES_MAX + DECODED_BYTES_MAX` bytes, unless a record batch
is larger than the fetch size or has a much higher compression ratio than the previous batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Measured on a local broker: reads are 10% slower with 4 MiB, and no faster with 16 MiB."""
DECODED_BYTES_MAX: Final = 64 * 1024 * 1024
WHOLE_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of a fetch after a response that did not contain a complete batch."""
_SPARE_BYTES: Final = 64 * 1024
_GUESSED_BYTES: Final = 1024
"""The estimated bytes per offset before the first response."""


@dataclass(slots=True, kw_only=True)
class FetchSizes:
    """Calculates the fetch sizes for one offset range.

    `bytes_max` is the user's limit. Only a fetch for a single larger batch exceeds this limit.
    """

    bytes_max: int = FETCH_BYTES_MAX
    _bytes_max_in_time: int = FETCH_BYTES_MAX
    _bytes_per_offset: float = _GUESSED_BYTES
    _decoded_per_byte: float = 1.0
    _whole_batch: int = 1

    def next_size(self, offsets_left: int) -> int:
        """Return the number of bytes to request."""
        likely = int(offsets_left * self._bytes_per_offset * 5 / 4) + _SPARE_BYTES
        decodable = max(int(DECODED_BYTES_MAX / self._decoded_per_byte), _SPARE_BYTES)
        size = min(likely, decodable, self._bytes_max_in_time, self.bytes_max)
        return max(size, self._whole_batch)

    def record_response(self, fetched_bytes: int, offsets: int) -> None:
        """Record how many offsets a response contained."""
        self._bytes_per_offset = fetched_bytes / max(offsets, 1)

    def record_decoded(self, decoded_bytes: int, fetched_bytes: int) -> None:
        """Record the size of the Arrow data that was decoded from a response."""
        self._decoded_per_byte = max(decoded_bytes / max(fetched_bytes, 1), 1.0)

    def shrink(self, requested_bytes: int) -> None:
        """Reduce the size of later fetches, because a response did not arrive in time."""
        self._bytes_max_in_time = max(requested_bytes // 4, _SPARE_BYTES)

    def grow_for_batch(self, requested_bytes: int) -> bool:
        """Increase the fetch size after a response that contained only part of a batch.

        Returns False if the size has reached the limit. Brokers older than 0.10.1 truncate a batch
        that is larger than the fetch size.
        """
        self._whole_batch = requested_bytes * 2
        return requested_bytes < WHOLE_BATCH_BYTES_MAX
