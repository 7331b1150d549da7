"""The table of cases is complete and corresponds to docs/parity.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from integration.parity import page
from integration.parity.case import Kind, Relation
from integration.parity.cases import CASES, SAMPLE
from integration.parity.guide import HELD_BY_TESTS, OPTIONS, HeldByTest

ROOT = Path(__file__).parents[2]


def test_page_is_current() -> None:
    run = "run: python -m integration.parity --page"
    assert page.PAGE.read_text() == page.render(CASES), run


def test_names_are_unique() -> None:
    counted = Counter(case.name for case in CASES)
    assert [name for name, count in counted.items() if count > 1] == []


def test_every_option_of_the_guide_has_a_case_for_each_of_its_queries() -> None:
    compared = {(case.about, case.kind) for case in CASES}
    documented = {(name, kind) for name, kinds in OPTIONS.items() for kind in kinds}
    assert documented - compared == set[tuple[str, Kind]]()


def test_every_deviation_has_a_reason_and_every_refusal_an_error() -> None:
    for case in CASES:
        expected = case.expected
        assert bool(expected.reason) == expected.is_deviation, case.name
        refuses = expected.relation in (Relation.WE_REFUSE, Relation.BOTH_REFUSE)
        assert (expected.error is not None) == refuses, case.name


def test_the_sample_contains_every_deviation() -> None:
    sampled = {case.expected.reason for case in SAMPLE}
    assert {case.expected.reason for case in CASES} <= sampled


@pytest.mark.parametrize("held", HELD_BY_TESTS, ids=lambda held: held.subject)
def test_tests_that_hold_other_deviations_exist(held: HeldByTest) -> None:
    path, _, name = held.test.partition("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text()
