"""The simulation finds bugs that Kafka had, when they are put back into the core."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from integration.simulation.plan import plan_of
from integration.simulation.run import run
from tests.simulation.bugs.bug import Bug
from tests.simulation.bugs.find import first_that_finds
from tests.simulation.bugs.table import all_bugs, found_bugs, table

BUGS_MIN = 15
QUICK = {
    "truncate to own high watermark",
    "remember one batch",
    "delayed fetch drops the aborted list",
    "acknowledge commits at once",
}
"""One of each part, that `make test` looks for as well."""

DOCS = Path(__file__).parents[2] / "docs" / "simulation.md"


@cache
def violation_without_bugs(seed: int) -> str | None:
    return run(plan_of(seed)).violation


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=[] if bug.name in QUICK else pytest.mark.full)
        for bug in found_bugs()
    ],
)
def test_the_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bug.first_seed is not None
    bug.put_back(monkeypatch)
    seeds = range(bug.first_seed, bug.first_seed + bug.seeds_max)
    seed = first_that_finds(bug, seeds)
    assert seed is not None, f"{bug.name!r} is not found by seeds {seeds}"
    monkeypatch.undo()
    clean = violation_without_bugs(seed)
    assert clean is None, f"seed {seed} fails without the bug: {clean}"


@pytest.mark.parametrize("bug", all_bugs(), ids=lambda bug: bug.name)
def test_the_core_has_what_the_switch_changes(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put_back(monkeypatch)


def test_there_are_as_many_bugs_as_promised() -> None:
    names = [bug.name for bug in found_bugs()]
    assert len(set(names)) == len(names) >= BUGS_MIN
    assert set(names) >= QUICK


def test_the_docs_have_the_table() -> None:
    assert table() in DOCS.read_text()
