"""The sink writes each row exactly once if any of its processes is killed or stalled."""

from __future__ import annotations

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase, Recording
from integration.failpoints.scenarios import SCENARIOS, SLOW_SCENARIOS, VERSION_DEPENDENT
from integration.failpoints.session import Session
from tests.failpoints.checks import MATRIX_S, check

pytestmark = [pytest.mark.slow]

SAMPLE_CASES = 16
"""The number of cases in a sample, which the seed determines."""


@pytest.mark.timeout(240)
def test_every_declared_step_and_request_is_reached(recordings: list[Recording]) -> None:
    assert matrix.coverage_errors(recordings) == []


@pytest.mark.timeout(240)
def test_a_sample_of_kills_and_stalls_passes(
    session: Session, recordings: list[Recording], seed: int
) -> None:
    check_sample(session, recordings, seed)


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_sample_passes_over_sasl_ssl_with_the_acls_of_the_guide(
    secured_session: Session, recordings: list[Recording], seed: int
) -> None:
    check_sample(secured_session, recordings, seed)


def check_sample(session: Session, recordings: list[Recording], seed: int) -> None:
    everything: list[AnyCase] = [*matrix.cases(recordings), *matrix.stalls(recordings)]
    check(session, matrix.shuffled(everything, seed)[:SAMPLE_CASES])


@pytest.mark.full
@pytest.mark.kafka_only
@pytest.mark.timeout(MATRIX_S)
def test_every_kill_passes(
    session: Session, recordings: list[Recording], seed: int, parts: int
) -> None:
    slow = matrix.record(session, SLOW_SCENARIOS)
    check(session, matrix.shuffled(matrix.cases([*recordings, *slow]), seed)[::parts])


@pytest.mark.full
@pytest.mark.timeout(MATRIX_S)
def test_every_kill_passes_with_old_transactions(
    old_transactions: Session, seed: int, parts: int
) -> None:
    scenarios = [each for each in SCENARIOS if each.name in VERSION_DEPENDENT]
    cases = matrix.cases(matrix.record(old_transactions, scenarios))
    check(old_transactions, matrix.shuffled(cases, seed)[::parts])
