"""Run many seeds in parallel processes.

This module is separate because spawned processes import the function that they run, and they cannot
import it from `__main__`.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from integration.simulation.plan import plan_of
from integration.simulation.run import run

_SEEDS_AT_ONCE = 4


def violations(seeds: range, jobs: int) -> Iterator[tuple[int, str | None]]:
    """Yield each seed in order, with its violation or None.

    Raises `BrokenProcessPool` if a process is killed.
    """
    with ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_leave_interrupts_to_the_parent,
    ) as pool:
        yield from pool.map(_violation_of, seeds, chunksize=_SEEDS_AT_ONCE)


def _violation_of(seed: int) -> tuple[int, str | None]:
    return seed, run(plan_of(seed)).violation


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
