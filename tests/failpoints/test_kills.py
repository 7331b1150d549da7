"""The sink writes each row exactly once if a process is killed at any step or request."""

from __future__ import annotations

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import Recording
from integration.failpoints.scenarios import SCENARIOS, SLOW_SCENARIOS, VERSION_DEPENDENT
from integration.failpoints.session import Session
from tests.failpoints.checks import MATRIX_S, check

pytestmark = [pytest.mark.slow]


@pytest.mark.full
@pytest.mark.kafka_only
@pytest.mark.timeout(MATRIX_S)
def test_every_kill_passes(session: Session, recordings: list[Recording]) -> None:
    slow = matrix.record(session, SLOW_SCENARIOS)
    check(session, matrix.cases([*recordings, *slow]))


@pytest.mark.full
@pytest.mark.timeout(MATRIX_S)
def test_every_kill_passes_with_old_transactions(old_transactions: Session) -> None:
    scenarios = [each for each in SCENARIOS if each.name in VERSION_DEPENDENT]
    check(old_transactions, matrix.cases(matrix.record(old_transactions, scenarios)))
