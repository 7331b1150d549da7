"""What one run of one side gives: seconds and CPU seconds for a million rows.

Purpose: measure a piece of work, either with everything below this process or this process alone.
Invariant: a sample holds quantities by name, each such that less is better. What it must not
know: what the work is, and what is compared with what.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from integration.benchmarks.processes import CpuMeter

SECONDS: Final = "seconds"
"""By the clock, for a million rows."""

CPU_SECONDS: Final = "CPU seconds"
"""Of user and system, for a million rows."""

Sample = Mapping[str, float]

_MILLION: Final = 1_000_000


def measure_tree(work: Callable[[], int], *, excluded: Collection[int]) -> Sample:
    """Run `work`, which gives its number of rows; count the CPU of this process and all below it.

    `excluded` are processes that are not ours to count: the brokers.
    """
    with CpuMeter(excluded) as meter:
        cpu_before_s, since_s = time.process_time(), time.perf_counter()
        rows = work()
        taken_s = time.perf_counter() - since_s
        own_cpu_s = time.process_time() - cpu_before_s
    return _per_million(rows, seconds=taken_s, cpu=own_cpu_s + meter.seconds)


def measure_process(work: Callable[[], int]) -> Sample:
    """The same for work that is done by this process alone, with all its threads."""
    cpu_before_s, since_s = time.process_time(), time.perf_counter()
    rows = work()
    taken_s = time.perf_counter() - since_s
    return _per_million(rows, seconds=taken_s, cpu=time.process_time() - cpu_before_s)


def _per_million(rows: int, *, seconds: float, cpu: float) -> Sample:
    if rows <= 0:
        raise ValueError("no rows: there is nothing to compare")
    return {SECONDS: seconds * _MILLION / rows, CPU_SECONDS: cpu * _MILLION / rows}
