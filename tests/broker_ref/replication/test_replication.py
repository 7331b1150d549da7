"""Tests of replication, high watermarks and the ISR."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Wait
from broker_ref.api.fetch_messages import FetchRequest, FetchResponse, FetchTopic
from broker_ref.api.k01_fetch import API as FETCH
from broker_ref.api.k21_delete_records import API as DELETE_RECORDS
from broker_ref.api.k21_delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    RequestedPartition,
    RequestedTopic,
)
from broker_ref.log.checkpoints import CLEANER_OFFSET_FILE, read_offsets
from broker_ref.log.log_manager import LogManager
from broker_ref.protocol.errors import ApiError
from broker_ref.replication import replica_manager
from broker_ref.replication.fetch_session_cache import FetchPartition
from broker_ref.replication.partition import Partition, PendingReplication
from broker_ref.replication.partition_state import (
    CommittedPartitionState,
    PartitionState,
    PendingExpandIsr,
    PendingShrinkIsr,
)
from tests.broker_ref.replication.cluster import (
    TOPIC,
    TOPIC_ID,
    VirtualBroker,
    VirtualCluster,
    values,
)


def isr_of(cluster: VirtualCluster) -> set[int]:
    return set(cluster.state.isr)


def outcome_of(appended: PendingReplication) -> ErrorCode | None:
    """Return the current outcome, which the type checker would narrow if it were a property."""
    return appended.outcome


def isr_state_of(partition: Partition) -> PartitionState | None:
    return partition.partition_state


def test_acks_all_waits_for_every_in_sync_replica() -> None:
    cluster = VirtualCluster()
    appended = cluster.produce(b"a")
    assert outcome_of(appended) is None
    assert cluster.leader.partition.high_watermark == 0
    cluster.run(10)
    assert outcome_of(appended) is ErrorCode.none
    assert [values(broker.partition) for broker in cluster.brokers.values()] == [{0: b"a"}] * 3


def test_high_watermark_reaches_followers_one_fetch_later() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(20)
    cluster.produce(b"a")
    # The response with the batch contained the high watermark of the time before the append.
    cluster.run(3)
    follower = cluster.brokers[2].partition
    assert (follower.log.log_end_offset, follower.high_watermark) == (1, 0)
    assert cluster.leader.partition.high_watermark == 1
    cluster.produce(b"b")
    cluster.run(5)
    assert follower.high_watermark == 1
    cluster.run(600)
    assert follower.high_watermark == 2


def test_idle_follower_sends_empty_incremental_fetches() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.produce()
    cluster.run(2000)
    leader = cluster.leader
    leader.requests.clear()
    cluster.run(5000)
    assert 8 <= len(leader.requests) <= 11
    assert all(request.session_id > 0 for request in leader.requests)
    assert not any(request.topics or request.forgotten_topics_data for request in leader.requests)


def test_stopped_follower_leaves_the_isr_after_the_lag_time() -> None:
    cluster = VirtualCluster(min_isr=2)
    cluster.run(1000)
    cluster.cut_links.add((3, 1))
    cluster.run(1000)
    appended = cluster.produce()
    cluster.run(28_000)
    assert outcome_of(appended) is None
    assert isr_of(cluster) == {1, 2, 3}
    cluster.run(20_000)
    assert isr_of(cluster) == {1, 2}
    assert outcome_of(appended) is ErrorCode.none


def test_caught_up_follower_stays_in_the_isr() -> None:
    """As in Kafka, a silent replica stays in sync while there are no new records."""
    cluster = VirtualCluster()
    cluster.run(1000)
    cluster.cut_links.add((3, 1))
    cluster.run(120_000)
    assert isr_of(cluster) == {1, 2, 3}


def test_restarted_follower_rejoins_the_isr() -> None:
    cluster = VirtualCluster(isr=(1, 2))
    cluster.produce()
    cluster.run(100)
    assert isr_of(cluster) == {1, 2, 3}
    assert cluster.isr_requests[0].new_isr_with_epochs[2].broker_epoch == cluster.brokers[3].epoch


def test_joining_follower_counts_before_the_controller_confirms() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.isr_is_silent = True
    cluster.run(10)
    leader = cluster.leader.partition
    assert isinstance(leader.partition_state, PendingExpandIsr)
    assert leader.partition_state.isr == {1}
    cluster.cut_links.add((2, 1))
    appended = cluster.produce()
    cluster.run(20)
    assert outcome_of(appended) is None
    cluster.run(60_000)
    assert outcome_of(appended) is None, "a member of the maximal ISR does not have the record"


def test_leaving_follower_counts_until_the_controller_confirms() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(1000)
    cluster.isr_is_silent = True
    cluster.cut_links.add((2, 1))
    appended = cluster.produce()
    cluster.run(46_000)
    leader = cluster.leader.partition
    assert isinstance(leader.partition_state, PendingShrinkIsr)
    assert outcome_of(appended) is None


@pytest.mark.parametrize(
    "error_code", [ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted]
)
def test_refused_isr_change_is_proposed_again(error_code: ErrorCode) -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.isr_refusals = [error_code]
    cluster.run(8)
    assert isinstance(cluster.leader.partition.partition_state, CommittedPartitionState)
    assert isr_of(cluster) == {1}
    cluster.run(1200)
    assert isr_of(cluster) == {1, 2}


def test_outdated_isr_change_waits_for_metadata() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.isr_refusals = [ErrorCode.invalid_update_version]
    cluster.run(5000)
    assert isinstance(cluster.leader.partition.partition_state, PendingExpandIsr)
    assert len(cluster.isr_requests) == 1
    cluster.elect(1)
    cluster.run(1500)
    assert isr_of(cluster) == {1, 2}


def test_unknown_error_of_the_controller_is_retried() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.isr_refusals = [ErrorCode.unknown_server_error] * 3
    cluster.run(100)
    assert isr_of(cluster) == {1, 2}


def test_append_fails_below_min_isr() -> None:
    cluster = VirtualCluster(min_isr=2)
    cluster.crash(2)
    cluster.crash(3)
    with pytest.raises(ApiError) as refused:
        cluster.produce()
    assert refused.value.error_code is ErrorCode.not_enough_replicas
    assert cluster.leader.partition.log.log_end_offset == 0
    cluster.produce(acks_all=False)
    cluster.run(100)
    # The high watermark does not advance, because new records are not safe.
    assert cluster.leader.partition.high_watermark == 0


def test_isr_that_shrinks_after_the_append_is_reported() -> None:
    cluster = VirtualCluster(min_isr=2)
    cluster.run(100)
    appended = cluster.produce()
    cluster.run(10)
    assert outcome_of(appended) is ErrorCode.none
    cluster.crash(2)
    cluster.crash(3)
    assert outcome_of(appended) is ErrorCode.not_enough_replicas_after_append


def test_pending_append_fails_when_the_leader_changes() -> None:
    cluster = VirtualCluster()
    cluster.run(100)
    old = cluster.leader
    cluster.cut_links.update({(2, 1), (3, 1)})
    appended = cluster.produce()
    cluster.elect(2)
    assert outcome_of(appended) is ErrorCode.not_leader_or_follower
    assert not old.partition.is_leader
    assert cluster.leader.partition.is_leader
    cluster.elect(1)
    assert outcome_of(appended) is ErrorCode.not_leader_or_follower, "possibly truncated"


def test_changed_config_reaches_the_log_and_the_leader() -> None:
    cluster = VirtualCluster()
    cluster.topic_configs.update({"segment.bytes": "2000000", "min.insync.replicas": "3"})
    cluster.publish()
    for broker in cluster.brokers.values():
        assert broker.partition.log.config.segment_bytes == 2_000_000
        assert broker.partition.min_insync_replicas == 3


def test_high_watermarks_survive_a_crash() -> None:
    cluster = VirtualCluster()
    cluster.produce()
    cluster.run(6000)
    cluster.crash(3)
    cluster.held_metadata.add(3)
    assert cluster.restart(3).partition.high_watermark == 1


def test_failed_storage_ends_the_leadership_and_acknowledges_nothing() -> None:
    cluster = VirtualCluster()
    cluster.run(100)
    leader = cluster.leader
    waiting = cluster.produce()
    partition = leader.partition
    leader.storage.fail_on("append")
    with pytest.raises(Exception, match="No space left"):
        cluster.produce()
    leader.storage.fail_on(None)
    assert leader.replicas.storage_failed is not None
    assert not partition.is_leader
    cluster.run(1000)
    assert outcome_of(waiting) is ErrorCode.not_leader_or_follower
    with pytest.raises(ApiError) as offline:
        leader.replicas.partition(TOPIC, 0)
    assert offline.value.error_code is ErrorCode.kafka_storage_error


def test_failed_storage_of_a_follower_ends_its_fetches() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.run(100)
    cluster.brokers[2].storage.fail_on("append")
    cluster.produce()
    cluster.run(1000)
    assert cluster.brokers[2].replicas.storage_failed is not None
    cluster.leader.requests.clear()
    cluster.run(5000)
    assert not cluster.leader.requests


def test_leader_with_a_new_address_is_found() -> None:
    cluster = VirtualCluster()
    cluster.run(100)
    cluster.crash(1, fence=False)
    cluster.restart(1)
    cluster.elect(1)
    cluster.run(5000)
    appended = cluster.produce(b"again")
    cluster.run(1000)
    assert outcome_of(appended) is ErrorCode.none


def test_follower_applies_the_leaders_log_start() -> None:
    cluster = VirtualCluster(brokers=2)
    for _ in range(4):
        cluster.produce()
    cluster.run(1000)
    leader = cluster.leader.partition
    assert leader.delete_records_before(3) == 3
    assert leader.low_watermark == 0
    cluster.run(2000)
    assert cluster.brokers[2].partition.log.log_start_offset == 3
    assert leader.low_watermark == 3


def consumer_fetch(
    broker: VirtualBroker, session: tuple[int, int], *offsets: int
) -> tuple[int, list[int]]:
    """Send a request; return the session id and the log start offsets in the response."""
    requested = tuple(
        FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
        for offset in offsets
    )
    response = broker.ask(
        FETCH,
        FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            session_id=session[0],
            session_epoch=session[1],
            topics=(FetchTopic(topic_id=TOPIC_ID, partitions=requested),) if requested else (),
        ),
    )
    assert isinstance(response, FetchResponse)
    assert response.error_code is ErrorCode.none
    returned = [each for topic in response.responses for each in topic.partitions]
    return response.session_id, [each.log_start_offset for each in returned]


def test_follower_reports_its_new_log_start_to_an_idle_consumer() -> None:
    cluster = VirtualCluster(brokers=2)
    for _ in range(4):
        cluster.produce()
    cluster.run(1000)
    follower = cluster.brokers[2]
    session_id, log_start_offsets = consumer_fetch(follower, (0, 0), 4)
    assert log_start_offsets == [0]
    assert consumer_fetch(follower, (session_id, 1)) == (session_id, [])
    cluster.leader.partition.delete_records_before(3)
    cluster.run(2000)
    assert consumer_fetch(follower, (session_id, 2)) == (session_id, [3])


def test_follower_joins_only_with_all_records_before_the_leader_epoch() -> None:
    """The earlier records may be committed, although the new leader's high watermark is lower."""
    cluster = VirtualCluster(isr=(1, 2))
    cluster.isolate(3)
    cluster.run(20)
    for _ in range(3):
        cluster.produce()
    cluster.run(3)
    cluster.isolate(1)
    cluster.elect(2)
    leader = cluster.leader.partition
    assert (leader.high_watermark, leader.log.log_end_offset) == (0, 3)
    epoch = cluster.brokers[3].epoch
    leader.update_follower_fetch_state(3, epoch, fetch_offset=2, now_ms=cluster.now_ms)
    assert isr_state_of(leader) == CommittedPartitionState(isr=frozenset({1, 2}))
    leader.update_follower_fetch_state(3, epoch, fetch_offset=3, now_ms=cluster.now_ms)
    assert isinstance(isr_state_of(leader), PendingExpandIsr)


