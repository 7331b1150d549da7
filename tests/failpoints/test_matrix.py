"""Exactly once, wherever a process of the sink is killed or stands still."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase, Recording
from integration.failpoints.scenarios import OF_BOTH_VERSIONS, SCENARIOS, SLOW_SCENARIOS
from integration.failpoints.session import Session

pytestmark = [pytest.mark.slow]

SAMPLE_S = 15.0
"""Cases are begun for so long in `make test`, in an order that the seed says."""

SAMPLE_CASES_MIN = 6
MATRIX_S = 1500


def check(session: Session, chosen: Iterable[AnyCase], *, for_s: float | None = None) -> int:
    """Run cases, and fail with the stories of those that did not end well; how many there were."""
    until_s = None if for_s is None else time.monotonic() + for_s
    results = list(matrix.run(session, chosen, until_s=until_s))
    failed = [f"{each.case}\n{each.error}" for each in results if each.error is not None]
    print(
        f"{len(results)} cases, {sum(each.seconds for each in results) / len(results):.2f} s each"
    )
    assert not failed, f"{len(failed)} of {len(results)}:\n" + "\n".join(failed)
    return len(results)


@pytest.mark.timeout(240)
def test_every_step_and_request_is_met(recordings: list[Recording]) -> None:
    assert matrix.coverage_errors(recordings) == []


@pytest.mark.timeout(240)
def test_a_sample_of_kills_and_stalls_ends_well(
    session: Session, recordings: list[Recording], seed: int
) -> None:
    everything: list[AnyCase] = [
        *matrix.cases(recordings),
        *matrix.stalls(recordings, amid=False),
        *matrix.stalls(recordings, amid=True),
    ]
    count = check(session, matrix.shuffled(everything, seed), for_s=SAMPLE_S)
    assert count >= SAMPLE_CASES_MIN, "the machine is too busy for a sample worth the name"


@pytest.mark.full
@pytest.mark.timeout(MATRIX_S)
def test_every_kill_ends_well(session: Session, recordings: list[Recording]) -> None:
    slow = matrix.record(session, SLOW_SCENARIOS)
    check(session, matrix.cases([*recordings, *slow]))


@pytest.mark.full
@pytest.mark.timeout(MATRIX_S)
def test_every_kill_ends_well_with_old_transactions(old_transactions: Session) -> None:
    scenarios = [each for each in SCENARIOS if each.name in OF_BOTH_VERSIONS]
    check(old_transactions, matrix.cases(matrix.record(old_transactions, scenarios)))


@pytest.mark.full
@pytest.mark.timeout(MATRIX_S)
@pytest.mark.parametrize("amid", [False, True], ids=["afterwards", "amid-a-batch"])
def test_every_zombie_is_harmless(
    session: Session, recordings: list[Recording], amid: bool
) -> None:
    check(session, matrix.stalls(recordings, amid=amid))
