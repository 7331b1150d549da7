"""The exactly-once sink keeps its invariants on a simulated cluster, and mutations of it do not."""

from __future__ import annotations

import re
import threading
import time
from functools import cache

import pytest

from integration.simulation import __main__ as command
from integration.simulation.__main__ import report_sink
from integration.simulation.sink.run import SinkOutcome, run_sink
from integration.simulation.sink.workload import sink_plan_of
from tests.simulation.sink_mutations import FOUND, Found

SEEDS = range(12)
"""The seeds that always run. They take about eight seconds."""
FULL_SEEDS = range(len(SEEDS), 36)
"""The seeds of the full tests, which take about 40 seconds. `make sim-sink` runs more seeds."""


@cache
def outcome_of(seed: int) -> SinkOutcome:
    return run_sink(sink_plan_of(seed))


def check(outcome: SinkOutcome) -> None:
    if outcome.violation is not None:
        pytest.fail(report_sink(outcome), pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_is_written_once_under_faults(seed: int) -> None:
    check(outcome_of(seed))


@pytest.mark.slow
def test_the_seeds_have_faults() -> None:
    outcomes = [outcome_of(seed) for seed in SEEDS]
    assert sum(outcome.kills for outcome in outcomes) > len(SEEDS)
    assert len({outcome.digest for outcome in outcomes}) == len(SEEDS)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_row_is_written_once_in_many_runs() -> None:
    for seed in FULL_SEEDS:
        check(run_sink(sink_plan_of(seed)))


@pytest.mark.slow
def test_a_seed_replays_exactly_beside_other_threads() -> None:
    is_over = threading.Event()

    def sleep_often() -> None:
        while not is_over.is_set():
            time.sleep(0.0001)

    other = threading.Thread(target=sleep_often)
    other.start()
    try:
        again = run_sink(sink_plan_of(SEEDS[3]))
    finally:
        is_over.set()
        other.join()
    assert (again.identity, again.trace) == (
        outcome_of(SEEDS[3]).identity,
        outcome_of(SEEDS[3]).trace,
    )


@pytest.mark.slow
def test_the_command_shows_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--sink", "--seed", "0"]) == 0
    shown = capsys.readouterr().out
    assert f"{outcome_of(0).digest:08x}" in shown
    assert all(line in shown for line in outcome_of(0).trace)


@pytest.mark.full
@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.mutation.__name__)
def test_a_mutation_is_detected(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong row or offset, a blocked reader, or an invalid trace, but not an exception."""
    found.mutation(monkeypatch)
    violation = run_sink(sink_plan_of(found.seed)).violation
    assert violation is not None
    assert re.match(found.violation, violation), violation
