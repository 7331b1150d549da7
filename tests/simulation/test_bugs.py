"""The simulation detects former bugs of Kafka that are reintroduced into broker_ref."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from integration.simulation.plan import plan_of
from integration.simulation.run import run
from tests.simulation.bugs.bug import Bug
from tests.simulation.bugs.find import first_detecting_seed
from tests.simulation.bugs.table import all_bugs, detected_bugs, table

BUGS_MIN = 45
QUICK = {
    "truncate to own high watermark",
    "remember only the last batch",
    "delayed fetch drops the aborted list",
    "acknowledge offset commits too early",
}
"""One bug per area. `make test` checks only these."""

DOCS = Path(__file__).parents[2] / "docs" / "simulation.md"


@cache
def violation_without_bugs(seed: int) -> str | None:
    return run(plan_of(seed)).violation


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(
            bug,
            id=bug.name,
            marks=[] if bug.name in QUICK else [pytest.mark.full, pytest.mark.sampled],
        )
        for bug in detected_bugs()
    ],
)
def test_the_bug_is_detected(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bug.first_seed is not None
    bug.reintroduce(monkeypatch)
    seeds = range(bug.first_seed, bug.first_seed + bug.seeds_max)
    seed = first_detecting_seed(bug, seeds)
    assert seed is not None, f"{bug.name!r} is not detected by seeds {seeds}"
    monkeypatch.undo()
    clean = violation_without_bugs(seed)
    assert clean is None, f"seed {seed} fails without the bug: {clean}"


@pytest.mark.parametrize("bug", all_bugs(), ids=lambda bug: bug.name)
def test_the_bug_can_be_reintroduced(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.reintroduce(monkeypatch)


def test_the_minimum_number_of_bugs_is_detected() -> None:
    names = [bug.name for bug in detected_bugs()]
    assert len(set(names)) == len(names) >= BUGS_MIN
    assert set(names) >= QUICK


def test_the_docs_contain_the_table() -> None:
    assert table() in DOCS.read_text()