def test_known_metadata_keeps_a_proposal_pending() -> None:
    cluster = VirtualCluster(brokers=2, isr=(1,))
    cluster.isr_is_silent = True
    cluster.run(10)
    pending = cluster.leader.partition.partition_state
    assert isinstance(pending, PendingExpandIsr)
    cluster.publish()
    assert cluster.leader.partition.partition_state is pending


def test_stored_partition_configs_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_manager, "KNOWN_CONFIGS_MAX", 3)
    cluster = VirtualCluster(brokers=1)
    for retention_ms in range(1, 11):
        cluster.topic_configs["retention.ms"] = str(retention_ms)
        cluster.publish()
        assert cluster.leader.partition.log.config.retention_ms == retention_ms
    assert len(cluster.leader.replicas._known_configs) <= 3


def delete_records(offset: int, *, timeout_ms: int) -> DeleteRecordsRequest:
    partition = RequestedPartition(partition_index=0, offset=offset)
    topic = RequestedTopic(name=TOPIC, partitions=(partition,))
    return DeleteRecordsRequest(topics=(topic,), timeout_ms=timeout_ms)


def deleted(response: object) -> tuple[int, ErrorCode]:
    assert isinstance(response, DeleteRecordsResponse)
    (topic,) = response.topics
    (partition,) = topic.partitions
    return partition.low_watermark, partition.error_code


