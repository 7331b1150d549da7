"""The sink writes each row exactly once if any of its processes is killed or stalled."""

from __future__ import annotations

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase, Recording
from integration.failpoints.session import Session
from tests.failpoints.checks import SAMPLE_S, check

pytestmark = [pytest.mark.slow]

SAMPLE_CASES_MIN = 6


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
    count = check(session, matrix.shuffled(everything, seed), for_s=SAMPLE_S)
    assert count >= SAMPLE_CASES_MIN, "the machine is too busy to run enough cases"
