"""Scenarios on the fake cluster: each row is visible once, or an error is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import pytest

from tests.pyspark_kafka.sink.exactly_once import failure_scenarios, scenarios
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, each_scenario

SCENARIOS: tuple[Callable[[FakeWorld], object], ...] = (
    scenarios.batches_are_seen_once,
    scenarios.what_is_prepared_is_not_seen_before_it_is_decided,
    scenarios.a_driver_killed_anywhere,
    scenarios.a_driver_killed_twice,
    scenarios.replay_of_what_was_not_decided,
    scenarios.replay_of_what_was_decided,
    scenarios.replay_of_what_was_decided_and_not_rolled_forward,
    scenarios.replay_of_an_empty_batch,
    scenarios.a_stale_driver_is_refused,
    scenarios.a_task_is_tried_again_after_it_has_prepared,
    scenarios.a_stage_is_tried_again,
    scenarios.a_late_result_of_a_fenced_attempt_is_refused,
    scenarios.a_late_attempt_of_an_earlier_batch,
    scenarios.an_attempt_after_the_last_sweep_of_an_idle_query,
    scenarios.an_attempt_that_begins_after_the_last_sweep,
    scenarios.a_task_that_fails_leaves_nothing,
    scenarios.a_failed_batch_is_not_visible,
    failure_scenarios.abort_after_a_commit_that_has_decided,
    failure_scenarios.the_response_to_the_decision_is_lost,
    failure_scenarios.the_network_fails_around_the_decision,
    failure_scenarios.the_decision_is_lost,
    failure_scenarios.a_decision_is_delivered_late,
    failure_scenarios.a_decision_of_a_dead_driver_is_delivered_late,
    failure_scenarios.the_decision_gets_an_error_code,
    failure_scenarios.markers_are_late,
    failure_scenarios.a_coordinator_moves,
    failure_scenarios.a_prepared_transaction_times_out_before_the_decision,
    failure_scenarios.a_batch_close_to_its_timeout_is_not_decided,
    failure_scenarios.decided_rows_are_lost_and_written_again,
    failure_scenarios.lost_rows_are_found_by_the_next_start,
    failure_scenarios.a_batch_after_lost_rows_is_refused,
    failure_scenarios.lost_rows_are_replaced_by_other_rows,
    failure_scenarios.lost_rows_are_not_written_again,
    failure_scenarios.a_supplement_keeps_the_surviving_rows,
    scenarios.a_replay_with_other_rows_is_refused,
    scenarios.two_writes_of_a_batch_need_two_ids,
    scenarios.a_replay_in_other_partitions_is_the_same,
    scenarios.a_replay_from_other_offsets_is_refused,
    scenarios.a_replay_from_other_offsets_is_never_accepted,
    failure_scenarios.lost_rows_need_the_same_tasks,
    scenarios.jobs_with_a_batch_id,
    scenarios.jobs_without_a_batch_id,
    scenarios.a_task_without_rows_opens_nothing,
    scenarios.offsets_are_committed_with_the_rows,
)


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def world(request: pytest.FixtureRequest) -> FakeWorld:
    """Return a fake cluster of each `transaction.version`."""
    return FakeWorld(cast("Literal[1, 2]", request.param))


@each_scenario(SCENARIOS)
def test_scenario(world: FakeWorld, scenario: Callable[[FakeWorld], object]) -> None:
    scenario(world)
