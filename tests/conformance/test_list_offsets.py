"""Tests of ListOffsets: earliest, latest, and by timestamp (KIP-79, KIP-734)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import GZIP, NOW_MS, Record, batch, values
from tests.conformance.wire import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    append,
    list_offset,
    served,
)

TopicFactory = Callable[..., str]
NOTHING = (ErrorCode.none, -1, -1)
LATEST_OF_ANY = {"timestamp": LATEST, "current_leader_epoch": -1}


def found(raw: RawConnection, topic: str, timestamp_ms: int) -> tuple[ErrorCode, int, int]:
    response = list_offset(raw, topic, timestamp_ms)
    return (response.error_code, response.offset, response.timestamp)


def at(*deltas_ms: int) -> list[Record]:
    """Return records whose timestamps are these milliseconds after `NOW_MS`."""
    return [Record(timestamp_ms=NOW_MS + delta) for delta in deltas_ms]


def test_empty_partition_starts_and_ends_at_zero(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    assert found(raw, name, EARLIEST) == (ErrorCode.none, 0, -1)
    assert found(raw, name, LATEST) == (ErrorCode.none, 0, -1)
    assert found(raw, name, MAX_TIMESTAMP) == NOTHING
    assert found(raw, name, NOW_MS) == NOTHING


def test_earliest_and_latest_are_the_ends_of_the_log(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(at(0, 1, 2)))
    append(raw, name, batch(at(3)))
    assert found(raw, name, EARLIEST) == (ErrorCode.none, 0, -1)
    assert found(raw, name, LATEST) == (ErrorCode.none, 4, -1)


def test_every_version_returns_the_ends(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(at(0, 1, 2)))
    for version in served(raw, "list_offsets"):
        for requested, offset in ((EARLIEST, 0), (LATEST, 3), (NOW_MS + 1, 1)):
            response = list_offset(raw, name, requested, version=version)
            assert (response.error_code, response.offset) == (ErrorCode.none, offset), version


@pytest.mark.parametrize("codec", [0, GZIP])
def test_timestamp_finds_the_first_record_not_before_it(
    raw: RawConnection, topic: TopicFactory, codec: int
) -> None:
    name = topic()
    append(raw, name, batch(at(0, 10, 20), codec=codec))
    append(raw, name, batch(at(30, 40), codec=codec))
    for requested, offset, timestamp in (
        (-1_000_000, 0, 0),
        (0, 0, 0),
        (1, 1, 10),
        (10, 1, 10),
        (15, 2, 20),
        (20, 2, 20),
        (21, 3, 30),
        (30, 3, 30),
        (31, 4, 40),
        (40, 4, 40),
    ):
        expected = (ErrorCode.none, offset, NOW_MS + timestamp)
        assert found(raw, name, NOW_MS + requested) == expected, requested
    assert found(raw, name, NOW_MS + 41) == NOTHING


def test_first_of_equal_timestamps_is_found(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(at(0)))
    append(raw, name, batch(at(5, 5, 5)))
    append(raw, name, batch(at(5)))
    assert found(raw, name, NOW_MS + 5) == (ErrorCode.none, 1, NOW_MS + 5)


def test_out_of_order_timestamps_are_searched_in_offset_order(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(at(50, 10)))
    append(raw, name, batch(at(20, 60, 40)))
    for requested, offset, timestamp in ((5, 0, 50), (40, 0, 50), (51, 3, 60), (60, 3, 60)):
        assert found(raw, name, NOW_MS + requested) == (ErrorCode.none, offset, NOW_MS + timestamp)
    assert found(raw, name, NOW_MS + 61) == NOTHING


@pytest.mark.parametrize("codec", [0, GZIP])
def test_largest_timestamp_is_found_with_its_own_offset(
    raw: RawConnection, topic: TopicFactory, codec: int
) -> None:
    name = topic()
    append(raw, name, batch(at(0, 10), codec=codec))
    append(raw, name, batch(at(20, 70, 40), codec=codec))
    append(raw, name, batch(at(60, 50), codec=codec))
    assert found(raw, name, MAX_TIMESTAMP) == (ErrorCode.none, 3, NOW_MS + 70)


def test_search_uses_log_append_time(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    append(raw, name, batch(at(0, 1, 2)))
    _, offset, timestamp = found(raw, name, NOW_MS + 3)
    assert offset == 0
    assert timestamp > NOW_MS + 3
    assert found(raw, name, timestamp + 1) == NOTHING


def test_search_spans_many_batches(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(**{"segment.bytes": "1048576", "index.interval.bytes": "100"})
    for number in range(120):
        filler = Record(value=b"x" * 20_000, timestamp_ms=NOW_MS + 2 * number)
        append(raw, name, batch([filler]))
    for number in (0, 1, 60, 61, 119):
        assert found(raw, name, NOW_MS + 2 * number)[1] == number
        assert found(raw, name, NOW_MS + 2 * number - 1)[1] == number


def test_deleted_records_are_not_found(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(at(0, 10, 20)))
    append(raw, name, batch(at(30)))
    partition = {"partition_index": 0, "offset": 2}
    raw.call(
        "delete_records", 2, timeout=30_000, topics=[{"name": name, "partitions": [partition]}]
    )
    assert found(raw, name, EARLIEST) == (ErrorCode.none, 2, -1)
    assert found(raw, name, LATEST) == (ErrorCode.none, 4, -1)
    assert found(raw, name, NOW_MS) == (ErrorCode.none, 2, NOW_MS + 20)


def test_special_timestamps_without_tiered_storage(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(at(0, 1)))
    assert list_offset(raw, name, EARLIEST_LOCAL, version=8).offset == 0
    assert list_offset(raw, name, LATEST_TIERED, version=9).offset == -1


def test_read_committed_ends_at_the_same_offset_without_transactions(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    assert list_offset(raw, name, LATEST, isolation_level=READ_COMMITTED).offset == 2


def test_response_contains_the_leader_epoch_of_the_record(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(at(0)))
    assert list_offset(raw, name, NOW_MS).leader_epoch == 0
    assert list_offset(raw, name, EARLIEST).leader_epoch == 0
    assert list_offset(raw, name, LATEST).leader_epoch == 0
    assert list_offset(raw, name, NOW_MS + 1).leader_epoch == -1


def test_newer_leader_epoch_than_the_broker_has_is_unknown(
    raw: RawConnection, topic: TopicFactory
) -> None:
    response = list_offset(raw, topic(), LATEST, leader_epoch=1)
    assert (response.error_code, response.offset) == (ErrorCode.unknown_leader_epoch, -1)


def test_unknown_topic_or_partition(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert list_offset(raw, unique_name(), LATEST).error_code == unknown
    assert list_offset(raw, topic(), LATEST, partition=1).error_code == unknown


def test_duplicate_entry_is_returned_once(raw: RawConnection, topic: TopicFactory) -> None:
    name, other = topic(partitions=3), topic()
    requested = [
        {"name": topic, "partitions": [{"partition_index": p, **LATEST_OF_ANY} for p in indexes]}
        for topic, indexes in ((name, (0, 0, 1)), (other, (0,)), (name, (1, 2)))
    ]
    responses = raw.call(
        "list_offsets", 9, replica_id=-1, isolation_level=0, topics=requested
    ).topics
    twice = ErrorCode.invalid_request
    assert sorted(
        (topic.name, p.partition_index, p.error_code, p.offset)
        for topic in responses
        for p in topic.partitions
    ) == sorted(
        [
            (name, 0, twice, -1),
            (name, 1, twice, -1),
            (name, 2, ErrorCode.none, 0),
            (other, 0, ErrorCode.none, 0),
        ]
    )
    assert len(responses) == 2
