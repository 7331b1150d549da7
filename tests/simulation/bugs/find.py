"""`python -m tests.simulation.bugs.find 0:60 [words of a name]`: the first seeds that find bugs.

Run it when the core or the simulation has changed so much that tests look at many seeds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import pytest

from integration.simulation.plan import plan_of
from integration.simulation.run import run
from tests.simulation.bugs.bug import Bug
from tests.simulation.bugs.table import all_bugs


def first_that_finds(bug: Bug, seeds: Iterable[int]) -> int | None:
    """The first seed that finds a bug that is put back; None where none does."""
    for seed in seeds:
        plan = plan_of(seed)
        if bug.needs(plan.settings) and run(plan).violation is not None:
            return seed
    return None


def _tell(seeds: range, words: str) -> None:
    for bug in all_bugs():
        if words in bug.name:
            with pytest.MonkeyPatch.context() as monkeypatch:
                bug.put_back(monkeypatch)
                begun_s = time.process_time()
                found = first_that_finds(bug, seeds)
            print(f"{bug.name}: {found} ({time.process_time() - begun_s:.1f} s)", flush=True)


if __name__ == "__main__":
    first, _, end = sys.argv[1].partition(":")
    _tell(range(int(first), int(end)), " ".join(sys.argv[2:]))
