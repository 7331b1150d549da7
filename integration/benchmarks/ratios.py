"""Ratios of samples from alternating runs.

Invariant: both values of a ratio come from the same round, so a slow period affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median, minimum and maximum of the ratios of all rounds."""

    median: float
    minimum: float
    maximum: float


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the ratio over all rounds. Raise `ValueError` if the numbers of rounds differ."""
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} rounds cannot be paired")
    if min(denominators) <= 0:
        raise ValueError("the work was too short to be measured; use more records")
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(median=statistics.median(ratios), minimum=min(ratios), maximum=max(ratios))


def order_of_round(sides: Sequence[str], round_number: int) -> list[str]:
    """Return the order in which the compared implementations run in a round.

    In each pair of rounds, the second round reverses the order of the first. After each pair, the
    order is rotated by one position. Therefore, no implementation always runs first or always runs
    after the same implementation.
    """
    start = round_number // 2 % len(sides)
    order = [*sides[start:], *sides[:start]]
    return order[::-1] if round_number % 2 else order