def test_delete_records_waits_for_the_followers() -> None:
    cluster = VirtualCluster()
    for _ in range(4):
        cluster.produce()
    cluster.run(1000)
    wait = cluster.leader.ask(DELETE_RECORDS, delete_records(2, timeout_ms=5000))
    assert isinstance(wait, Wait)
    cluster.run(2000)
    assert deleted(wait.operation.try_complete(cluster.now_ms)) == (2, ErrorCode.none)


def test_delete_records_ignores_a_fenced_broker() -> None:
    cluster = VirtualCluster()
    cluster.produce()
    cluster.run(1000)
    cluster.crash(3)
    wait = cluster.leader.ask(DELETE_RECORDS, delete_records(-1, timeout_ms=5000))
    assert isinstance(wait, Wait)
    cluster.run(2000)
    assert deleted(wait.operation.try_complete(cluster.now_ms)) == (1, ErrorCode.none)


def test_delete_records_times_out_and_reports_a_leader_change() -> None:
    cluster = VirtualCluster(brokers=2)
    cluster.produce()
    cluster.run(1000)
    cluster.isolate(2)
    cluster.run(1000)
    first, second = (
        cluster.leader.ask(DELETE_RECORDS, delete_records(1, timeout_ms=100)) for _ in range(2)
    )
    assert isinstance(first, Wait)
    assert isinstance(second, Wait)
    assert deleted(first.operation.expire(cluster.now_ms)) == (0, ErrorCode.request_timed_out)
    cluster.elect(2)
    moved = second.operation.try_complete(cluster.now_ms)
    assert deleted(moved) == (-1, ErrorCode.not_leader_or_follower)


