"""The promise, case by case, on the cluster in memory: each row is seen once, or somebody is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import pytest

from tests.pyspark_kafka.sink.exactly_once import faults, scenarios
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

SCENARIOS: tuple[Callable[[FakeWorld], object], ...] = (
    scenarios.batches_are_seen_once,
    scenarios.what_is_prepared_is_not_seen_before_it_is_decided,
    scenarios.a_driver_killed_anywhere,
    scenarios.a_driver_killed_twice,
    scenarios.replay_of_what_was_not_decided,
    scenarios.replay_of_what_was_decided,
    scenarios.replay_of_what_was_decided_and_not_rolled_forward,
    scenarios.replay_of_an_empty_batch,
    scenarios.a_stale_driver_is_told,
    scenarios.a_task_is_tried_again_after_it_has_prepared,
    scenarios.a_stage_is_tried_again,
    scenarios.an_answer_of_a_fenced_attempt_is_not_taken,
    scenarios.a_late_attempt_of_an_earlier_batch,
    scenarios.a_task_that_fails_leaves_nothing,
    scenarios.a_failed_batch_is_not_seen,
    faults.abort_after_a_commit_that_has_decided,
    faults.the_answer_to_the_decision_is_lost,
    faults.the_network_fails_around_the_decision,
    faults.the_decision_is_lost,
    faults.a_decision_is_delivered_late,
    faults.a_decision_of_a_dead_driver_is_delivered_late,
    faults.an_answer_that_may_mean_anything,
    faults.markers_are_late,
    faults.a_coordinator_is_on_the_move,
    faults.a_prepared_transaction_times_out_before_the_decision,
    faults.a_batch_close_to_its_timeout_is_not_begun,
    faults.decided_rows_are_lost_and_written_again,
    faults.lost_rows_are_found_by_the_next_start,
    faults.a_batch_behind_lost_rows_is_refused,
    faults.lost_rows_that_come_again_as_others,
    faults.lost_rows_that_nobody_writes_again,
    faults.a_supplement_keeps_what_survived,
    scenarios.a_replay_with_other_rows_is_told,
    scenarios.a_replay_in_other_partitions_is_the_same,
    scenarios.a_replay_from_other_offsets_is_told,
    scenarios.jobs_with_a_batch_id,
    scenarios.jobs_without_a_batch_id,
    scenarios.a_task_without_rows_opens_nothing,
    scenarios.offsets_are_committed_with_the_rows,
)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> FakeWorld:
    """Of each `transaction.version`."""
    return FakeWorld(cast("Literal[1, 2]", request.param))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(world: FakeWorld, scenario: Callable[[FakeWorld], object]) -> None:
    scenario(world)
