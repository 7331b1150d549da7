"""Search for the first seed that detects each bug.

    python -m tests.simulation.bugs.find 0:60 [part of a bug's name]

Run it after a change of broker_ref or the simulation if tests have to try many seeds.
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


def first_detecting_seed(bug: Bug, seeds: Iterable[int]) -> int | None:
    """Return the first seed that detects a reintroduced bug, or None."""
    for seed in seeds:
        plan = plan_of(seed)
        if bug.applies_to(plan.settings) and run(plan).violation is not None:
            return seed
    return None


def _print_seeds(seeds: range, name_part: str) -> None:
    for bug in all_bugs():
        if name_part in bug.name:
            with pytest.MonkeyPatch.context() as monkeypatch:
                bug.reintroduce(monkeypatch)
                begun_s = time.process_time()
                found = first_detecting_seed(bug, seeds)
            print(f"{bug.name}: {found} ({time.process_time() - begun_s:.1f} s)", flush=True)


if __name__ == "__main__":
    first, _, end = sys.argv[1].partition(":")
    _print_seeds(range(int(first), int(end)), " ".join(sys.argv[2:]))
