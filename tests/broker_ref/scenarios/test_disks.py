"""Tests of disks that lose data or are full."""

from __future__ import annotations

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import NO_LEADER
from integration.simulation.cluster import CONTROLLER, host_of
from tests.broker_ref.scenarios.three_brokers import BROKERS, ThreeBrokers


def test_two_leader_failures_in_a_row_require_truncation() -> None:
    """KIP-279: each of the two leaders dies with records that no other replica has."""
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    for leader, strays in ((1, ("1x", "1y")), (2, ("2x",))):
        others = set(BROKERS) - {leader}
        cluster.faults.isolate(leader, others)
        for stray in strays:
            assert cluster.outcome(cluster.write(leader, stray, acks=1)) is ErrorCode.none
        cluster.kill(host_of(leader))
        cluster.faults.heal_all()
        cluster.await_leader(leader + 1)  # The next in-sync replica becomes leader.
    # The last replica rejects acks=all; the logs contain the epochs of all three leaders.
    assert cluster.outcome(cluster.write(3, "b")) is ErrorCode.not_enough_replicas
    assert cluster.outcome(cluster.write(3, "c", acks=1)) is ErrorCode.none
    cluster.start_broker(2)
    cluster.settle()
    cluster.write_acknowledged(3, "d")
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.agreed() == ["a", "c", "d"]
    entries = [cluster.replica(broker_id).log.leader_epochs.entries for broker_id in BROKERS]
    assert entries[0] == entries[1] == entries[2]


def test_truncated_follower_learns_the_high_watermark_without_new_records() -> None:
    """The follower was killed before its checkpoint, so it needs more than the diverging epoch."""
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    cluster.faults.isolate(1, [2, 3])
    assert cluster.outcome(cluster.write(1, "stray", acks=1)) is ErrorCode.none
    cluster.kill(host_of(1))
    cluster.faults.heal_all()
    cluster.await_leader(2)
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.agreed() == ["a"]


@pytest.mark.parametrize("victim", BROKERS)
@pytest.mark.parametrize("returns", ["without delay", "after its detection"])
def test_disk_that_lost_its_unsynced_tail(victim: int, returns: str, seed: int) -> None:
    """No acknowledged record is lost, even if all other brokers die afterwards."""
    random = Random(seed)
    cluster = ThreeBrokers()
    for number in range(20):
        cluster.write_acknowledged(1, f"{number}")
    cluster.lose_power(host_of(victim), random)
    if returns == "after its detection":
        cluster.await_out_of_sync(victim)
    cluster.start_broker(victim)
    # The broker is not in sync before it has caught up.
    cluster.run_until(lambda: cluster.is_serving(victim))
    cluster.run_until(lambda: cluster.leads(cluster.state.leader))
    assert cluster.state.leader != victim
    cluster.write_acknowledged(cluster.state.leader, "more")
    cluster.run_until(lambda: set(cluster.state.isr) == set(BROKERS))
    for other in set(BROKERS) - {victim}:
        cluster.kill(host_of(other))
    cluster.run_until(lambda: cluster.leads(victim))
    for other in set(BROKERS) - {victim}:
        cluster.start_broker(other)
    cluster.settle()
    assert cluster.agreed() == [*(f"{number}" for number in range(20)), "more"]


def test_controller_journal_is_synced_before_responses(seed: int) -> None:
    """A power loss of the controller loses no change that it has acknowledged."""
    random = Random(seed)
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    for victim in (1, 2, 3):
        before = cluster.state.leader_epoch
        cluster.kill(host_of(victim))
        cluster.await_out_of_sync(victim)
        known = cluster.state
        cluster.lose_power(CONTROLLER, random)
        cluster.start_controller()
        assert cluster.state == known
        assert cluster.state.leader_epoch >= before
        cluster.start_broker(victim)
        cluster.run_until(lambda: set(cluster.state.isr) == set(BROKERS))
    cluster.settle()
    cluster.write_acknowledged(cluster.state.leader, "b")
    cluster.settle()
    assert cluster.agreed() == ["a", "b"]


