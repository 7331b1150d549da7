"""Measures the work of a function without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType


class CountedName(str):
    """A name whose comparisons `count_calls` counts, even those of `name in names`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


class CountedNumber(int):
    """A number whose comparisons `count_calls` counts, even those of `number in numbers`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def count_calls(work: Callable[[], object]) -> int:
    """Return how many calls of Python and C functions `work` makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _function: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def assert_linear(work: Callable[[int], object], *, entries: int) -> None:
    """Check that `work` calls at most five times as many functions for four times the entries."""
    few, many = (count_calls(partial(work, number)) for number in (entries, 4 * entries))
    assert many < 5 * few, f"{few} calls for {entries} entries, {many} for {4 * entries}"
