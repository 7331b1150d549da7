"""The sink writes each row exactly once if any of its processes is killed or stalled."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase, Recording
from integration.failpoints.scenarios import (
    SCENARIOS,
    SLOW_SCENARIOS,
    VERSION_DEPENDENT,
    WRAPPING_SCENARIOS,
    Wake,
)
from integration.failpoints.session import Session

pytestmark = [pytest.mark.slow]

SAMPLE_S = 15.0
"""The seconds during which `make test` starts cases, in an order that the seed determines."""

SAMPLE_CASES_MIN = 6
MATRIX_S = 1500


def check(session: Session, chosen: Iterable[AnyCase], *, for_s: float | None = None) -> int:
    """Run cases and return their number. Fail with the timelines of failed cases."""
    until_s = None if for_s is None else time.monotonic() + for_s
    results = list(matrix.run(session, chosen, until_s=until_s))
    failed = [f"{each.case}\n{each.error}" for each in results if each.error is not None]
    print(
        f"{len(results)} cases, {sum(each.seconds for each in results) / len(results):.2f} s each"
    )
    assert not failed, f"{len(failed)} of {len(results)}:\n" + "\n".join(failed)
    return len(results)


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


@pytest.mark.full
@pytest.mark.kafka_only
@pytest.mark.timeout(MATRIX_S)
@pytest.mark.parametrize("wake", [Wake.AFTERWARDS, Wake.BEFORE_DECISION])
def test_every_zombie_of_a_first_driver_is_harmless(
    session: Session, recordings: list[Recording], wake: Wake
) -> None:
    cases = matrix.stalls(each for each in recordings if not each.scenario.preconditions)
    check(session, [case for case in cases if case.wake is wake])


@pytest.mark.full
@pytest.mark.kafka_only
@pytest.mark.timeout(MATRIX_S)
def test_a_sample_of_zombies_of_later_drivers_is_harmless(
    session: Session, recordings: list[Recording], seed: int
) -> None:
    """An earlier driver has left a decision, prepared transactions or lost rows."""
    cases = matrix.stalls(each for each in recordings if each.scenario.preconditions)
    check(session, matrix.shuffled(cases, seed), for_s=SAMPLE_S)


@pytest.mark.full
@pytest.mark.timeout(MATRIX_S)
@pytest.mark.parametrize("version", [1, 2])
def test_a_sample_of_zombies_is_harmless_when_ids_are_used_again(
    request: pytest.FixtureRequest, seed: int, version: int
) -> None:
    session: Session = request.getfixturevalue("old_transactions" if version == 1 else "session")
    cases = matrix.stalls(matrix.record(session, WRAPPING_SCENARIOS))
    check(session, matrix.shuffled(cases, seed), for_s=SAMPLE_S)