@pytest.mark.parametrize("operation", ["append", "flush"])
def test_full_disk_of_the_leader_acknowledges_nothing(operation: str) -> None:
    """Neither the rejected record nor the record that waited for a follower is acknowledged."""
    cluster = ThreeBrokers(topic_configs={"flush.messages": "1"})
    cluster.write_acknowledged(1, "a")
    cluster.faults.cut(1, 2)
    waiting = cluster.write(1, "b")
    assert waiting.is_open()
    cluster.fail_operation(1, operation)
    refused = cluster.write(1, "c")
    assert cluster.outcome(refused) is ErrorCode.kafka_storage_error
    assert not waiting.is_open()
    assert cluster.outcome(waiting) is not ErrorCode.none
    assert not cluster.is_serving(1)
    cluster.faults.heal_all()
    cluster.await_leader(2)
    cluster.write_acknowledged(2, "d")
    cluster.repair(1)
    cluster.start_broker(1)
    cluster.settle()
    assert cluster.agreed() == ["a", "d"]  # Broker 3 also had "b", and truncated it.


def test_full_disk_of_a_follower_stops_only_that_follower() -> None:
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    cluster.fail_operation(3, "append")
    pending = cluster.write(1, "b")
    cluster.run_until(lambda: not pending.is_open())
    assert cluster.outcome(pending) is ErrorCode.none
    assert not cluster.is_serving(3)
    assert set(cluster.state.isr) == {1, 2}
    cluster.repair(3)
    cluster.start_broker(3)
    cluster.settle()
    assert cluster.agreed() == ["a", "b"]


def test_disk_full_in_the_middle_of_a_batch_leaves_no_partial_batch(seed: int) -> None:
    """The next startup truncates the partial batch, whether the broker leads or follows."""
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    cluster.fail_operation(1, "append")
    assert cluster.outcome(cluster.write(1, "b")) is ErrorCode.kafka_storage_error
    half = cluster.replica(2).log.read(0, end_offset=1, max_bytes=1000, at_least_one_batch=True)
    (segment,) = [name for name in cluster.disk(host_of(1)).list("t-0") if name.endswith(".log")]
    cluster.repair(1)
    torn = half[: Random(seed).randrange(1, len(half))]
    cluster.disk(host_of(1)).open(f"t-0/{segment}").append(torn)
    cluster.start_broker(1)
    cluster.settle()
    cluster.write_acknowledged(cluster.state.leader, "c")
    cluster.settle()
    assert cluster.agreed() == ["a", "c"]


@pytest.mark.parametrize("returns_first", ["the last leader", "the eligible replica"])
def test_last_in_sync_replica_that_loses_records_does_not_lead(
    returns_first: str, seed: int
) -> None:
    """KIP-966: acknowledged records survive on the follower that left the ISR below the min ISR."""
    random = Random(seed)
    cluster = ThreeBrokers()
    for number in range(20):
        cluster.write_acknowledged(1, f"{number}")
    cluster.stop_broker(2)
    cluster.stop_broker(3)
    assert cluster.outcome(cluster.write(1, "on the last replica", acks=1)) is ErrorCode.none
    cluster.lose_power(host_of(1), random)
    cluster.run_until(lambda: cluster.state.leader == NO_LEADER)
    assert (cluster.state.isr, cluster.state.eligible_leader_replicas) == ((), (1, 3))
    if returns_first == "the last leader":
        cluster.start_broker(1)
        cluster.settle()
        assert cluster.is_serving(1)
        assert (cluster.state.leader, cluster.state.eligible_leader_replicas) == (NO_LEADER, (3,))
        cluster.start_broker(3)
    else:
        cluster.start_broker(3)
        cluster.await_leader(3)
        cluster.start_broker(1)
    cluster.await_leader(3)
    cluster.start_broker(2)
    cluster.settle()
    cluster.write_acknowledged(3, "more")
    cluster.settle()
    assert cluster.agreed() == [*(f"{number}" for number in range(20)), "more"]
