"""Scenarios without special requirements, on the cluster of this run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import TopicFactory
from tests.pyspark_kafka.sink.exactly_once import failure_scenarios, scenarios
from tests.pyspark_kafka.sink.exactly_once.query import MIDDLE
from tests.pyspark_kafka.sink.exactly_once.worlds import RealWorld

pytestmark = pytest.mark.slow

SCENARIOS: tuple[Callable[[RealWorld], object], ...] = (
    scenarios.batches_are_seen_once,
    scenarios.what_is_prepared_is_not_seen_before_it_is_decided,
    scenarios.replay_of_what_was_not_decided,
    scenarios.replay_of_what_was_decided,
    scenarios.replay_of_what_was_decided_and_not_rolled_forward,
    scenarios.replay_of_an_empty_batch,
    scenarios.a_stale_driver_is_refused,
    scenarios.a_task_is_tried_again_after_it_has_prepared,
    scenarios.a_stage_is_tried_again,
    scenarios.a_late_result_of_a_fenced_attempt_is_refused,
    scenarios.a_late_attempt_of_an_earlier_batch,
    scenarios.a_task_that_fails_leaves_nothing,
    scenarios.a_failed_batch_is_not_visible,
    scenarios.a_new_driver_is_not_harmed_by_an_old_one,
    scenarios.an_old_driver_that_sweeps_late,
    scenarios.a_late_task_of_an_old_run,
    scenarios.a_late_mark_of_an_old_decision,
    scenarios.two_queries_with_one_transactional_id,
    scenarios.a_checkpoint_is_deleted,
    scenarios.a_checkpoint_is_copied_and_run_twice,
    scenarios.another_query_holds_the_commit_topic,
    scenarios.a_replay_with_other_rows_is_refused,
    scenarios.a_replay_in_other_partitions_is_the_same,
    scenarios.a_replay_from_other_offsets_is_refused,
    scenarios.jobs_with_a_batch_id,
    scenarios.jobs_without_a_batch_id,
    scenarios.offsets_are_committed_with_the_rows,
    failure_scenarios.abort_after_a_commit_that_has_decided,
    failure_scenarios.the_network_fails_around_the_decision,
)


@pytest.fixture
def world(bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str]) -> RealWorld:
    return RealWorld(bootstrap, topic, unique_name)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(world: RealWorld, scenario: Callable[[RealWorld], object]) -> None:
    scenario(world)


@pytest.mark.timeout(240)
def test_driver_killed_at_some_failpoints(world: RealWorld) -> None:
    assert scenarios.a_driver_killed_anywhere(world, every=23, input=MIDDLE) > 80


@pytest.mark.timeout(240)
def test_old_driver_wakes_up_at_some_failpoints(world: RealWorld) -> None:
    assert scenarios.an_old_driver_wakes_up_anywhere(world, every=29) > 80


@pytest.mark.timeout(240)
def test_old_driver_works_while_the_new_one_writes(world: RealWorld) -> None:
    assert scenarios.an_old_driver_works_while_the_new_one_writes(world, every=29) > 80


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "scenario",
    [
        failure_scenarios.a_decision_is_delivered_late,
        failure_scenarios.a_decision_of_a_dead_driver_is_delivered_late,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_decision_arrives_late_at_some_failpoints(
    world: RealWorld, scenario: Callable[..., int]
) -> None:
    assert scenario(world, every=17) > 70
