"""Represents the sets of offsets that filters on `offset` select.

Invariant: the ranges in `Offsets` are sorted, non-empty, non-overlapping and non-adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from itertools import pairwise
from typing import Final

from pyspark_kafka.kafka.offsets import LONG_MAX

Offsets = tuple[tuple[int, int], ...]
"""Ranges `(start, end)` with an exclusive end."""

END: Final = LONG_MAX + 1
EVERY: Final[Offsets] = ((0, END),)
NONE: Final[Offsets] = ()


def offsets_of(ranges: Iterable[tuple[int, int]]) -> Offsets:
    """Return the union of ranges. The ranges may overlap, be empty or contain invalid offsets."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((max(start, 0), min(end, END)) for start, end in ranges):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def complement(offsets: Offsets) -> Offsets:
    starts = [0, *(end for _, end in offsets)]
    ends = [*(start for start, _ in offsets), END]
    return offsets_of(zip(starts, ends, strict=True))


def intersection(left: Offsets, right: Offsets) -> Offsets:
    found = []
    left_index = right_index = 0
    while left_index < len(left) and right_index < len(right):
        (left_start, left_end), (right_start, right_end) = left[left_index], right[right_index]
        found.append((max(left_start, right_start), min(left_end, right_end)))
        if left_end <= right_end:
            left_index += 1
        else:
            right_index += 1
    return offsets_of(found)


def bridged(offsets: Offsets, *, gap_min: int, ranges_max: int) -> Offsets:
    """Return a superset of `offsets` with at most `ranges_max` ranges and no gap below `gap_min`.

    If there are too many gaps, only the largest gaps are kept.
    """
    if not offsets:
        return NONE
    gaps = [after[0] - before[1] for before, after in pairwise(offsets)]
    wide = [index for index, gap in enumerate(gaps) if gap >= gap_min]
    kept = sorted(nlargest(ranges_max - 1, wide, key=gaps.__getitem__))
    starts = [offsets[0][0], *(offsets[index + 1][0] for index in kept)]
    ends = [*(offsets[index][1] for index in kept), offsets[-1][1]]
    return tuple(zip(starts, ends, strict=True))


def contains(outer: Offsets, inner: Offsets) -> bool:
    return intersection(outer, inner) == inner
