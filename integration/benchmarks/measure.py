"""Measurement of one run of an implementation, in seconds and CPU seconds per million rows.

Measures only this process, or this process and all its descendants. A sample maps each measured
quantity to its value. Invariant: for every quantity, a lower value is better.
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
    """Run `work` and return its elapsed time and its CPU time, per million rows.

    `work` returns the number of rows that it has processed. The CPU time is that of this process
    and its descendants, except the processes in `excluded`, which are the brokers.
    """
    with CpuMeter(excluded) as meter:
        cpu_before_s, since_s = time.process_time(), time.perf_counter()
        rows = work()
        taken_s = time.perf_counter() - since_s
        own_cpu_s = time.process_time() - cpu_before_s
    return _per_million(rows, seconds=taken_s, cpu=own_cpu_s + meter.seconds)


def measure_process(work: Callable[[], int]) -> Sample:
    """Run `work` and return the elapsed time and this process's CPU time, per million rows."""
    cpu_before_s, since_s = time.process_time(), time.perf_counter()
    rows = work()
    taken_s = time.perf_counter() - since_s
    return _per_million(rows, seconds=taken_s, cpu=time.process_time() - cpu_before_s)


def _per_million(rows: int, *, seconds: float, cpu: float) -> Sample:
    if rows <= 0:
        raise ValueError("the work returned no rows, so no time per row can be calculated")
    return {SECONDS: seconds * _MILLION / rows, CPU_SECONDS: cpu * _MILLION / rows}
