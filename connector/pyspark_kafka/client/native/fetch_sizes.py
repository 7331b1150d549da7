"""How many bytes a fetch asks for: little for a short range, much for a long one.

Purpose: a short range is had in one answer without the records behind it, a long one in few. What
came tells how many bytes an offset takes, and how many they are once decoded. Invariant: never more
than `bytes_max`, and no more than about `DECODED_BYTES_MAX` of decoded rows, as far as the last
answer tells. What it must not know: connections, records.

Memory of one task: the answer that is being decoded, the next one on its way, and the rows of
the first: at most `2 * FETCH_BYTES_MAX + DECODED_BYTES_MAX`, unless a single record batch is larger
or turns out to be compressed much better than the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
DECODED_BYTES_MAX: Final = 64 * 1024 * 1024
WHOLE_BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
"""How far to go where not even one batch is whole."""
_FIRST_BYTES: Final = 1024 * 1024
_SPARE_BYTES: Final = 64 * 1024
_GUESSED_BYTES: Final = 1024
"""Of one offset, before anything has come."""
_GROWTH: Final = 2
_SHRINKAGE: Final = 4


@dataclass(slots=True, kw_only=True)
class FetchSizes:
    """Of one range. `bytes_max` is the user's bound, which only a batch that is larger breaks."""

    bytes_max: int
    _longest: int = field(init=False)
    _next_longest: int = _FIRST_BYTES
    _bytes_per_offset: float = _GUESSED_BYTES
    _decoded_per_byte: float = 1.0
    _floor: int = 0

    def __post_init__(self) -> None:
        self._longest = FETCH_BYTES_MAX

    def ask(self, offsets_left: int) -> int:
        """The bytes to ask for, where so many offsets are left to read."""
        likely = int(offsets_left * self._bytes_per_offset * 5 / 4) + _SPARE_BYTES
        decodable = max(int(DECODED_BYTES_MAX / self._decoded_per_byte), _SPARE_BYTES)
        wanted = min(likely, decodable, self._next_longest, self._longest, self.bytes_max)
        return max(wanted, self._floor, 1)

    def came(self, count_bytes: int, offsets: int) -> None:
        """So many bytes held so many offsets."""
        self._bytes_per_offset = count_bytes / max(offsets, 1)
        self._next_longest = min(self._next_longest * _GROWTH, FETCH_BYTES_MAX)

    def decoded(self, count_bytes: int, from_bytes: int) -> None:
        """So many bytes of Arrow came of so many fetched ones."""
        self._decoded_per_byte = max(count_bytes / max(from_bytes, 1), 1.0)

    def took_too_long(self, asked: int) -> None:
        """An answer of this size did not come in time: smaller ones from now on."""
        self._longest = max(min(asked, self._longest) // _SHRINKAGE, _SPARE_BYTES)

    def hold_no_batch(self, asked: int) -> bool:
        """What came is only a part of one batch: ask for more; False where that has an end."""
        self._floor = asked * _GROWTH
        return asked < WHOLE_BATCH_BYTES_MAX
