"""Tests of brokers that cannot reach each other or the controller."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import CONTROLLER_ID
from integration.simulation.cluster import CONTROLLER, host_of
from tests.broker_ref.scenarios.three_brokers import (
    HEARTBEAT_MS,
    LAG_MS,
    SESSION_MS,
    ThreeBrokers,
)

NOT_ACKNOWLEDGED = {
    ErrorCode.request_timed_out,
    ErrorCode.not_leader_or_follower,
    ErrorCode.not_enough_replicas_after_append,
}


def test_follower_cut_off_for_longer_than_the_lag_time() -> None:
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    cluster.faults.cut(3, 1)
    late = cluster.write(1, "b")
    assert late.is_open()  # The follower is still in sync, so no new record is committed.
    cluster.advance(2 * LAG_MS)
    assert set(cluster.state.isr) == {1, 2}
    assert not late.is_open()
    assert cluster.outcome(late) is ErrorCode.none
    cluster.write_acknowledged(1, "c")
    assert cluster.replica(3).log.log_end_offset == 1
    cluster.faults.heal_all()
    cluster.settle()
    assert set(cluster.state.isr) == {1, 2, 3}
    assert cluster.state.leader_epoch == 0
    assert cluster.agreed() == ["a", "b", "c"]


def test_both_followers_cut_off_leave_too_few_replicas_to_commit() -> None:
    cluster = ThreeBrokers()
    cluster.faults.isolate(1, [2, 3])
    began = cluster.write(1, "a", timeout_ms=20_000)
    cluster.run_until(lambda: cluster.state.isr == (1,))
    after = cluster.write(1, "b")
    assert cluster.outcome(after) is ErrorCode.not_enough_replicas
    cluster.run_until(lambda: not began.is_open())
    assert cluster.outcome(began) in NOT_ACKNOWLEDGED
    assert cluster.replica(1).high_watermark == 0
    cluster.faults.heal_all()
    cluster.settle()
    cluster.write_acknowledged(1, "c")
    cluster.settle()
    assert cluster.agreed() == ["a", "c"]  # Unacknowledged records may be kept.


def test_leader_cut_off_from_the_controller_commits_nothing_unsafe() -> None:
    """The old leader leads its followers until they know the new leader."""
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    cluster.faults.cut(1, CONTROLLER_ID)
    cluster.write_acknowledged(
        1, "b"
    )  # The followers are in sync, and the next leader has the record.
    cluster.run_until(lambda: cluster.leads(2) or cluster.leads(3))
    assert cluster.leads(1)
    stray = cluster.write(1, "stray", timeout_ms=5_000)
    new_leader = cluster.state.leader
    cluster.write_acknowledged(new_leader, "c")
    cluster.advance(SESSION_MS + LAG_MS)
    assert cluster.outcome(stray) is ErrorCode.request_timed_out
    # The lagging followers stay in the maximal ISR, because only the controller can change it.
    isr = cluster.replica(1).partition_state
    assert isr is not None
    assert isr.maximal_isr == {1, 2, 3}
    assert cluster.replica(1).high_watermark == 2
    cluster.faults.heal_all()
    cluster.settle()
    assert not cluster.leads(1)
    assert cluster.agreed() == ["a", "b", "c"]
    assert set(cluster.state.isr) == {1, 2, 3}


def test_leader_cut_off_from_all_acknowledges_nothing_and_truncates() -> None:
    cluster = ThreeBrokers()
    cluster.write_acknowledged(1, "a")
    cluster.faults.isolate(1, [CONTROLLER_ID, 2, 3])
    strays = [cluster.write(1, f"stray {number}", timeout_ms=60_000) for number in range(3)]
    alone = cluster.write(1, "acks=1", acks=1)
    assert cluster.outcome(alone) is ErrorCode.none  # acks=1 gives no guarantee.
    cluster.run_until(lambda: cluster.leads(2) or cluster.leads(3))
    leader = cluster.state.leader
    cluster.write_acknowledged(leader, "b")
    cluster.write_acknowledged(leader, "c")
    assert all(stray.is_open() for stray in strays)
    assert cluster.replica(1).log.log_end_offset == 5
    cluster.faults.heal_all()
    cluster.settle()
    assert all(not stray.is_open() for stray in strays)
    assert {cluster.outcome(stray) for stray in strays} <= NOT_ACKNOWLEDGED
    assert cluster.agreed() == ["a", "b", "c"]


def test_replica_out_of_sync_does_not_lead_when_the_isr_is_gone() -> None:
    cluster = ThreeBrokers()
    cluster.faults.isolate(3, [1, 2])
    cluster.advance(2 * LAG_MS)
    cluster.write_acknowledged(1, "a")
    cluster.kill(host_of(1))
    cluster.await_leader(2)
    cluster.kill(host_of(2))
    cluster.advance(3 * SESSION_MS)
    state = cluster.state
    assert (state.leader, state.isr, state.eligible_leader_replicas) == (-1, (), (1, 2))
    assert not cluster.leads(3)
    assert cluster.outcome(cluster.write(3, "b", acks=1)) is ErrorCode.not_leader_or_follower
    cluster.faults.heal_all()
    cluster.start_broker(1)  # It was killed, so it may have lost "a".
    cluster.advance(3 * SESSION_MS)
    assert cluster.state.leader == -1
    cluster.start_broker(2)
    cluster.settle()
    assert cluster.agreed() == ["a"]


def test_cluster_without_controller_keeps_its_leaders() -> None:
    cluster = ThreeBrokers()
    cluster.kill(CONTROLLER)
    cluster.advance(3 * SESSION_MS)
    cluster.write_acknowledged(1, "a")
    cluster.kill(host_of(3))
    waiting = cluster.write(1, "b", timeout_ms=60_000)
    cluster.advance(3 * SESSION_MS)
    assert waiting.is_open()  # Without the controller, broker 3 cannot leave the ISR.
    cluster.start_controller()
    cluster.run_until(lambda: not waiting.is_open())
    assert cluster.outcome(waiting) is ErrorCode.none
    cluster.start_broker(3)
    cluster.settle()
    assert cluster.agreed() == ["a", "b"]


def test_broker_with_late_heartbeats_keeps_its_leadership() -> None:
    cluster = ThreeBrokers()
    cluster.faults.cut(1, CONTROLLER_ID)
    cluster.advance(SESSION_MS - 2 * HEARTBEAT_MS)
    cluster.faults.heal_all()
    cluster.settle()
    assert (cluster.state.leader, cluster.state.leader_epoch) == (1, 0)
    cluster.write_acknowledged(1, "a")
