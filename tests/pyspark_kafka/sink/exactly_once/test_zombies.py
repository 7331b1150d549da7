"""Tests of old drivers that are still running, on the fake cluster: they do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import pytest

from pyspark_kafka.sink.exactly_once import roll_forward
from tests.pyspark_kafka.sink.exactly_once import interleaving, scenarios
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, each_scenario

SCENARIOS: tuple[Callable[[FakeWorld], object], ...] = (
    scenarios.an_old_driver_wakes_up_anywhere,
    scenarios.an_old_driver_works_while_the_new_one_writes,
    scenarios.a_new_driver_is_not_harmed_by_an_old_one,
    scenarios.an_old_driver_that_sweeps_late,
    scenarios.a_late_task_of_an_old_run,
    scenarios.a_late_mark_of_an_old_decision,
    scenarios.two_queries_with_one_transactional_id,
    scenarios.a_checkpoint_is_deleted,
    scenarios.a_checkpoint_is_copied_and_run_twice,
    scenarios.another_query_holds_the_commit_topic,
)
HISTORIES = 60


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> FakeWorld:
    """Return a fake cluster of each `transaction.version`."""
    return FakeWorld(cast("Literal[1, 2]", request.param))


@each_scenario(SCENARIOS)
def test_scenario(world: FakeWorld, scenario: Callable[[FakeWorld], object]) -> None:
    scenario(world)


@pytest.mark.slow
def test_any_interleaving(world: FakeWorld, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed chooses drivers of one or two queries, stragglers, kills, losses and delays."""
    monkeypatch.setattr(roll_forward, "_BACKOFFS_S", (0.0, 0.0))
    for number in range(seed, seed + HISTORIES):
        interleaving.play(number, world.fresh())
