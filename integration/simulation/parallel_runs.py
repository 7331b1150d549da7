"""Run many seeds in parallel processes.

The processes are forked, so the modules are imported only once.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from integration.simulation.plan import plan_of
from integration.simulation.run import run
from integration.simulation.sink.run import run_sink
from integration.simulation.sink.workload import sink_plan_of

_SEEDS_AT_ONCE = 4


def violations(
    seeds: range, jobs: int, *, is_sink: bool = False
) -> Iterator[tuple[int, str | None]]:
    """Yield each seed in order, with the invariant violation, or None if the run succeeded.

    Raises `BrokenProcessPool` if a process is killed.
    """
    gc.freeze()  # Exclude the modules from garbage collection.
    with ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_leave_interrupts_to_the_parent,
    ) as pool:
        run_seed = _violation_of_sink if is_sink else _violation_of
        yield from pool.map(run_seed, seeds, chunksize=_SEEDS_AT_ONCE)


def _violation_of(seed: int) -> tuple[int, str | None]:
    return seed, run(plan_of(seed)).violation


def _violation_of_sink(seed: int) -> tuple[int, str | None]:
    return seed, run_sink(sink_plan_of(seed)).violation


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
