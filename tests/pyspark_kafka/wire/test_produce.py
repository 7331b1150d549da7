"""Tests of Produce, compared with kio's encoding in every version, and of InitProducerId."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from integration import raw
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.wire.connection import Request, wait_any
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.produce import (
    ProducePartition,
    ProduceResponse,
    produce_request,
    produce_version,
)
from pyspark_kafka.wire.producer_id import request_producer_id
from pyspark_kafka.wire.reader import MalformedResponseError, Reader
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import ApiError, Router
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api
from tests.pyspark_kafka.wire.messages import entity_bytes
from tests.pyspark_kafka.wire.scripted import Peer, ScriptedBroker, ScriptedResponses

VERSIONS = range(SUPPORTED_VERSIONS[Api.PRODUCE].first, SUPPORTED_VERSIONS[Api.PRODUCE].last + 1)
IDS = {"t": uuid.UUID(int=7), "ü": uuid.UUID(int=8)}


def sent(topic: str, partition: int, records: bytes = b"") -> ProducePartition:
    return ProducePartition(
        topic_partition=TopicPartition(topic, partition),
        topic_id=IDS[topic],
        records=memoryview(records),
    )


SENT = [sent("t", 0, b"x" * 200), sent("ü", 1, b"yy"), sent("t", 300, b"z")]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "X/ü/0/1-2"])
def test_a_request_equals_kios(version: int, transactional_id: str | None) -> None:
    def topic(name: str, ones: list[ProducePartition]) -> dict[str, Any]:
        named: dict[str, Any] = {"name": name} if version <= 12 else {"topic_id": IDS[name]}
        data = [
            {"index": one.topic_partition.partition, "records": bytes(one.records)} for one in ones
        ]
        return {**named, "partition_data": data}

    expected = raw.request(
        "produce",
        version,
        transactional_id=transactional_id,
        acks=-1,
        timeout=12_345,
        topic_data=[topic("t", [SENT[0], SENT[2]]), topic("ü", [SENT[1]])],
    )
    request = produce_request(version, SENT, timeout_ms=12_345, transactional_id=transactional_id)
    body = request.body
    assert b"".join(bytes(part) for part in body) == entity_bytes(expected)


def test_batches_are_not_copied_into_the_request() -> None:
    body = produce_request(13, SENT, timeout_ms=1).body
    assert [part for part in body if any(part is one.records for one in SENT)] == [
        SENT[0].records,
        SENT[2].records,
        SENT[1].records,
    ]


def read(version: int, data: bytes) -> ProduceResponse:
    reader = Reader(memoryview(data))
    response = produce_request(version, SENT, timeout_ms=1).read(reader)
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
            **({"name": name} if version <= 12 else {"topic_id": IDS[name]}),
            "partition_responses": [
                {
                    "index": index,
                    "base_offset": 0,
                    **({"error_message": None} if version >= 8 else {}),
                    **fields,
                }
                for index in indexes
            ],
        }
        for name, indexes in topics.items()
    ]
    return entity_bytes(raw.response("produce", version, throttle_time=9, responses=responses))


ALL = [("t", 0), ("t", 300), ("ü", 1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_of_kio_is_read(version: int) -> None:
    fields: dict[str, Any] = {"error_code": 87, "base_offset": 2**40}
    fields["log_append_time"] = datetime.fromtimestamp(5, UTC)
    if version >= 5:
        fields["log_start_offset"] = 4
    if version >= 8:
        fields["record_errors"] = [
            {"batch_index": 3, "batch_index_error_message": "no key"},
            {"batch_index": 4, "batch_index_error_message": None},
        ]
        fields["error_message"] = "of a compacted topic"
    if version >= 10:
        fields["current_leader"] = {"leader_id": 3, "leader_epoch": 9}
    found = read(version, response(version, ALL, **fields))
    assert found.throttle_ms == 9
    assert [(o.topic_partition.topic, o.topic_partition.partition) for o in found.partitions] == ALL
    one = found.partitions[0]
    assert (one.error_code, one.base_offset, one.log_append_time_ms) == (87, 2**40, 5_000)
    assert one.log_start_offset == (4 if version >= 5 else -1)
    assert one.record_errors == (((3, "no key"), (4, None)) if version >= 8 else ())
    assert one.error_message == ("of a compacted topic" if version >= 8 else None)
    assert one.current_leader == ((3, 9) if version >= 10 else None)


def test_node_endpoints() -> None:
    data = entity_bytes(
        raw.response(
            "produce", 13, node_endpoints=[{"node_id": 4, "host": "h", "port": 9, "rack": "r"}]
        )
    )
    request = produce_request(13, [], timeout_ms=1)
    (broker,) = request.read(Reader(memoryview(data))).endpoints
    assert (broker.broker_id, broker.address, broker.rack) == (4, Address("h", 9), "r")


@pytest.mark.parametrize("version", [9, 13])
def test_unknown_tagged_fields_are_ignored(version: int) -> None:
    """A later version of Kafka can add tagged fields to any structure of a response."""
    data = response(version, [("t", 0)])
    unknown = b"\x01\x05\x02ab"  # One field, with tag 5 and two bytes.
    of_partition, of_topic, throttle_time, of_response = data[-7], data[-6], data[-5:-1], data[-1]
    assert (of_partition, of_topic, of_response) == (0, 0, 0)
    extended = data[:-7] + unknown + unknown + throttle_time + unknown
    request = produce_request(version, SENT[:1], timeout_ms=1)
    reader = Reader(memoryview(extended))
    assert request.read(reader) == request.read(Reader(memoryview(data)))
    reader.end("the response")


@pytest.mark.parametrize("version", [3, 12, 13])
@pytest.mark.parametrize(
    ("ones", "expected"),
    [
        ([*ALL, ("t", 5)], r"\b5\b"),
        ([*ALL, ("t", 0)], r"\b0\b"),
        (ALL[:2], "ü-1"),
    ],
)
def test_a_response_with_other_partitions_is_malformed(
    version: int, ones: list[tuple[str, int]], expected: str
) -> None:
    with pytest.raises(MalformedResponseError, match=expected):
        read(version, response(version, ones))


def test_without_topic_ids_the_version_has_names() -> None:
    nameless = ProducePartition(topic_partition=TopicPartition("t", 0), topic_id=None, records=b"")
    assert produce_version(13, SENT) == 13
    assert produce_version(13, [*SENT, nameless]) == 12
    assert produce_version(5, [nameless]) == 5


@given(st.data())
def test_corrupt_responses_are_malformed_or_read(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(VERSIONS))
    found = bytearray(response(version, ALL, error_code=3))
    for _ in range(data.draw(st.integers(1, 3))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    del found[data.draw(st.integers(0, len(found))) :]
    try:
        read(version, bytes(found))
    except MalformedResponseError as error:
        assert str(error)  # noqa: PT017


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


def dialer() -> Dialer:
    return Dialer(client_id="tests", clock=Clock())


def test_a_producer_id() -> None:
    fields = {"producer_id": 2**40, "producer_epoch": 3}
    with ScriptedBroker(
        ScriptedResponses(init_producer_id=[fields, {**fields, "error_code": 14}])
    ) as broker:
        router = Router([Address.parse(broker.address)], dialer())
        found = request_producer_id(router, deadline=soon())
        assert found == ProducerIdAndEpoch(producer_id=2**40, producer_epoch=3)
        with pytest.raises(ApiError) as caught:
            request_producer_id(router, deadline=soon())
        assert caught.value.code is ErrorCode.coordinator_load_in_progress
        router.close()


def test_posted_requests_are_sent_while_waiting_for_others() -> None:
    """The requests are larger than any socket buffer, and the broker reads them late."""
    size = 12_000_000

    def slow(peer: Peer) -> None:
        peer.negotiate()
        first = peer.read()
        second = peer.read()
        assert (len(first.rest), len(second.rest)) > (size, size)
        for request in (first, second):
            peer.respond(request, "metadata", cluster_id="c")
        peer.hang()

    def posted() -> Request[int]:
        return Request(
            api=Api.METADATA,
            version=12,
            body=(bytes(size),),
            read=lambda reader: len(reader.view(reader.left, "all")),
            throttle_ms=lambda _: 0,
        )

    clock = Clock()
    with ScriptedBroker(slow) as broker:
        connection = dialer().open(
            Address.parse(broker.address), broker="broker 7", deadline=soon()
        )
        in_flight_requests = [connection.post(posted()) for _ in range(2)]
        assert not any(pending.done for pending in in_flight_requests)
        assert wait_any([in_flight_requests[1]], deadline=soon(), clock=clock) == [
            in_flight_requests[1]
        ]
        assert in_flight_requests[0].done
        connection.close()
