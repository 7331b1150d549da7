"""The simulation finds bugs that Kafka had, when they are put back into the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.simulation.plan import plan_of
from integration.simulation.run import run
from tests.simulation.bugs.bug import Bug
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=[] if bug.name in QUICK else pytest.mark.full)
        for bug in found_bugs()
    ],
)
def test_the_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bug.found_by is not None
    clean = run(plan_of(bug.found_by)).violation
    assert clean is None, f"seed {bug.found_by} fails without the bug: {clean}"
    bug.put_back(monkeypatch)
    for seed in (bug.found_by, *range(bug.seeds_max)):
        plan = plan_of(seed)
        if bug.needs(plan.settings) and run(plan).violation is not None:
            return
    pytest.fail(f"{bug.name!r} is not found by {bug.seeds_max} seeds")


@pytest.mark.parametrize("bug", all_bugs(), ids=lambda bug: bug.name)
def test_the_core_has_what_the_switch_changes(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put_back(monkeypatch)


def test_there_are_as_many_bugs_as_promised() -> None:
    names = [bug.name for bug in found_bugs()]
    assert len(set(names)) == len(names) >= BUGS_MIN
    assert set(names) >= QUICK


def test_the_docs_have_the_table() -> None:
    assert table() in DOCS.read_text()
