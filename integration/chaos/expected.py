"""The values that an exactly-once query must write, and their comparison with the target topic.

All functions are pure. Invariant: a value that is expected n times must be written n times, and no
other value may be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from integration.chaos.kinds import COUNTED_KEYS

Offsets = Sequence[int]
"""An offset for each partition of the source."""

_LISTED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference between the values in a target topic and the expected values.

    `lost` is the number of missing values. `duplicates` is the number of surplus values, which are
    either duplicate or wrong. `examples` contains some missing values and some surplus values.
    """

    lost: int
    duplicates: int
    examples: tuple[str, ...] = ()


def copied_values(ends: Offsets) -> Counter[bytes]:
    """Return the values of a complete copy of the source: one `partition:offset` per record."""
    return Counter(
        f"{partition}:{offset}".encode()
        for partition, end in enumerate(ends)
        for offset in range(end)
    )


def counted_values(batches: Iterable[Offsets], ends: Offsets) -> Counter[bytes]:
    """Return the values `key=count` that the aggregation writes in output mode `complete`.

    `batches` contains the end offsets of each micro-batch. Each micro-batch writes one row for each
    key that occurs in the source before its end offsets. If the last micro-batch does not end at
    `ends`, the result also includes the rows that one more micro-batch, up to `ends`, must write.
    """
    known = list(batches)
    values: Counter[bytes] = Counter()
    for batch in known if known[-1:] == [ends] else [*known, ends]:
        counts = Counter(offset % COUNTED_KEYS for end in batch for offset in range(end))
        values.update(f"{key}={counts[key]}".encode() for key in counts)
    return values


def difference(expected: Counter[bytes], found: Counter[bytes]) -> Difference:
    """Compare the values in a target topic with the expected values."""
    missing, surplus = expected - found, found - expected
    return Difference(
        lost=missing.total(),
        duplicates=surplus.total(),
        examples=(
            *(f"lost: {value.decode()}" for value in sorted(missing)[:_LISTED_MAX]),
            *(f"duplicate or wrong: {value.decode()}" for value in sorted(surplus)[:_LISTED_MAX]),
        ),
    )


def wrong_offsets(group: str, committed: Offsets, ends: Offsets) -> tuple[str, ...]:
    """Return a message for each partition whose committed offset is not its end offset."""
    return tuple(
        f"group {group}: committed offset {offset} of partition {partition}, but its end is {end}"
        for partition, (offset, end) in enumerate(zip(committed, ends, strict=True))
        if offset != end
    )
