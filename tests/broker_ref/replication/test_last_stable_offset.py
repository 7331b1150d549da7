"""Tests of the last stable offset on replicas and after a leader change."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import FetchIsolation, Partition, PendingReplication
from tests.broker_ref.log.transactions import transactional
from tests.broker_ref.replication.cluster import VirtualCluster

PRODUCER = 7


def write(cluster: VirtualCluster, sequence: int = 0, *, epoch: int = 0) -> PendingReplication:
    partition = cluster.leader.partition
    guard = partition.maybe_start_transaction_verification(
        PRODUCER, epoch, sequence, supports_epoch_bump=False
    )
    result = partition.append(
        transactional(PRODUCER, sequence=sequence, epoch=epoch),
        all_replicas=True,
        now_ms=cluster.now_ms,
        guard=guard,
    )
    return PendingReplication(partition=partition, required_offset=result.last_offset + 1)


def end(
    cluster: VirtualCluster, marker: Marker = Marker.COMMIT, *, coordinator_epoch: int = 0
) -> PendingReplication:
    partition = cluster.leader.partition
    result = partition.append_end_marker(
        EndTransactionMarker(marker=marker, coordinator_epoch=coordinator_epoch),
        producer_id=PRODUCER,
        producer_epoch=0,
        transaction_version=1,
        now_ms=cluster.now_ms,
    )
    return PendingReplication(partition=partition, required_offset=result.last_offset + 1)


def outcome(appended: PendingReplication) -> ErrorCode | None:
    return appended.outcome


def stable(partition: Partition) -> tuple[int, int]:
    return partition.last_stable_offset, partition.high_watermark


def test_last_stable_offset_moves_with_the_replicated_marker() -> None:
    cluster = VirtualCluster()
    leader = cluster.leader.partition
    cluster.produce()
    write(cluster)
    cluster.run(600)
    assert stable(leader) == (1, 2)
    appended = end(cluster)
    assert stable(leader) == (1, 2)
    assert outcome(appended) is None
    cluster.run(600)
    assert stable(leader) == (3, 3)
    assert outcome(appended) is ErrorCode.none
    assert {stable(broker.partition) for broker in cluster.brokers.values()} == {(3, 3)}


def test_read_committed_is_limited_and_replicas_are_not() -> None:
    cluster = VirtualCluster()
    write(cluster)
    cluster.run(600)
    leader = cluster.leader.partition
    assert leader.end_offset_for(FetchIsolation.READ_COMMITTED) == 0
    assert leader.end_offset_for(FetchIsolation.READ_UNCOMMITTED) == 1
    assert leader.end_offset_for(FetchIsolation.READ_COMMITTED, replica_id=2) == 1


def test_next_leader_knows_open_and_aborted_transactions() -> None:
    cluster = VirtualCluster()
    write(cluster)
    end(cluster, Marker.ABORT, coordinator_epoch=5)
    write(cluster, 1)
    cluster.run(600)
    cluster.crash(1)
    cluster.elect(2, isr=(2, 3))
    cluster.run(600)
    leader = cluster.leader.partition
    assert stable(leader) == (2, 3)
    (aborted,) = leader.aborted_transactions(0, 3)
    assert (aborted.producer_id, aborted.first_offset) == (PRODUCER, 0)
    assert (
        leader.maybe_start_transaction_verification(PRODUCER, 0, 2, supports_epoch_bump=False)
        is None
    )
    with pytest.raises(LogError) as error:
        end(cluster, coordinator_epoch=4)
    assert error.value.error_code is ErrorCode.transaction_coordinator_fenced
    end(cluster, coordinator_epoch=5)
    cluster.run(600)
    assert stable(leader) == (4, 4)


def test_marker_only_on_the_old_leader_is_truncated() -> None:
    cluster = VirtualCluster()
    write(cluster)
    cluster.run(600)
    cluster.isolate(1)
    end(cluster)
    cluster.run(600)
    old = cluster.brokers[1].partition
    assert old.log.log_end_offset == 2
    cluster.elect(2, isr=(2, 3))
    cluster.cut_links.clear()
    cluster.run(3000)
    assert old.log.log_end_offset == 1
    assert [entry.has_open_transaction for entry in old.log.producer_entries] == [True]
    end(cluster, Marker.ABORT)
    cluster.run(2000)
    assert stable(old) == (2, 2)
    assert len(old.aborted_transactions(0, 2)) == 1


def test_verification_guard_is_invalid_after_a_leader_change() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(20)
    first = cluster.leader.partition
    guard = first.maybe_start_transaction_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
    cluster.elect(2, isr=(1, 2))
    cluster.run(100)
    late = transactional(PRODUCER)
    with pytest.raises(ApiError) as refused:
        first.append(late, all_replicas=True, now_ms=cluster.now_ms, guard=guard)
    assert refused.value.error_code is ErrorCode.not_leader_or_follower
    end(cluster, Marker.ABORT)
    cluster.run(600)
    cluster.elect(1, isr=(1, 2))
    cluster.run(100)
    with pytest.raises(LogError) as error:
        first.append(late, all_replicas=True, now_ms=cluster.now_ms, guard=guard)
    assert error.value.error_code is ErrorCode.invalid_txn_state