def test_compacted_topic_is_compacted_on_every_replica() -> None:
    cluster = VirtualCluster(
        configs={"log_cleaner_backoff_ms": 1000},
        topic_configs={
            "cleanup.policy": "compact",
            "segment.ms": "10",
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    for value in (b"old", b"new", b"active"):
        cluster.produce(value)
        cluster.run(1000)
    cluster.run(5000)
    for broker in cluster.brokers.values():
        assert set(values(broker.partition).values()) == {b"new", b"active"}


def test_a_long_compaction_runs_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = VirtualCluster(brokers=1, configs={"log_cleaner_backoff_ms": 1000})
    has_more = True
    steps: list[int] = []

    def clean(_: LogManager, now_ms: int, __: object) -> bool:
        steps.append(now_ms)
        return has_more

    monkeypatch.setattr(LogManager, "clean", clean)
    schedule, start_ms = cluster.leader.schedule, cluster.now_ms
    times_ms = [start_ms + 1000 * number for number in range(1, 6)]
    for now_ms in times_ms:
        schedule.run(now_ms)
    assert steps == times_ms
    has_more = False
    for delay_ms in (5000, 5999, 6000):
        schedule.run(start_ms + delay_ms)
    assert steps == [*times_ms, start_ms + 5000, start_ms + 6000]


def test_retention_skips_a_log_that_is_being_compacted() -> None:
    cluster = VirtualCluster(
        brokers=1,
        configs={"log_cleaner_backoff_ms": 10_000, "log_retention_check_interval_ms": 20_000},
        topic_configs={
            "cleanup.policy": "compact,delete",
            "segment.ms": "10",
            "min.cleanable.dirty.ratio": "0.01",
            "retention.ms": "12000",
        },
    )
    start_ms = cluster.now_ms
    for _ in range(4):
        cluster.produce()
        cluster.run(1000)
    broker = cluster.leader
    broker.schedule.run(start_ms + 10_000)  # The first step of the compaction.
    assert len(values(broker.partition)) == 2
    broker.schedule.run(start_ms + 20_000)  # The check of the retention, then the last step.
    assert read_offsets(broker.storage, CLEANER_OFFSET_FILE) == {(TOPIC, 0): 3}
    assert len(values(broker.partition)) == 2
    broker.schedule.run(start_ms + 40_000)
    assert values(broker.partition) == {}
