"""The sizes of fetches: few bytes for a short range, many for a long one.

Purpose: read a short range with one fetch that returns little beyond it, and a long range with few
fetches. Earlier answers show how many bytes an offset takes, fetched and decoded. Invariant: at
most `bytes_max`, and about `DECODED_BYTES_MAX` of decoded rows, estimated from the last answer.
What it must not know: connections, records.

Memory of one task: the answer that is being decoded, the next one in flight, and the decoded rows:
`2 * FETCH_BYTES_MAX + DECODED_BYTES_MAX`, unless a single record batch is larger or is compressed
much better than those before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Measured on a local broker: 4 MiB is 10 % slower, 16 MiB is not faster."""
DECODED_BYTES_MAX: Final = 64 * 1024 * 1024
WHOLE_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest fetch if an answer does not contain a whole batch."""
_SPARE_BYTES: Final = 64 * 1024
_GUESSED_BYTES: Final = 1024
"""Bytes of one offset, before the first answer."""


@dataclass(slots=True, kw_only=True)
class FetchSizes:
    """The sizes for one range. Only a single larger batch exceeds `bytes_max`, the user's limit."""

    bytes_max: int = FETCH_BYTES_MAX
    _bytes_max_in_time: int = FETCH_BYTES_MAX
    _bytes_per_offset: float = _GUESSED_BYTES
    _decoded_per_byte: float = 1.0
    _whole_batch: int = 1

    def next_size(self, offsets_left: int) -> int:
        """Return the bytes to request."""
        likely = int(offsets_left * self._bytes_per_offset * 5 / 4) + _SPARE_BYTES
        decodable = max(int(DECODED_BYTES_MAX / self._decoded_per_byte), _SPARE_BYTES)
        size = min(likely, decodable, self._bytes_max_in_time, self.bytes_max)
        return max(size, self._whole_batch)

    def note_answer(self, fetched_bytes: int, offsets: int) -> None:
        """Note how many offsets an answer covered."""
        self._bytes_per_offset = fetched_bytes / max(offsets, 1)

    def note_decoded(self, decoded_bytes: int, fetched_bytes: int) -> None:
        """Note how many bytes of Arrow an answer became."""
        self._decoded_per_byte = max(decoded_bytes / max(fetched_bytes, 1), 1.0)

    def shrink(self, requested_bytes: int) -> None:
        """Request less, since an answer of this size did not arrive in time."""
        self._bytes_max_in_time = max(requested_bytes // 4, _SPARE_BYTES)

    def grow_for_batch(self, requested_bytes: int) -> bool:
        """Request more, since an answer contained only a part of one batch; False at the limit.

        Brokers before 0.10.1 truncate batches.
        """
        self._whole_batch = requested_bytes * 2
        return requested_bytes < WHOLE_BATCH_BYTES_MAX
