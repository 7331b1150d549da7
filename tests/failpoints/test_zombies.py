"""The sink writes each row exactly once if stalled processes of an earlier driver continue.

These tests have a file of their own so that they can run in parallel with `test_matrix.py`.
"""

from __future__ import annotations

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import Recording
from integration.failpoints.scenarios import WRAPPING_SCENARIOS, Wake
from integration.failpoints.session import Session
from tests.failpoints.checks import MATRIX_S, check

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(MATRIX_S)]


@pytest.mark.kafka_only
@pytest.mark.parametrize("wake", [Wake.AFTERWARDS, Wake.BEFORE_DECISION])
def test_every_zombie_of_a_first_driver_is_harmless(
    session: Session, recordings: list[Recording], wake: Wake, seed: int, parts: int
) -> None:
    stalls = matrix.stalls(each for each in recordings if not each.scenario.preconditions)
    cases = [case for case in stalls if case.wake is wake]
    check(session, matrix.shuffled(cases, seed)[::parts])


@pytest.mark.kafka_only
def test_a_sample_of_zombies_of_later_drivers_is_harmless(
    session: Session, recordings: list[Recording], seed: int
) -> None:
    """An earlier driver has left a decision, prepared transactions or lost rows."""
    cases = matrix.stalls(each for each in recordings if each.scenario.preconditions)
    check(session, matrix.shuffled(cases, seed)[:16])


@pytest.mark.sampled
@pytest.mark.parametrize("version", [1, 2])
def test_a_sample_of_zombies_is_harmless_when_ids_are_used_again(
    request: pytest.FixtureRequest, seed: int, version: int
) -> None:
    session: Session = request.getfixturevalue("old_transactions" if version == 1 else "session")
    cases = matrix.stalls(matrix.record(session, WRAPPING_SCENARIOS))
    check(session, matrix.shuffled(cases, seed)[:4])
