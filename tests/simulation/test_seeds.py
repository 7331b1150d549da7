"""The cluster under faults: what was acknowledged stays, replicas agree, a seed replays exactly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from integration.simulation.__main__ import report_failure
from integration.simulation.plan import plan_of
from integration.simulation.run import Outcome, run
from integration.simulation.shrink import shrink

SEEDS = range(8)
ALL_SEEDS = range(len(SEEDS), 400)
REPLAYED = 3

IDENTITY = """
import sys
from integration.simulation.plan import plan_of
from integration.simulation.run import run
print(run(plan_of(int(sys.argv[1]))).identity)
"""


def check(seed: int) -> Outcome:
    outcome = run(plan_of(seed))
    if outcome.violation is not None:
        pytest.fail(report_failure(outcome), pytrace=False)
    return outcome


@pytest.mark.parametrize("seed", SEEDS)
def test_all_is_well_whatever_goes_wrong(seed: int) -> None:
    assert check(seed).acknowledged > 0, "the producers did nothing"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_all_is_well_in_many_runs() -> None:
    for seed in ALL_SEEDS:
        check(seed)


def test_a_seed_replays_exactly_in_another_process() -> None:
    here = run(plan_of(REPLAYED)).identity
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", IDENTITY, str(REPLAYED)],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        assert there.strip() == str(here)


def test_seeds_differ() -> None:
    assert len({run(plan_of(seed)).digest for seed in range(3)}) == 3


def test_a_failing_run_is_made_shorter() -> None:
    plan = next(plan for plan in map(plan_of, range(100)) if len(plan.faults) >= 6)
    culprit = plan.faults[-2]
    runs = 0

    def fails_with_the_culprit(plan: object) -> Outcome:
        nonlocal runs
        runs += 1
        assert hasattr(plan, "faults")
        violation = "found" if culprit in plan.faults else None
        return Outcome(
            plan=plan,  # type: ignore[arg-type]
            violation=violation,
            trace=[],
            digest=0,
            steps=0,
            elapsed_ms=0,
            acknowledged=0,
        )

    shortest = shrink(fails_with_the_culprit(plan), fails_with_the_culprit, runs_max=40)
    assert shortest.plan.faults == (culprit,)
    assert runs <= 41
