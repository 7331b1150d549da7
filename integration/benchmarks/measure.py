"""Measures one run of one side: seconds and CPU seconds per million rows.

Purpose: measure work, with all descendants of this process or with this process only. Invariant: a
sample maps quantities to values, and less is better for each. What it must not know: the work and
the comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from integration.benchmarks.processes import CpuMeter

SECONDS: Final = "seconds"
"""Wall-clock seconds per million rows."""

CPU_SECONDS: Final = "CPU seconds"
"""User and system CPU seconds per million rows."""

Sample = Mapping[str, float]

_MILLION: Final = 1_000_000


def measure_tree(work: Callable[[], int], *, excluded: Collection[int]) -> Sample:
    """Run `work`, which returns its number of rows; count the CPU of this process and descendants.

    `excluded` processes are not counted: the brokers.
    """
    with CpuMeter(excluded) as meter:
        cpu_before_s, since_s = time.process_time(), time.perf_counter()
        rows = work()
        taken_s = time.perf_counter() - since_s
        own_cpu_s = time.process_time() - cpu_before_s
    return _per_million(rows, seconds=taken_s, cpu=own_cpu_s + meter.seconds)


def measure_process(work: Callable[[], int]) -> Sample:
    """Measure work that this process does alone, with all its threads."""
    cpu_before_s, since_s = time.process_time(), time.perf_counter()
    rows = work()
    taken_s = time.perf_counter() - since_s
    return _per_million(rows, seconds=taken_s, cpu=time.process_time() - cpu_before_s)


def _per_million(rows: int, *, seconds: float, cpu: float) -> Sample:
    if rows <= 0:
        raise ValueError("the work returned no rows")
    return {SECONDS: seconds * _MILLION / rows, CPU_SECONDS: cpu * _MILLION / rows}
