"""Tests of diverged logs, which are truncated by leader epochs, never by high watermarks."""

from __future__ import annotations

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import DivergingEpoch, FetchIsolation, Partition
from tests.broker_ref.log.batches import batch
from tests.broker_ref.replication.cluster import VirtualCluster, values


def agree(cluster: VirtualCluster) -> dict[int, bytes]:
    """Return the records of the replicas, which must be equal."""
    first, *others = (broker.partition for broker in cluster.brokers.values())
    for other in others:
        assert values(other) == values(first)
        assert epochs(other) == epochs(first)
    return values(first)


def epochs(partition: Partition) -> list[tuple[int, int]]:
    """Return the leader epochs with records, and their start offsets."""
    log = partition.log
    return [entry for entry in log.leader_epochs.entries if entry[1] < log.log_end_offset]


def write_behind(cluster: VirtualCluster, broker_id: int, *records: bytes) -> None:
    """Append records on a leader from which no follower fetches."""
    cluster.isolate(broker_id)
    for record in records:
        cluster.brokers[broker_id].partition.append(
            batch(value=record), all_replicas=False, now_ms=cluster.now_ms
        )
    cluster.step()
    cluster.run(2000)


def test_restart_before_the_high_watermark_arrives_loses_nothing() -> None:
    """KIP-101, scenario 1: a follower with an old high watermark truncates nothing."""
    cluster = VirtualCluster(brokers=2)
    cluster.run(100)
    appended = cluster.produce(b"a")
    cluster.run(3)
    assert appended.outcome is ErrorCode.none
    assert cluster.brokers[2].partition.high_watermark == 0
    cluster.crash(2, fence=False)
    cluster.restart(2)
    assert values(cluster.brokers[2].partition) == {0: b"a"}
    cluster.crash(1)
    cluster.run(100)
    assert cluster.leader.id == 2
    assert values(cluster.leader.partition) == {0: b"a"}
    cluster.restart(1)
    cluster.run(3000)
    assert agree(cluster) == {0: b"a"}


def test_lost_and_replaced_tail_is_truncated_on_the_other_replica() -> None:
    """KIP-101, scenario 2: two logs have the same length and different records."""
    cluster = VirtualCluster(brokers=2)
    cluster.produce(b"a")
    cluster.run(1000)
    write_behind(cluster, 1, b"lost")
    cluster.elect(2)
    cluster.produce(b"kept", acks_all=False)
    assert cluster.brokers[1].partition.log.log_end_offset == 2
    cluster.cut_links.clear()
    cluster.run(5000)
    assert agree(cluster) == {0: b"a", 1: b"kept"}


def test_two_elections_in_a_row_leave_no_stray_records() -> None:
    """KIP-279: each leader wrote records that no other replica received, in its own epoch."""
    cluster = VirtualCluster(brokers=3)
    cluster.produce(b"a")
    cluster.run(1000)
    write_behind(cluster, 1, b"one", b"one more")
    cluster.cut_links.clear()
    cluster.isolate(2)
    cluster.elect(2)
    write_behind(cluster, 2, b"two")
    cluster.isolate(3)
    cluster.elect(3)
    cluster.produce(b"three", acks_all=False)
    cluster.elect(2)
    cluster.cut_links.clear()
    cluster.run(6000)
    assert agree(cluster) == {0: b"a", 1: b"two"}
    cluster.elect(1)
    cluster.run(3000)
    assert agree(cluster) == {0: b"a", 1: b"two"}


def test_epoch_without_records_is_truncated() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.produce(b"a")
    cluster.run(1000)
    cluster.elect(2)
    cluster.elect(1)
    cluster.produce(b"b")
    cluster.run(5000)
    assert agree(cluster) == {0: b"a", 1: b"b"}
    assert cluster.brokers[2].partition.log.leader_epochs.entries == ((0, 0), (2, 1))


def test_diverging_response_only_truncates() -> None:
    cluster = VirtualCluster(brokers=2)
    for record in (b"a", b"b", b"c"):
        cluster.produce(record)
    cluster.run(2000)
    follower = cluster.brokers[2].partition
    assert follower.high_watermark == 3
    follower.truncate_to_divergence(DivergingEpoch(epoch=0, end_offset=2), now_ms=cluster.now_ms)
    assert (follower.log.log_end_offset, follower.high_watermark) == (2, 2)


