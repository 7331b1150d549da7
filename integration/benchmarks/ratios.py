"""Ratios of samples that were taken in turn.

Purpose: the statistics, apart from what they are of. Invariant: the two values of a ratio are of
one round, so that what slows the machine for a while slows both. What it must not know: cases.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Of the rounds: the median, the least and the greatest."""

    median: float
    minimum: float
    maximum: float


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The ratios of the values, round by round. Raises `ValueError` where they do not pair."""
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} rounds make no pairs")
    if min(denominators) <= 0:
        raise ValueError("too little was done to be measured: use more records")
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(median=statistics.median(ratios), minimum=min(ratios), maximum=max(ratios))


def order_of_round(sides: Sequence[str], round_number: int) -> list[str]:
    """In which order the sides run in a round.

    Each round begins with another, and every other round runs backwards: no side always meets what
    the same other side leaves behind.
    """
    start = round_number % len(sides)
    order = [*sides[start:], *sides[:start]]
    return order[::-1] if round_number % 2 else order
