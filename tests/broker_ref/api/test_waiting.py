"""Tests of waiting requests: Fetch for records, Produce and OffsetCommit for replicas."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v7.request import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import TopicName

from broker_ref.events import Effect
from broker_ref.log.partition_log import PartitionLog
from broker_ref.replication.partition import Partition
from integration.raw import request as plain_request
from integration.simulation.event_queue import START_MS
from tests.broker_ref.node.driver import NodeDriver, closes, has_no_response, only_response
from tests.broker_ref.node.requests import (
    batch,
    create_topic,
    fetch,
    fetched,
    ms,
    produce,
    produced,
    request,
)

READER, WRITER, OTHER = 1, 2, 3


@pytest.fixture
def driver() -> NodeDriver:
    made = NodeDriver()
    create_topic(made, "t", 3)
    return made


def for_connection(effects: list[Effect], connection_id: int) -> list[Effect]:
    return [effect for effect in effects if effect.connection_id == connection_id]


def write(driver: NodeDriver, *values: str, partition: int = 0) -> list[Effect]:
    effects = driver.send(produce(batch(*values), partition=partition), connection_id=WRITER)
    assert len(for_connection(effects, WRITER)) == 1
    return [effect for effect in effects if effect.connection_id != WRITER]


def test_a_fetch_waits_for_records(driver: NodeDriver) -> None:
    waiting = fetch((0, 0), (1, 0), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    assert write(driver, "elsewhere", partition=2) == []
    response = only_response(waiting, write(driver, "a", partition=1))
    assert [(p.high_watermark, len(p.records) > 0) for p in fetched(response)] == [
        (0, False),
        (1, True),
    ]
    assert driver.advance(1000) == []


def test_a_fetch_returns_available_records_at_its_deadline(driver: NodeDriver) -> None:
    write(driver, "a")
    waiting = fetch((0, 0), max_wait=500, min_bytes=1 << 20)
    assert driver.send(waiting, connection_id=READER) == []
    assert driver.advance(499) == []
    (response,) = fetched(only_response(waiting, driver.advance(1)))
    assert len(response.records) > 0


def test_min_bytes_applies_to_all_partitions_together(driver: NodeDriver) -> None:
    size = len(batch("a"))
    waiting = fetch((0, 0), (1, 0), max_wait=500, min_bytes=2 * size)
    assert driver.send(waiting, connection_id=READER) == []
    assert write(driver, "a", partition=0) == []
    only_response(waiting, write(driver, "b", partition=1))


LIMITS_OF_FULL_RESPONSES = [
    pytest.param(
        {"min_bytes": 5000, "partition_max_bytes": 5000},
        id="complete batches are smaller than min_bytes",
    ),
    pytest.param({"min_bytes": 9000, "max_bytes": 5000}, id="min_bytes is larger than max_bytes"),
]


@pytest.mark.parametrize("limits", LIMITS_OF_FULL_RESPONSES)
def test_a_full_fetch_response_does_not_wait(driver: NodeDriver, limits: dict[str, Any]) -> None:
    for _ in range(4):
        write(driver, "x" * 1000)
    requested = fetch((0, 0), max_wait=500, **limits)
    assert driver.send(requested, connection_id=READER) == []
    (woken,) = fetched(only_response(requested, write(driver, "x" * 1000)))
    (at_once,) = fetched(driver.call(requested, connection_id=READER))
    assert woken.records == at_once.records
    assert 4000 < len(woken.records) < 5000


@pytest.mark.parametrize("behind", [True, False])
def test_a_fetch_behind_the_active_segment_does_not_wait(behind: bool) -> None:
    driver = NodeDriver()
    create_topic(driver, "t", segment_bytes=str(1 << 20))
    limits: Any = {"max_wait": 500, "min_bytes": 2 << 20, "max_bytes": 4 << 20}
    for _ in range(2):
        write(driver, "x" * 500_000)
    waiting = fetch((0, 0 if behind else 2), **limits)
    assert driver.send(waiting, connection_id=READER) == []
    (response,) = fetched(only_response(waiting, write(driver, "x" * 500_000)))
    assert (len(response.records) > 1_000_000) == behind
    only_response(waiting, driver.send(fetch((0, 0), **limits), connection_id=READER))


def test_a_waiting_fetch_reads_nothing(driver: NodeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    write(driver, "a")
    waiting = fetch((0, 0), max_wait=500, min_bytes=100_000)
    assert driver.send(waiting, connection_id=READER) == []
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "read", lambda *_, **__: pytest.fail("the log was read"))
        assert write(driver, "b") == []
    (response,) = fetched(only_response(waiting, driver.advance(500)))
    assert len(response.records) == 2 * len(batch("a"))


def test_disconnected_clients_get_no_response(driver: NodeDriver) -> None:
    driver.open(READER)
    assert driver.send(fetch((0, 0), max_wait=500), connection_id=READER) == []
    driver.close(READER)
    assert write(driver, "a") == []
    assert driver.advance(1000) == []


def test_several_waiting_fetches_get_one_response_each(driver: NodeDriver) -> None:
    waiting = fetch((0, 0), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    assert driver.send(waiting, connection_id=OTHER) == []
    effects = write(driver, "a")
    assert [effect.connection_id for effect in effects] == [READER, OTHER]
    assert driver.advance(1000) == []


def test_deleting_the_topic_ends_the_wait(driver: NodeDriver) -> None:
    waiting = fetch((0, 0), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    effects = driver.send(request(20, 5, topic_names=("t",), timeout=ms(0)), connection_id=WRITER)
    (response,) = fetched(only_response(waiting, for_connection(effects, READER)))
    assert response.error_code is ErrorCode.unknown_topic_or_partition


def test_an_error_is_returned_immediately(driver: NodeDriver) -> None:
    (first, second) = fetched(driver.call(fetch((0, 99), (1, 0), max_wait=500)))
    assert first.error_code is ErrorCode.offset_out_of_range
    assert second.error_code is ErrorCode.none


def test_an_unknown_partition_does_not_end_the_wait_of_others(driver: NodeDriver) -> None:
    waiting = fetch((9, 0), (0, 0), max_wait=500)
    assert driver.send(waiting, connection_id=READER) == []
    known, unknown = fetched(only_response(waiting, write(driver, "a")))
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition
    assert len(known.records) > 0


def partition_of(driver: NodeDriver, topic: str = "t", index: int = 0) -> Partition:
    return driver.broker.replicas.partition(topic, index)


def in_sync_with(partition: Partition, *brokers: int, lagging: tuple[int, ...] = ()) -> None:
    """Add brokers that have no records yet to the ISR."""
    partition.apply_metadata(
        dataclasses.replace(
            partition.metadata,
            replicas=(1, *brokers, *lagging),
            isr=(1, *brokers),
            partition_epoch=partition.metadata.partition_epoch + 1,
        ),
        START_MS,
    )


def test_acks_all_waits_for_every_in_sync_replica(driver: NodeDriver) -> None:
    partition = partition_of(driver)
    in_sync_with(partition, 2, 3)
    waiting = produce(batch("a"), timeout=800)
    reading = fetch((0, 0), max_wait=700)
    assert driver.send(reading, connection_id=READER) == []
    assert driver.send(waiting, connection_id=WRITER) == []
    assert partition.high_watermark == 0
    in_sync_with(partition)
    # The leader is the only in-sync replica, so its records are committed.
    driver.broker.replicas.mark_changed(partition.key)
    effects = driver.send(produce(batch("b"), partition=1), connection_id=OTHER)
    responses = produced(only_response(waiting, for_connection(effects, WRITER)))
    assert (responses.error_code, responses.base_offset) == (ErrorCode.none, 0)
    (read,) = fetched(only_response(reading, for_connection(effects, READER)))
    assert read.high_watermark == 1


def test_acks_all_times_out_and_acks_one_does_not_wait(driver: NodeDriver) -> None:
    in_sync_with(partition_of(driver), 2)
    waiting = produce(batch("a"), timeout=800)
    assert driver.send(waiting, connection_id=WRITER) == []
    assert produced(driver.call(produce(batch("b"), acks=1))).base_offset == 1
    assert driver.advance(799) == []
    responses = produced(only_response(waiting, driver.advance(1)))
    assert responses.error_code is ErrorCode.request_timed_out
    assert (responses.base_offset, responses.log_start_offset) == (0, 0)


def test_an_appended_batch_returns_its_offset_and_the_new_leader() -> None:
    driver = NodeDriver()
    create_topic(driver, "t", message_timestamp_type="LogAppendTime")
    partition = partition_of(driver)
    in_sync_with(partition, 2)
    waiting = plain_request(
        "produce",
        10,
        acks=-1,
        timeout=800,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch("a")}]}],
    )
    appended_ms = driver.now_ms
    assert driver.send(waiting, connection_id=WRITER) == []
    moved = dataclasses.replace(partition.metadata, leader=2, leader_epoch=9)
    driver.broker.metadata.topics["t"].partitions[0] = moved
    partition.apply_metadata(moved, START_MS)
    responses = produced(only_response(waiting, driver.advance(800)))
    assert responses.error_code is ErrorCode.not_leader_or_follower
    assert (responses.base_offset, responses.log_start_offset) == (0, 0)
    assert responses.log_append_time.timestamp() * 1000 == appended_ms
    assert (responses.current_leader.leader_id, responses.current_leader.leader_epoch) == (2, 9)


def test_consumers_read_below_the_high_watermark(driver: NodeDriver) -> None:
    write(driver, "committed")
    in_sync_with(partition_of(driver), 2)
    driver.call(produce(batch("not yet"), acks=1))
    # An empty in-sync follower lowers the high watermark below committed records, but a fetch
    # between the high watermark and the log end is not an error.
    (response,) = fetched(driver.call(fetch((0, 2))))
    assert (response.error_code, response.records) == (ErrorCode.none, b"")


def test_too_few_in_sync_replicas(driver: NodeDriver) -> None:
    create_topic(driver, "careful", min_insync_replicas="2")
    # The required number of in-sync replicas never exceeds the number of replicas.
    assert produced(driver.call(produce(batch("a"), topic="careful"))).error_code is ErrorCode.none
    in_sync_with(partition_of(driver, "careful"), lagging=(2,))
    refused = produced(driver.call(produce(batch("a"), topic="careful")))
    assert refused.error_code is ErrorCode.not_enough_replicas
    accepted = produced(driver.call(produce(batch("a"), topic="careful", acks=1)))
    assert accepted.error_code is ErrorCode.none


def test_acks_zero_has_no_response_and_closes_on_errors(driver: NodeDriver) -> None:
    assert has_no_response(driver.send(produce(batch("a"), acks=0)))
    assert "unknown_topic_or_partition" in closes(
        driver.send(produce(batch("a"), acks=0, partition=9))
    )


def commit() -> object:
    partition = OffsetCommitRequestPartition(
        partition_index=0,  # type: ignore[arg-type]
        committed_offset=5,  # type: ignore[arg-type]
        committed_leader_epoch=2,  # type: ignore[arg-type]
        committed_metadata="m",
    )
    return request(
        8,
        7,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=(OffsetCommitRequestTopic(name=TopicName("t"), partitions=(partition,)),),
    )


def test_a_commit_waits_for_every_in_sync_replica(driver: NodeDriver) -> None:
    find = request(10, 2, key="g", key_type=0)
    assert driver.call(find).error_code is ErrorCode.coordinator_not_available
    assert driver.call(find).error_code is ErrorCode.none
    index = driver.broker.groups.partition_for("g")
    in_sync_with(partition_of(driver, "__consumer_offsets", index), 2)
    waiting = commit()
    assert driver.send(waiting) == []
    response = only_response(waiting, driver.advance(5000))
    assert response.topics[0].partitions[0].error_code is ErrorCode.coordinator_not_available
