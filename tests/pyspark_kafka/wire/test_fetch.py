"""Tests of Fetch, compared with kio's encoding in every version."""

from __future__ import annotations

import dataclasses
import datetime
import uuid
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from integration import raw
from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.wire.fetch import (
    FetchedPartition,
    FetchLimits,
    FetchPartition,
    FetchResponse,
    fetch_request,
    fetch_version,
)
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.pyspark_kafka.wire.messages import entities, entity_bytes

VERSIONS = range(SUPPORTED_VERSIONS[Api.FETCH].first, SUPPORTED_VERSIONS[Api.FETCH].last + 1)
IDS = {"t": uuid.UUID(int=7), "ü": uuid.UUID(int=8)}
LIMITS = FetchLimits(
    isolation_level=IsolationLevel.READ_COMMITTED,
    wait_ms_max=123,
    bytes_min=4,
    bytes_max=5_000_000,
    rack="r1",
)


def fetch_partition(topic: str, partition: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(
        topic_partition=TopicPartition(topic, partition),
        topic_id=IDS[topic],
        fetch_offset=offset,
        partition_bytes_max=1_000_000,
        current_leader_epoch=3,
        last_fetched_epoch=2,
    )


PARTITIONS = [
    fetch_partition("t", 0, 2**40),
    fetch_partition("ü", 1),
    fetch_partition("t", 300),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_equals_kios(version: int) -> None:
    def partition(one: FetchPartition) -> dict[str, Any]:
        fields = {
            "partition": one.topic_partition.partition,
            "fetch_offset": one.fetch_offset,
            "partition_max_bytes": one.partition_bytes_max,
        }
        since = {"log_start_offset": (5, -1), "current_leader_epoch": (9, 3)}
        since["last_fetched_epoch"] = (12, 2)
        fields |= {name: value for name, (first, value) in since.items() if version >= first}
        return fields

    def topic(name: str, ones: list[FetchPartition]) -> dict[str, Any]:
        named: dict[str, Any] = {"topic": name} if version <= 12 else {"topic_id": IDS[name]}
        return {**named, "partitions": [partition(one) for one in ones]}

    fields: dict[str, Any] = {
        "max_wait": 123,
        "min_bytes": 4,
        "max_bytes": 5_000_000,
        "isolation_level": 1,
        "topics": [topic("t", [PARTITIONS[0], PARTITIONS[2]]), topic("ü", [PARTITIONS[1]])],
    }
    if version <= 14:
        fields["replica_id"] = -1
    if version >= 7:
        fields |= {"session_id": 0, "session_epoch": -1}
    if version >= 11:
        fields["rack_id"] = "r1"
    expected = entity_bytes(raw.request("fetch", version, **fields))
    assert (
        b"".join(bytes(part) for part in fetch_request(version, LIMITS, PARTITIONS).body)
        == expected
    )


def read(version: int, data: bytes) -> FetchResponse:
    reader = Reader(memoryview(data))
    response = fetch_request(version, LIMITS, PARTITIONS).read(reader)
    reader.end("the response")
    return response


def response(version: int, ones: list[tuple[str, int]], **fields: Any) -> bytes:
    """Return a response for these partitions, with a throttle time of 9 ms.

    All partitions have the same fields.
    """
    topics: dict[str, list[int]] = {}
    for name, partition in ones:
        topics.setdefault(name, []).append(partition)
    responses = [
        {
            **({"topic": name} if version <= 12 else {"topic_id": IDS[name]}),
            "partitions": [{"partition_index": index, **fields} for index in indexes],
        }
        for name, indexes in topics.items()
    ]
    return entity_bytes(raw.response("fetch", version, throttle_time=9, responses=responses))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_of_kio_is_read(version: int) -> None:
    fields: dict[str, Any] = {
        "error_code": 6,
        "high_watermark": 2**41,
        "last_stable_offset": 11,
        "aborted_transactions": [{"producer_id": 5, "first_offset": 6}],
        "records": b"a few records",
    }
    if version >= 5:
        fields["log_start_offset"] = 4
    if version >= 11:
        fields["preferred_read_replica"] = 2
    if version >= 12:
        fields["current_leader"] = {"leader_id": 3, "leader_epoch": 9}
        fields["diverging_epoch"] = {"epoch": 1, "end_offset": 10}
        fields["snapshot_id"] = {"end_offset": 1, "epoch": 1}
    data = response(version, [("t", 300), ("ü", 1)], **fields)
    found = read(version, data)
    assert found.throttle_ms == 9
    assert [one.topic_partition for one in found.partitions] == [
        TopicPartition("t", 300),
        TopicPartition("ü", 1),
    ]
    (one, _) = found.partitions
    assert (one.error_code, one.high_watermark, one.last_stable_offset) == (6, 2**41, 11)
    assert one.aborted == (AbortedTransaction(producer_id=5, first_offset=6),)
    assert bytes(one.records) == b"a few records"
    assert one.log_start_offset == (4 if version >= 5 else -1)
    assert one.preferred_read_replica == (2 if version >= 11 else None)
    assert one.current_leader == ((3, 9) if version >= 12 else None)
    assert one.diverging == ((1, 10) if version >= 12 else None)


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_fields_are_none(version: int) -> None:
    data = response(
        version,
        [("t", 0)],
        records=None,
        **({"preferred_read_replica": -1} if version >= 11 else {}),
    )
    (one,) = read(version, data).partitions
    assert bytes(one.records) == b""
    assert (one.preferred_read_replica, one.current_leader, one.diverging) == (None, None, None)


def test_node_endpoints() -> None:
    entity = raw.response(
        "fetch",
        17,
        node_endpoints=[{"node_id": 4, "host": "h", "port": 99, "rack": "r"}],
    )
    (broker,) = read(17, entity_bytes(entity)).endpoints
    assert (broker.broker_id, broker.address, broker.rack) == (4, Address("h", 99), "r")


def test_records_are_a_view_into_the_frame() -> None:
    frame = memoryview(bytearray(response(17, [("t", 0)], records=b"marker", error_code=0)))
    (one,) = fetch_request(17, LIMITS, PARTITIONS).read(Reader(frame)).partitions
    frame[bytes(frame).index(b"marker")] = ord("M")
    assert bytes(one.records) == b"Marker"


@pytest.mark.parametrize("version", [4, 12, 13, 17])
@pytest.mark.parametrize("ones", [[("t", 5)], [("ü", 0)], [("t", 0), ("t", 0)]])
def test_a_partition_that_was_not_requested_is_malformed(
    version: int, ones: list[tuple[str, int]]
) -> None:
    with pytest.raises(MalformedResponseError, match=rf"\b{ones[-1][1]}\b"):
        read(version, response(version, ones))


def test_without_topic_ids_the_version_has_names() -> None:
    nameless = FetchPartition(
        topic_partition=TopicPartition("t", 0),
        topic_id=None,
        fetch_offset=0,
        partition_bytes_max=1,
    )
    assert fetch_version(17, PARTITIONS) == 17
    assert fetch_version(17, [*PARTITIONS, nameless]) == 12
    assert fetch_version(5, [nameless]) == 5


@given(st.data())
def test_corrupt_responses_are_malformed_or_read(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    good = response(version, [("t", 0), ("ü", 1)], records=b"x" * 20, high_watermark=3)
    found = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    del found[data.draw(st.integers(0, len(found))) :]
    try:
        read(version, bytes(found))
    except MalformedResponseError as error:
        assert str(error)  # noqa: PT017


INVALID_LENGTHS = [
    b"\xff" * 10,
    b"\x80" * 9 + b"\x01",
    b"\x80" * 4 + b"\x10",
    b"\xff" * 4 + b"\x07",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x80\0\0\0",
]


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_invalid_lengths_are_malformed_or_read(version: int) -> None:
    """Invalid numbers are inserted or overwritten at every position, or the response ends there."""
    good = response(version, [("t", 0), ("ü", 1)], records=b"x" * 20, high_watermark=3)
    read(version, good)
    refused = 0
    for at in range(len(good)):
        made = [good[:at] + invalid + good[at:] for invalid in INVALID_LENGTHS]
        made += [good[:at] + invalid + good[at + len(invalid) :] for invalid in INVALID_LENGTHS]
        for data in [*made, good[:at]]:
            try:
                found = read(version, data)
            except MalformedResponseError as error:
                assert str(error)  # noqa: PT017
                refused += 1
            else:
                assert sum(len(one.records) for one in found.partitions) < len(data)
    assert refused > 10 * len(good)


@pytest.mark.parametrize("version", VERSIONS)
def test_any_partition_that_kio_writes_is_read(version: int) -> None:
    schema = load_response_schema(Api.FETCH, version)
    topic_schema = _element(schema, "responses")

    @settings(max_examples=25)
    @given(entities(_element(topic_schema, "partitions")))
    def check(one: Any) -> None:
        named: dict[str, Any] = {"topic": "t"} if version <= 12 else {"topic_id": IDS["t"]}
        moved = dataclasses.replace(one, partition_index=300)
        topic = topic_schema(partitions=(moved,), **named)
        top: dict[str, Any] = {"responses": (topic,), "throttle_time": datetime.timedelta()}
        if version >= 7:
            top["error_code"] = ErrorCode.none
        (found,) = read(version, entity_bytes(schema(**top))).partitions
        _compare(found, moved)

    check()


def _compare(found: FetchedPartition, written: Any) -> None:
    assert found.error_code == written.error_code
    assert found.high_watermark == written.high_watermark
    assert found.last_stable_offset == written.last_stable_offset
    assert bytes(found.records) == (written.records or b"")
    assert found.aborted == tuple(
        AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset)
        for one in written.aborted_transactions
    )


def _element(schema: Any, name: str) -> Any:
    """Return the element type of an array field of kio's class."""
    (field,) = [field for field in dataclasses.fields(schema) if field.name == name]
    return get_args(field.type)[0]
