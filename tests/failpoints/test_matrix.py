"""The sink writes each row exactly once if any of its processes is killed or stalled."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from integration.failpoints import matrix
from integration.failpoints.matrix import AnyCase, Recording
from integration.failpoints.scenarios import SCENARIOS, SLOW_SCENARIOS, VERSION_DEPENDENT
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
    everything: list[AnyCase] = [
        *matrix.cases(recordings),
        *matrix.stalls(recordings, during_next_batch=False),
        *matrix.stalls(recordings, during_next_batch=True),
    ]
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
@pytest.mark.parametrize(
    "during_next_batch", [False, True], ids=["afterwards", "during-next-batch"]
)
def test_every_zombie_is_harmless(
    session: Session, recordings: list[Recording], during_next_batch: bool
) -> None:
    check(session, matrix.stalls(recordings, during_next_batch=during_next_batch))
