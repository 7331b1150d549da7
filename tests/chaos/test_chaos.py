"""A streaming query writes each row exactly once while nodes, links and its processes fail."""

from __future__ import annotations

import pytest

from integration.chaos.__main__ import report
from integration.chaos.run import Setup, run
from integration.chaos.schedule import ENDS_OF_DRIVER, FaultKind

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 15.0


@pytest.mark.timeout(1200)
def test_a_seed_writes_exactly_once(seed: int) -> None:
    is_secured = seed // 2 % 2 == 1  # with both transaction versions, which depend on seed % 2
    outcome = run(
        Setup(seed=seed, backend="reference-processes", seconds=SECONDS, is_secured=is_secured)
    )
    assert outcome.is_exactly_once, report(outcome)
    faults = [fault.kind for fault in outcome.setup.schedule.of_query]
    assert outcome.driver_starts > sum(kind in ENDS_OF_DRIVER for kind in faults)
    assert outcome.replaced_drivers == faults.count(FaultKind.STOP_DRIVER)


@pytest.mark.full
@pytest.mark.by_hand
@pytest.mark.timeout(1200)
def test_several_seeds_write_exactly_once(seed: int) -> None:
    for each in range(seed + 1, seed + 4):
        outcome = run(Setup(seed=each, backend="reference-processes", seconds=60.0))
        assert outcome.is_exactly_once, report(outcome)
