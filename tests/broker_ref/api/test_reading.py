"""Tests of Fetch and ListOffsets: limits and errors."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.delete_records.v2 import request as delete_records_v2
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import request as list_offsets

from broker_ref.api import k02_list_offsets
from broker_ref.config import BrokerConfig
from broker_ref.events import FrameReceived, TimePassed
from broker_ref.log.batch import Compression, parse_batches
from broker_ref.log.records import Record, encode_record
from integration.raw import request as plain_request
from integration.simulation.event_queue import START_MS
from tests.broker_ref.log.batches import patched, with_section
from tests.broker_ref.node.driver import NodeDriver, only_response, request_frame
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

EPOCH = 2
"""The leader epoch after a restart of the leader, which was fenced and unfenced."""


@pytest.fixture
def driver() -> NodeDriver:
    """Return a node with two batches of two records in each of two partitions.

    The node was restarted between the two batches.
    """
    made = NodeDriver()
    create_topic(made, "t", 2)
    for life in range(2):
        for partition in range(2):
            stamp = START_MS + 1000 * life
            made.call(produce(batch("a", "b", timestamp=stamp), partition=partition))
        if life == 0:
            made.restart()
    return made


def sizes(driver: NodeDriver, **limits: Any) -> list[int]:
    """Return the number of batches of each partition in a fetch from the start."""
    responses = fetched(driver.call(fetch((0, 0), (1, 0), **limits)))
    return [
        len(parse_batches(response.records)) if response.records else 0 for response in responses
    ]


def test_fetch_limits(driver: NodeDriver) -> None:
    size = len(batch("a", "b"))
    assert sizes(driver) == [2, 2]
    assert sizes(driver, max_bytes=3 * size) == [2, 1]
    assert sizes(driver, max_bytes=2 * size) == [2, 0]
    assert sizes(driver, partition_max_bytes=size) == [1, 1]
    # The first batch is returned regardless of the limits, but no second batch.
    assert sizes(driver, max_bytes=0) == [1, 0]
    assert sizes(driver, partition_max_bytes=1) == [1, 0]
    assert sizes(driver, max_bytes=-5, partition_max_bytes=-5) == [1, 0]


def test_fetch_max_bytes_of_the_broker() -> None:
    made = NodeDriver(BrokerConfig(fetch_max_bytes=1024))
    create_topic(made, "t", 2)
    for partition in (0, 0, 0, 1):
        made.call(produce(batch("x" * 500), partition=partition))
    assert sizes(made) == [1, 0]


def test_an_offset_within_a_batch_returns_the_whole_batch(driver: NodeDriver) -> None:
    (response,) = fetched(driver.call(fetch((0, 3))))
    (header,) = parse_batches(response.records)
    assert (header.base_offset, header.partition_leader_epoch) == (2, EPOCH)


@pytest.mark.parametrize(
    ("offset", "epoch", "error"),
    [
        (0, -1, ErrorCode.none),
        (4, EPOCH, ErrorCode.none),
        (5, -1, ErrorCode.offset_out_of_range),
        (-1, -1, ErrorCode.offset_out_of_range),
        (0, 0, ErrorCode.fenced_leader_epoch),
        (0, EPOCH + 1, ErrorCode.unknown_leader_epoch),
    ],
)
def test_offsets_and_epochs(driver: NodeDriver, offset: int, epoch: int, error: ErrorCode) -> None:
    (response,) = fetched(driver.call(fetch((0, offset), leader_epoch=epoch)))
    assert response.error_code is error
    assert response.current_leader.leader_epoch == -1


@pytest.mark.parametrize("version", [15, 16])
def test_a_fenced_fetch_returns_the_current_leader(driver: NodeDriver, version: int) -> None:
    partition: Any = {"partition": 0, "fetch_offset": 0, "current_leader_epoch": 0}
    requested = plain_request(
        "fetch",
        version,
        topics=[
            {
                "topic_id": driver.broker.metadata.topics["t"].topic_id,
                "partitions": [partition],
            }
        ],
    )
    (response,) = fetched(driver.call(requested))
    assert response.error_code is ErrorCode.fenced_leader_epoch
    assert response.current_leader.leader_epoch == (EPOCH if version >= 16 else -1)


def test_a_diverging_fetch_returns_the_diverging_epoch(driver: NodeDriver) -> None:
    (response,) = fetched(driver.call(fetch((0, 3), last_fetched_epoch=0)))
    assert (response.diverging_epoch.epoch, response.diverging_epoch.end_offset) == (0, 2)
    assert response.records == b""
    (agreeing,) = fetched(driver.call(fetch((0, 2), last_fetched_epoch=0)))
    assert agreeing.diverging_epoch.epoch == -1
    assert len(agreeing.records) > 0
    (unknown,) = fetched(driver.call(fetch((0, 2), last_fetched_epoch=5)))
    assert unknown.error_code is ErrorCode.offset_out_of_range


def test_errors_of_brokers_without_a_replica(driver: NodeDriver) -> None:
    for replica in (1, 9):
        (response,) = fetched(driver.call(fetch((0, 0), replica_id=replica)))
        assert response.error_code is ErrorCode.not_leader_or_follower
    (response,) = fetched(driver.call(fetch((0, 0), replica_id=9, leader_epoch=EPOCH)))
    assert response.error_code is ErrorCode.unknown_leader_epoch


def test_aborted_transactions_are_returned_with_read_committed(driver: NodeDriver) -> None:
    (uncommitted,) = fetched(driver.call(fetch((0, 0))))
    (committed,) = fetched(driver.call(fetch((0, 0), isolation_level=1)))
    assert uncommitted.aborted_transactions is None
    assert committed.aborted_transactions == ()
    assert committed.last_stable_offset == 4


def look_up(
    driver: NodeDriver, timestamp: int, *, epoch: int = -1, version: int = 11
) -> tuple[ErrorCode, int, int, int]:
    """Return error code, offset, timestamp and leader epoch of partition 0."""
    values: Any = (0, epoch, timestamp, "t", -1, 0)
    index, leader_epoch, stamp, name, replica_id, isolation = values
    partition = list_offsets.ListOffsetsPartition(
        partition_index=index, current_leader_epoch=leader_epoch, timestamp=stamp
    )
    topic = list_offsets.ListOffsetsTopic(name=name, partitions=(partition,))
    fields = {"timeout": ms(0)} if version >= 10 else {}
    requested = request(
        2, version, replica_id=replica_id, isolation_level=isolation, topics=(topic,), **fields
    )
    (response,) = driver.call(requested).topics[0].partitions
    return response.error_code, response.offset, response.timestamp, response.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, (4, -1, EPOCH)),
        (-2, (0, -1, 0)),
        (-3, (2, START_MS + 1000, EPOCH)),
        (-4, (0, -1, 0)),
        (-5, (-1, -1, -1)),
        (-6, (-1, -1, -1)),
        (0, (0, START_MS, 0)),
        (START_MS + 1, (2, START_MS + 1000, EPOCH)),
        (START_MS + 1001, (-1, -1, -1)),
    ],
)
def test_offsets_by_timestamp(
    driver: NodeDriver, timestamp: int, expected: tuple[int, int, int]
) -> None:
    assert look_up(driver, timestamp) == (ErrorCode.none, *expected)


def test_unsupported_timestamp_constants(driver: NodeDriver) -> None:
    assert look_up(driver, -7)[0] is ErrorCode.unsupported_version
    for timestamp, first in ((-3, 7), (-4, 8), (-5, 9), (-6, 11)):
        assert look_up(driver, timestamp, version=first)[0] is ErrorCode.none
        assert look_up(driver, timestamp, version=first - 1)[0] is ErrorCode.unsupported_version


def test_an_invalid_timestamp_is_a_partition_error(driver: NodeDriver) -> None:
    plain = patched(batch("x"), base_timestamp=2**62, max_timestamp=START_MS + 2000)
    record = encode_record(Record(), offset_delta=0, timestamp_delta=2**62)
    lying = with_section(plain, record, Compression.NONE)
    assert produced(driver.call(produce(lying))).error_code is ErrorCode.none
    assert look_up(driver, START_MS + 2000) == (ErrorCode.invalid_record, -1, -1, -1)
    assert look_up(driver, START_MS) == (ErrorCode.none, 0, START_MS, 0)


@pytest.mark.parametrize(
    ("timestamp", "offset", "lookup_work"), [(0, 0, 0), (2**62, -1, 1)], ids=["found", "missing"]
)
def test_timestamps_are_looked_up_in_steps(
    driver: NodeDriver,
    monkeypatch: pytest.MonkeyPatch,
    timestamp: int,
    offset: int,
    lookup_work: int,
) -> None:
    create_topic(driver, "many", 3)
    for index in range(3):
        driver.call(produce(batch("a"), topic="many", partition=index))
    monkeypatch.setattr(k02_list_offsets, "LOOKUP_WORK", lookup_work)
    monkeypatch.setattr(k02_list_offsets, "WORK_PER_STEP", 2)
    partitions = [{"partition_index": index, "timestamp": timestamp} for index in range(3)]
    requested = plain_request(
        "list_offsets", 9, replica_id=-1, topics=[{"name": "many", "partitions": partitions}]
    )
    frame = FrameReceived(connection_id=1, frame=request_frame(requested))
    assert driver.node.handle(frame, driver.now_ms) == []
    assert driver.node.next_deadline_ms() == driver.now_ms
    effects: Any = driver.node.handle(TimePassed(), driver.now_ms)
    (topic,) = only_response(requested, effects).topics
    assert [(p.partition_index, p.offset) for p in topic.partitions] == [
        (index, offset) for index in range(3)
    ]


def test_list_offsets_checks_leader_epochs(driver: NodeDriver) -> None:
    assert look_up(driver, -1, epoch=0)[0] is ErrorCode.fenced_leader_epoch
    assert look_up(driver, -1, epoch=EPOCH + 1)[0] is ErrorCode.unknown_leader_epoch


def test_deleted_records_are_out_of_range_even_after_a_crash(driver: NodeDriver) -> None:
    deleted = driver.call(delete_records("t", 0, 2)).topics[0].partitions[0]
    assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.none, 2)
    driver.crash()
    (response,) = fetched(driver.call(fetch((0, 1))))
    assert response.error_code is ErrorCode.offset_out_of_range
    assert look_up(driver, -2)[1] == 2
    high = driver.call(delete_records("t", 0, -1)).topics[0].partitions[0]
    assert high.low_watermark == 4


def test_rejected_deletions_cause_no_checkpoint(
    driver: NodeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints: list[int] = []
    monkeypatch.setattr(
        driver.broker.replicas, "checkpoint", lambda: checkpoints.append(driver.now_ms)
    )
    (response,) = driver.call(delete_records("t", 0, 99)).topics[0].partitions
    assert (response.error_code, checkpoints) == (ErrorCode.offset_out_of_range, [])
    driver.call(delete_records("t", 0, 1))
    assert len(checkpoints) == 1


def delete_records(name: Any, index: Any, offset: Any) -> Any:
    partition = delete_records_v2.DeleteRecordsPartition(partition_index=index, offset=offset)
    topic = delete_records_v2.DeleteRecordsTopic(name=name, partitions=(partition,))
    return delete_records_v2.DeleteRecordsRequest(topics=(topic,), timeout=ms(0))


def test_records_of_internal_topics_are_not_deleted(driver: NodeDriver) -> None:
    for error in (ErrorCode.coordinator_not_available, ErrorCode.none):
        assert driver.call(request(10, 2, key="g", key_type=0)).error_code is error
    for index, error in ((0, ErrorCode.invalid_topic_exception),
                         (99, ErrorCode.unknown_topic_or_partition)):  # fmt: skip
        (topic,) = driver.call(delete_records("__consumer_offsets", index, 0)).topics
        (response,) = topic.partitions
        assert (response.error_code, response.low_watermark) == (error, -1)


def test_record_errors_name_records_without_a_key(driver: NodeDriver) -> None:
    create_topic(driver, "c", cleanup_policy="compact")
    refused = produced(driver.call(produce(batch("a", "b", key=None), topic="c")))
    assert refused.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in refused.record_errors] == [0, 1]
    assert refused.error_message is not None


@pytest.mark.parametrize("records", [None, b"", batch("a")[:-1], batch("a") + batch("b")])
def test_records_that_are_not_one_batch(driver: NodeDriver, records: bytes | None) -> None:
    assert produced(driver.call(produce(records))).error_code is ErrorCode.invalid_record


@pytest.mark.parametrize("acks", [2, -2])
def test_invalid_acks(driver: NodeDriver, acks: int) -> None:
    refused = produced(driver.call(produce(batch("a"), acks=acks)))
    assert refused.error_code is ErrorCode.invalid_required_acks


def test_a_retried_batch_returns_the_original_offset(driver: NodeDriver) -> None:
    once = batch("a", producer_id=77, producer_epoch=0, base_sequence=0)
    first = produced(driver.call(produce(once)))
    again = produced(driver.call(produce(once)))
    assert (first.base_offset, again.base_offset) == (4, 4)
    gap = batch("b", producer_id=77, producer_epoch=0, base_sequence=5)
    refused = produced(driver.call(produce(gap)))
    assert refused.error_code is ErrorCode.out_of_order_sequence_number