def test_leader_returns_the_diverging_epoch() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.produce(b"a")
    cluster.run(1000)
    cluster.elect(1)
    leader = cluster.leader.partition

    def read(offset: int, epoch: int) -> object:
        return leader.read(
            offset,
            isolation=FetchIsolation.READ_UNCOMMITTED,
            replica_id=2,
            last_fetched_epoch=epoch,
            max_bytes=1000,
            at_least_one_batch=True,
        )

    assert read(5, 0) == DivergingEpoch(epoch=0, end_offset=1)
    assert read(1, 0) == b""
    with pytest.raises(ApiError) as unknown:
        read(1, 7)
    assert unknown.value.error_code is ErrorCode.offset_out_of_range


def test_follower_below_the_leaders_log_start_restarts_there() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,), topic_configs={"segment.bytes": "1048576"})
    cluster.run(100)
    cluster.crash(2)
    for _ in range(5):
        cluster.produce()
    cluster.run(40_000)
    leader = cluster.leader.partition
    assert leader.high_watermark == 5
    leader.delete_records_before(4)
    cluster.restart(2)
    cluster.run(5000)
    follower = cluster.brokers[2].partition
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (4, 5)
    assert follower.high_watermark == 5
    assert cluster.state.isr == (1, 2)


def test_log_start_inside_a_batch_fetches_the_whole_batch() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.run(100)
    cluster.crash(2)
    cluster.produce(count=10)
    cluster.run(40_000)
    cluster.leader.partition.delete_records_before(6)
    cluster.restart(2)
    cluster.run(5000)
    follower = cluster.brokers[2].partition
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (6, 10)


def test_followers_truncate_to_an_unclean_leader() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.produce(b"a")
    cluster.run(1000)
    write_behind(cluster, 1, b"b", b"c", b"d")
    cluster.elect(2, isr=(2,))
    cluster.cut_links.clear()
    cluster.run(3000)
    assert agree(cluster) == {0: b"a"}


@pytest.mark.parametrize("seed", range(6))
def test_follower_fetches_its_lost_unsynced_tail_again(seed: int) -> None:
    cluster = VirtualCluster(brokers=3)
    for index in range(6):
        cluster.produce(b"%d" % index)
    cluster.run(1000)
    cluster.crash(2, random=Random(seed))
    cluster.produce(b"meanwhile")
    cluster.restart(2)
    cluster.run(5000)
    assert len(agree(cluster)) == 7
    assert set(cluster.state.isr) == {1, 2, 3}


# Leader epochs


def test_requests_with_another_epoch_are_fenced() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.elect(1)
    leader = cluster.leader.partition
    stale = cluster.brokers[2].epoch
    leader.check_fetcher(2, stale, 1)
    for epoch, error_code in (
        (0, ErrorCode.fenced_leader_epoch),
        (2, ErrorCode.unknown_leader_epoch),
    ):
        with pytest.raises(ApiError) as refused:
            leader.check_fetcher(2, stale, epoch)
        assert refused.value.error_code is error_code
    with pytest.raises(ApiError) as unknown:
        leader.check_fetcher(9, -1, 1)
    assert unknown.value.error_code is ErrorCode.unknown_leader_epoch
    cluster.crash(2, fence=False)
    cluster.restart(2)
    with pytest.raises(ApiError) as another_life:
        leader.check_fetcher(2, stale, 1)
    assert another_life.value.error_code is ErrorCode.not_leader_or_follower


def test_follower_with_old_metadata_waits_for_new_metadata() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(1000)
    cluster.held_metadata.add(2)
    cluster.elect(1)
    cluster.leader.requests.clear()
    cluster.produce(b"a")
    cluster.run(10_000)
    # The fetch is fenced once, and the follower does not fetch again in the old leader epoch.
    assert len(cluster.leader.requests) <= 1
    cluster.held_metadata.clear()
    cluster.publish()
    cluster.run(1000)
    assert agree(cluster) == {0: b"a"}


def test_follower_ahead_of_its_leaders_metadata_retries() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(1000)
    cluster.held_metadata.add(1)
    cluster.elect(1)
    cluster.run(3000)
    cluster.held_metadata.clear()
    cluster.publish()
    cluster.produce(b"a")
    cluster.run(3000)
    assert agree(cluster) == {0: b"a"}


def test_follower_opens_a_new_session_if_the_leader_dropped_it() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(1000)
    sessions = cluster.leader.reset_sessions()
    cluster.produce(b"a")
    cluster.run(2000)
    assert sessions == 1
    assert agree(cluster) == {0: b"a"}
    assert cluster.leader.requests[-1].session_epoch > 0


def test_fenced_broker_does_not_join_the_isr() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.fence(2)
    cluster.run(5000)
    assert not cluster.isr_requests
