"""The cluster keeps its invariants under faults, and a seed can be replayed exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from integration.simulation import messages
from integration.simulation.__main__ import report_failure
from integration.simulation.plan import Plan, plan_of
from integration.simulation.run import Outcome, run
from integration.simulation.shrink import shrink

SEEDS = range(8)
"""The seeds that always run. They take about five seconds of CPU time."""
FULL_SEEDS = range(len(SEEDS), 80)
"""The seeds of the full tests, which take about 40 seconds. `make sim` runs more seeds."""

RUN_AGAIN = """
import sys
from integration.simulation.plan import plan_of
from integration.simulation.run import run
outcome = run(plan_of(int(sys.argv[1])))
print(outcome.identity, *outcome.trace, sep="\\n")
"""


@cache
def outcome_of(seed: int) -> Outcome:
    return run(plan_of(seed))


def check(outcome: Outcome) -> None:
    if outcome.violation is not None:
        pytest.fail(report_failure(outcome), pytrace=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_invariants_hold_under_faults(seed: int) -> None:
    outcome = outcome_of(seed)
    check(outcome)
    assert outcome.acknowledged > 0, "no record was acknowledged"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_invariants_hold_in_many_runs() -> None:
    for seed in FULL_SEEDS:
        check(run(plan_of(seed)))


def test_clients_encode_requests_as_kio_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "COMPARED", 1)
    seed = next(seed for seed in SEEDS if _has_everything(plan_of(seed)))
    check(run(plan_of(seed)))


@pytest.mark.slow
def test_a_seed_replays_exactly_in_another_process() -> None:
    seed = next(seed for seed in SEEDS if _has_everything(plan_of(seed)))
    here = outcome_of(seed)
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", RUN_AGAIN, str(seed)],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        assert there.splitlines() == [str(here.identity), *here.trace]


def _has_everything(plan: Plan) -> bool:
    """Return whether a plan has all kinds of clients and slow frames."""
    settings = plan.settings
    return (
        min(settings.group_members, settings.transactional_clients) > 0
        and settings.network_conditions.slow_chance > 0
    )


def test_a_seed_replays_exactly_after_others() -> None:
    assert run(plan_of(SEEDS[0])).identity == outcome_of(SEEDS[0]).identity


def test_seeds_differ() -> None:
    assert len({outcome_of(seed).digest for seed in SEEDS}) == len(SEEDS)


def test_a_failing_run_is_shrunk() -> None:
    plan = next(plan for plan in map(plan_of, range(100)) if len(plan.faults) >= 6)
    culprit = plan.faults[-2]
    runs = 0

    def fails_with_the_culprit(plan: Plan) -> Outcome:
        nonlocal runs
        runs += 1
        return Outcome(
            plan=plan,
            violation="found" if culprit in plan.faults else None,
            trace=[],
            digest=0,
            steps=0,
            elapsed_ms=0,
            acknowledged=0,
        )

    shortest = shrink(fails_with_the_culprit(plan), fails_with_the_culprit, runs_max=40)
    assert shortest.plan.faults == (culprit,)
    assert runs <= 41
