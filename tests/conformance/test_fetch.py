"""Tests of Fetch: records, limits, waiting and partitions (KIP-74, KIP-227, KIP-516)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.batches import GZIP, Record, batch, parse, values
from tests.conformance.wire import (
    MEBIBYTE,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    append,
    fetch,
    fetch_request,
    only,
    produce,
    served,
    topic_id,
)

TopicFactory = Callable[..., str]
LONG_MS = 20_000
"""Longer than any test waits, so that a response means that the fetch was completed early."""
SOON_S = 0.3
"""How long a test waits to check that nothing happens."""


def read_values(response: Any) -> list[bytes | None]:
    return [record.value for found in parse(response.records) for record in found.records]


def kilobyte_batches(raw: RawConnection, topic: str, count: int, *, partition: int = 0) -> int:
    """Append `count` batches of one 1000-byte record each; return the size of one batch."""
    data = batch([Record(value=b"x" * 1000)])
    for _ in range(count):
        append(raw, topic, data, partition=partition)
    return len(data)


def test_every_version_returns_the_records(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    identifier = topic_id(raw, name)
    append(raw, name, batch(values("a", "b")))
    for version in served(raw, "fetch"):
        response = fetch(raw, identifier if version >= 13 else name, version=version)
        assert response.error_code == ErrorCode.none, version
        assert response.high_watermark == 2, version
        assert read_values(response) == [b"a", b"b"], version


def test_response_contains_the_offsets_of_the_partition(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    response = fetch(raw, name)
    offsets = (response.log_start_offset, response.last_stable_offset, response.high_watermark)
    assert offsets == (0, 2, 2)
    assert response.preferred_read_replica == -1
    assert not response.aborted_transactions


def test_fetch_at_the_log_end_is_empty_without_error(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    assert (fetch(raw, name).error_code, fetch(raw, name).records) == (ErrorCode.none, b"")
    append(raw, name, batch(values("a")))
    response = fetch(raw, name, offset=1)
    assert (response.error_code, response.records) == (ErrorCode.none, b"")
    assert response.high_watermark == 1


@pytest.mark.parametrize("offset", [3, 10_000, -1])
def test_offset_outside_the_log_is_out_of_range(
    raw: RawConnection, topic: TopicFactory, offset: int
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    response = fetch(raw, name, offset=offset, max_wait_ms=LONG_MS, min_bytes=1)
    assert response.error_code == ErrorCode.offset_out_of_range
    assert not response.records


def test_offset_before_the_log_start_is_out_of_range(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    append(raw, name, batch(values("b")))
    partition = {"partition_index": 0, "offset": 1}
    raw.call(
        "delete_records", 2, timeout=30_000, topics=[{"name": name, "partitions": [partition]}]
    )
    assert fetch(raw, name).error_code == ErrorCode.offset_out_of_range
    response = fetch(raw, name, offset=1)
    assert (response.error_code, response.log_start_offset) == (ErrorCode.none, 1)
    assert read_values(response) == [b"b"]


@pytest.mark.parametrize("codec", [0, GZIP])
def test_offset_inside_a_batch_returns_the_whole_batch(
    raw: RawConnection, topic: TopicFactory, codec: int
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    append(raw, name, batch(values("c", "d", "e"), codec=codec))
    found = parse(fetch(raw, name, offset=3).records)
    assert [(b.base_offset, b.last_offset) for b in found] == [(2, 4)]


def test_first_batch_is_returned_whatever_the_limits(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    size = kilobyte_batches(raw, name, 2)
    for limits in ({"partition_max_bytes": 1}, {"max_bytes": 1}, {"max_bytes": size - 1}):
        found = parse(fetch(raw, name, **limits).records)
        assert [b.base_offset for b in found] == [0], limits
    assert [b.base_offset for b in parse(fetch(raw, name, 1, max_bytes=1).records)] == [1]


def test_partition_returns_no_more_than_its_limit(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    size = kilobyte_batches(raw, name, 10)
    response = fetch(raw, name, partition_max_bytes=3 * size + size // 2)
    assert len(response.records) <= 3 * size + size // 2
    assert [b.base_offset for b in parse(response.records)] == [0, 1, 2]


def test_request_returns_no_more_than_its_limit(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    size, *_ = [kilobyte_batches(raw, name, 4, partition=partition) for partition in range(3)]
    response = raw.send(
        fetch_request({name: [{"partition": p} for p in range(3)]}, max_bytes=6 * size)
    )
    found = {p.partition_index: len(parse(p.records)) for p in only(response.responses).partitions}
    assert found == {0: 4, 1: 2, 2: 0}


def test_partitions_are_served_in_request_order(raw: RawConnection, topic: TopicFactory) -> None:
    # The broker keeps the order of the request: clients rotate the partitions for fairness.
    name = topic(partitions=3)
    for partition in range(3):
        kilobyte_batches(raw, name, 2, partition=partition)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        response = raw.send(fetch_request({name: [{"partition": p} for p in order]}, max_bytes=1))
        partitions = only(response.responses).partitions
        assert {p.partition_index for p in partitions} == {0, 1, 2}
        assert [p.partition_index for p in partitions if p.records] == [order[0]]


def test_first_batch_may_come_from_a_later_partition(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    kilobyte_batches(raw, name, 1, partition=1)
    response = raw.send(
        fetch_request({name: [{"partition": 0}, {"partition": 1}]}, max_bytes=1, min_bytes=1)
    )
    sizes = {p.partition_index: len(parse(p.records)) for p in only(response.responses).partitions}
    assert sizes == {0: 0, 1: 1}


def test_several_topics_in_one_request(raw: RawConnection, topic: TopicFactory) -> None:
    first, second = topic(), topic()
    append(raw, first, batch(values("1")))
    append(raw, second, batch(values("2")))
    response = raw.send(fetch_request({first: [{}], second: [{}]}))
    found = {t.topic: read_values(only(t.partitions)) for t in response.responses}
    assert found == {first: [b"1"], second: [b"2"]}


def wait_for(raw: RawConnection, request: Any, *, act: Callable[[], object]) -> Any:
    """Send `request`, check that there is no response, call `act`, and return the response."""
    raw.send_only(request)
    raw.set_timeout(SOON_S)
    with pytest.raises(TimeoutError):
        raw.receive(request)
    act()
    raw.set_timeout(LONG_MS / 2_000)
    return raw.receive(request)


@pytest.fixture
def other(raw_address: str) -> Any:
    """Return a second connection, for use while a request on the first connection waits."""
    with RawConnection(raw_address) as connection:
        yield connection


def test_waiting_fetch_is_woken_by_an_append(
    raw: RawConnection, other: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    waiting = fetch_request({name: [{}]}, max_wait_ms=LONG_MS, min_bytes=1)
    response = wait_for(raw, waiting, act=lambda: append(other, name, batch(values("a"))))
    assert read_values(only(only(response.responses).partitions)) == [b"a"]


def test_fetch_waits_for_min_bytes(
    raw: RawConnection, other: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    size = kilobyte_batches(other, name, 1)
    waiting = fetch_request({name: [{}]}, max_wait_ms=LONG_MS, min_bytes=2 * size + 1)
    kilobyte_batches(other, name, 1)
    response = wait_for(raw, waiting, act=lambda: kilobyte_batches(other, name, 1))
    assert len(parse(only(only(response.responses).partitions).records)) == 3


def test_min_bytes_counts_all_partitions(
    raw: RawConnection, other: RawConnection, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    size = kilobyte_batches(other, name, 1, partition=0)
    waiting = fetch_request(
        {name: [{"partition": 0}, {"partition": 1}]}, max_wait_ms=LONG_MS, min_bytes=2 * size
    )
    response = wait_for(raw, waiting, act=lambda: kilobyte_batches(other, name, 1, partition=1))
    assert [len(parse(p.records)) for p in only(response.responses).partitions] == [1, 1]


def test_fetch_returns_empty_after_max_wait(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    began_s = time.monotonic()
    response = fetch(raw, name, max_wait_ms=400, min_bytes=1)
    waited_s = time.monotonic() - began_s
    assert (response.error_code, response.records) == (ErrorCode.none, b"")
    assert 0.39 <= waited_s < LONG_MS / 2_000


def test_fetch_returns_available_records_after_max_wait(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    assert read_values(fetch(raw, name, max_wait_ms=200, min_bytes=1_000_000)) == [b"a"]


def test_fetch_returns_at_once_with_min_bytes(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(values("a")))
    raw.set_timeout(LONG_MS / 2_000)
    assert read_values(fetch(raw, name, max_wait_ms=LONG_MS, min_bytes=1)) == [b"a"]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"min_bytes": 5000, "partition_max_bytes": 5000}, id="of a partition"),
        pytest.param({"min_bytes": 9000, "max_bytes": 5000}, id="of the response"),
    ],
)
def test_fetch_does_not_wait_if_the_limits_are_below_min_bytes(
    raw: RawConnection, other: RawConnection, topic: TopicFactory, limits: dict[str, Any]
) -> None:
    # Complete batches within the limits are smaller than `min_bytes`. (Apache Kafka also returns a
    # partial batch.)
    name = topic()
    kilobyte_batches(raw, name, 4)
    of_partition = {k: v for k, v in limits.items() if k == "partition_max_bytes"}
    of_request = {k: v for k, v in limits.items() if k not in of_partition}
    requested = fetch_request({name: [of_partition]}, max_wait_ms=LONG_MS, **of_request)
    woken = wait_for(raw, requested, act=lambda: kilobyte_batches(other, name, 1))
    for response in (woken, raw.send(requested)):
        assert len(parse(only(only(response.responses).partitions).records)) == 4


def test_fetch_before_the_last_segment_returns_at_once(
    raw: RawConnection, other: RawConnection, topic: TopicFactory
) -> None:
    name = topic(**{"segment.bytes": str(MEBIBYTE)})
    data = batch([Record(value=b"x" * 500_000)])
    for _ in range(2):
        append(other, name, data)
    behind, at_end = (
        fetch_request(
            {name: [{"fetch_offset": offset, "partition_max_bytes": 9 * MEBIBYTE}]},
            max_wait_ms=LONG_MS,
            min_bytes=5 * MEBIBYTE,
        )
        for offset in (0, 2)
    )
    woken = wait_for(raw, at_end, act=lambda: append(other, name, data))
    assert len(only(only(woken.responses).partitions).records) == len(data)
    assert len(only(only(raw.send(behind).responses).partitions).records) == 2 * len(data)


def test_fetch_without_min_bytes_returns_at_once(raw: RawConnection, topic: TopicFactory) -> None:
    raw.set_timeout(LONG_MS / 2_000)
    assert fetch(raw, topic(), max_wait_ms=LONG_MS, min_bytes=0).records == b""


def test_offset_out_of_range_returns_at_once_with_all_partitions(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    raw.set_timeout(LONG_MS / 2_000)
    partitions = [{"partition": 0}, {"partition": 1, "fetch_offset": 9}]
    response = raw.send(fetch_request({name: partitions}, max_wait_ms=LONG_MS, min_bytes=1))
    codes = {p.partition_index: p.error_code for p in only(response.responses).partitions}
    assert codes == {0: ErrorCode.none, 1: ErrorCode.offset_out_of_range}


def test_fetch_waits_despite_an_unknown_partition(
    raw: RawConnection, other: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    partitions = [{"partition": 0}, {"partition": 7}]
    waiting = fetch_request({name: partitions}, max_wait_ms=LONG_MS, min_bytes=1)
    response = wait_for(raw, waiting, act=lambda: append(other, name, batch(values("a"))))
    found = {p.partition_index: p for p in only(response.responses).partitions}
    assert read_values(found[0]) == [b"a"]
    assert found[7].error_code == ErrorCode.unknown_topic_or_partition


def test_topic_deletion_wakes_a_waiting_fetch(
    raw: RawConnection, other: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    waiting = fetch_request({name: [{}]}, max_wait_ms=LONG_MS, min_bytes=1)
    response = wait_for(
        raw,
        waiting,
        act=lambda: other.call("delete_topics", 5, topic_names=[name], timeout=30_000),
    )
    assert only(only(response.responses).partitions).error_code in {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
    }


def test_unknown_topic_or_partition(
    raw: RawConnection, topic: TopicFactory, unique_name: Callable[[], str]
) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert fetch(raw, unique_name()).error_code == unknown
    assert fetch(raw, topic(), partition=1).error_code == unknown


@pytest.mark.parametrize("isolation_level", [READ_UNCOMMITTED, READ_COMMITTED])
def test_both_isolation_levels_read_all_without_transactions(
    raw: RawConnection, topic: TopicFactory, isolation_level: int
) -> None:
    name = topic()
    append(raw, name, batch(values("a", "b")))
    response = fetch(raw, name, isolation_level=isolation_level)
    assert read_values(response) == [b"a", b"b"]
    assert response.last_stable_offset == 2
    expected = () if isolation_level == READ_COMMITTED else None
    assert response.aborted_transactions == expected


def test_no_session_id_without_a_session(raw: RawConnection, topic: TopicFactory) -> None:
    response = raw.send(fetch_request({topic(): [{}]}, session_id=0, session_epoch=-1))
    assert (response.error_code, response.session_id) == (ErrorCode.none, 0)


def test_session_that_does_not_exist_is_not_found(raw: RawConnection) -> None:
    response = raw.send(fetch_request({}, session_id=123_456, session_epoch=1))
    assert response.error_code == ErrorCode.fetch_session_id_not_found
    assert response.responses == ()


def test_fetching_batch_by_batch_returns_every_record_once(
    raw: RawConnection, topic: TopicFactory
) -> None:
    name = topic()
    for number in range(30):
        append(raw, name, batch(values(*(f"{number}.{i}" for i in range(number % 4 + 1)))))
    read: list[bytes | None] = []
    offset, end = 0, fetch(raw, name).high_watermark
    while offset < end:
        found = parse(fetch(raw, name, offset, partition_max_bytes=200).records)
        read += [r.value for b in found for r in b.records if r.offset >= offset]
        offset = found[-1].last_offset + 1
    expected = [f"{number}.{i}".encode() for number in range(30) for i in range(number % 4 + 1)]
    assert read == expected


def test_refused_records_are_never_read(raw: RawConnection, topic: TopicFactory) -> None:
    name = topic()
    append(raw, name, batch(values("before")))
    assert produce(raw, name, batch(values("bad"), corrupt=True)).error_code != ErrorCode.none
    append(raw, name, batch(values("after")))
    assert read_values(fetch(raw, name)) == [b"before", b"after"]
