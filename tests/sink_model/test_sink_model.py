"""The invariants of the exactly-once protocol's model hold, and each mutation is detected."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from integration.sink_model import __main__ as command
from integration.sink_model import mutations
from integration.sink_model.case import Case
from integration.sink_model.cases import ALL, FOUND_BY, FULL, SMALL, UNDETECTABLE, Found
from integration.sink_model.explore import explore

TESTS_OF_THE_CODE = Path(__file__).parents[1] / "pyspark_kafka" / "sink" / "exactly_once"
PAGE = Path(__file__).parents[2] / "docs" / "sink-model.md"
LARGE = 5_000
"""States of a case that takes seconds to explore."""
HUGE = 100_000
"""States of a case that takes ten seconds to explore."""


def documented_states() -> dict[str, int]:
    """Return the number of states of each case in docs/sink-model.md."""
    found = re.findall(r"^\| `([a-z0-9-]+)` \| ([\d,]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name: int(states.replace(",", "")) for name, states in found}


def marks_by_size(case: Case, *, full_from: int) -> list[pytest.MarkDecorator]:
    states = documented_states()[case.name]
    if states >= full_from:
        return [pytest.mark.full]
    return [pytest.mark.slow] if states >= LARGE else []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case",
    [
        *(
            pytest.param(case, id=case.name, marks=marks_by_size(case, full_from=HUGE))
            for case in SMALL
        ),
        *(
            pytest.param(case, id=case.name, marks=[pytest.mark.full, pytest.mark.sampled])
            for case in FULL
        ),
    ],
)
def test_the_invariants_hold(case: Case) -> None:
    outcome = explore(case)
    print(command.report(outcome))
    assert outcome.violation is None, command.report(outcome)
    assert outcome.is_complete
    assert outcome.states == documented_states()[case.name]


@pytest.mark.parametrize(
    ("mutation", "found"),
    [
        pytest.param(
            mutation, found, id=mutation, marks=marks_by_size(ALL[found.case], full_from=LARGE)
        )
        for mutation, found in FOUND_BY.items()
    ],
)
def test_the_mutation_is_detected(mutation: str, found: Found) -> None:
    outcome = explore(dataclasses.replace(ALL[found.case], mutation=mutation))
    assert outcome.violation is not None
    assert outcome.violation.startswith(f"{found.violates}: ")
    assert outcome.trace


def test_every_mutation_is_detected_or_has_a_reason() -> None:
    names = {value for name, value in vars(mutations).items() if name.isupper()}
    assert names == FOUND_BY.keys() | UNDETECTABLE.keys()
    assert not FOUND_BY.keys() & UNDETECTABLE.keys()
    assert len(FOUND_BY) >= 15


def test_the_docs_list_every_case_and_every_mutation() -> None:
    text = PAGE.read_text()
    assert list(documented_states()) == list(ALL)
    for mutation, (name, violates) in FOUND_BY.items():
        assert f"| `{mutation}` | `{name}` | {violates} |" in text
    for mutation, (reason, place) in UNDETECTABLE.items():
        assert f"| `{mutation}` | {reason} | `{place}` |" in text


@pytest.mark.parametrize("place", [place for _, place in UNDETECTABLE.values()])
def test_an_undetectable_mutation_has_a_test_of_the_code(place: str) -> None:
    file, name = place.split("::")
    assert f"def {name}(" in (TESTS_OF_THE_CODE / file).read_text()
