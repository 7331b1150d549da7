"""Tests of producers: rows are acknowledged, or the error names the record and the cause.

No call waits forever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from integration.clusters.topics import grow_topic
from pyspark_kafka.errors import DeliveryError, RowError
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.proxy import proxy
from tests.pyspark_kafka.client.records import Record, Writes, read_all, rows, writing

pytestmark = pytest.mark.usefixtures("engine")


@pytest.fixture
def client(bootstrap: str, engine: str) -> Iterator[Writes]:
    with writing(bootstrap) as opened:
        yield opened


def test_every_column_arrives(client: Writes, bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=3)
    at = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    headers = [[("a", b"1"), ("a", None), ("ü", b"")], None, []]
    producer = client.producer()
    producer.send(
        rows(
            name,
            [b"v", None, b""],
            key=[b"k", b"", None],
            partition=[2, 0, 1],
            timestamp=[at, at, at],
            headers=headers,
        )
    )
    producer.flush()
    producer.close()
    ms = int(at.timestamp() * 1000)
    assert read_all(bootstrap, name, partitions=3) == [
        Record(value=None, key=b"", partition=0, timestamp_ms=ms),
        Record(value=b"", key=None, partition=1, timestamp_ms=ms),
        Record(
            value=b"v",
            key=b"k",
            partition=2,
            timestamp_ms=ms,
            headers=(("a", b"1"), ("a", None), ("ü", b"")),
        ),
    ]


@pytest.mark.parametrize(
    "columns", [("key",), ("partition",), ("timestamp",), ("headers",), ("key", "headers")]
)
def test_columns_may_be_missing(
    client: Writes, bootstrap: str, topic: TopicFactory, columns: tuple[str, ...]
) -> None:
    name = topic()
    at = datetime(2024, 1, 1, tzinfo=UTC)
    full: dict[str, list[Any]] = {
        "key": [b"k"],
        "partition": [0],
        "timestamp": [at],
        "headers": [[("h", b"x")]],
    }
    started_ms = int(time.time() * 1000) - 1
    producer = client.producer()
    producer.send(rows(name, [b"v"], **{column: full[column] for column in columns}))
    producer.flush()
    producer.close()
    (record,) = read_all(bootstrap, name)
    assert record.value == b"v"
    assert record.key == (b"k" if "key" in columns else None)
    assert record.headers == ((("h", b"x"),) if "headers" in columns else ())
    if "timestamp" in columns:
        assert record.timestamp_ms == int(at.timestamp() * 1000)
    else:
        assert record.timestamp_ms >= started_ms, "the default timestamp is the time of sending"


def test_a_null_partition_or_time_is_chosen(
    client: Writes, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    at = datetime(2024, 1, 1, tzinfo=UTC)
    started_ms = int(time.time() * 1000) - 1
    producer = client.producer()
    producer.send(rows(name, [b"a", b"b"], partition=[1, None], timestamp=[None, at]))
    producer.flush()
    producer.close()
    by_value = {r.value: r for r in read_all(bootstrap, name, partitions=2)}
    assert by_value[b"a"].partition == 1
    assert by_value[b"a"].timestamp_ms >= started_ms
    assert by_value[b"b"].timestamp_ms == int(at.timestamp() * 1000)


MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}
"""Hashes of keys by `org.apache.kafka.common.utils.Utils.murmur2`, from Kafka's own tests.

The hash of the empty key was computed with that method."""


def test_keys_have_the_same_partitions_as_in_java(
    client: Writes, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic(partitions=17)
    keys = list(MURMUR2)
    producer = client.producer()
    producer.send(rows(name, [None] * len(keys), key=keys))
    producer.flush()
    producer.close()
    placed = {record.key: record.partition for record in read_all(bootstrap, name, partitions=17)}
    assert placed == {key: (value & 0x7FFFFFFF) % 17 for key, value in MURMUR2.items()}


def test_rows_without_a_key_are_spread(client: Writes, bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    producer = client.producer()
    for _ in range(200):
        producer.send(rows(name, [b"v"] * 50))
        producer.flush()
    producer.close()
    used = {record.partition for record in read_all(bootstrap, name, partitions=2)}
    assert used == {0, 1}


def test_nothing_is_lost_when_the_send_buffer_is_full(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    values = [b"%06d" % n for n in range(20_000)]
    with writing(bootstrap, buffer_memory="16384") as client:
        producer = client.producer()
        producer.send(rows(name, list(values)))
        producer.flush()
        producer.close()
    assert [record.value for record in read_all(bootstrap, name)] == values


def test_a_producer_is_used_again(client: Writes, bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    producers = []
    for value in (b"a", b"b"):
        producers.append(client.producer())
        producers[-1].send(rows(name, [value]))
        producers[-1].flush()
        producers[-1].close()
    assert producers[0] is producers[1]
    assert [record.value for record in read_all(bootstrap, name)] == [b"a", b"b"]


def test_a_producer_learns_that_a_topic_has_grown(
    client: Writes, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic()
    producer = client.producer()
    for partitions in (1, 2, 4):
        if partitions > 1:
            grow_topic(bootstrap, name, partitions=partitions)
        producer.send(rows(name, [b"x"], partition=[partitions - 1]))
        producer.flush()
    producer.close()
    found = [record.partition for record in read_all(bootstrap, name, partitions=4)]
    assert found == [0, 1, 3]


def test_an_aborted_producer_is_not_used_again(
    client: Writes, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic()
    first = client.producer()
    first.send(rows(name, [b"a"]))
    first.abort()
    second = client.producer()
    assert second is not first
    second.send(rows(name, [b"b"]))
    second.flush()
    second.close()
    assert read_all(bootstrap, name)[-1].value == b"b"


def test_a_record_larger_than_the_client_sends(client: Writes, topic: TopicFactory) -> None:
    name = topic()
    producer = client.producer()
    with pytest.raises(
        RowError,
        match=rf"{name}.*\b2000000\b.*'kafka\.max\.request\.size'.*\b1048576\b"
        r".*'max\.message\.bytes'",
    ):
        producer.send(rows(name, [b"x" * 2_000_000]))
    producer.abort()


def test_a_record_with_headers_larger_than_the_client_sends(
    client: Writes, topic: TopicFactory
) -> None:
    producer = client.producer()
    headers = [[{"key": "long", "value": b"x" * 2_000_000}, {"key": "none", "value": None}]]
    with pytest.raises(RowError, match="2000008"):
        producer.send(rows(topic(), [b"x"], headers=headers))
    producer.abort()


def test_a_record_larger_than_the_topic_takes(client: Writes, topic: TopicFactory) -> None:
    name = topic(**{"max.message.bytes": "1000"})
    producer = client.producer()
    producer.send(rows(name, [b"small", b"x" * 20_000]))
    with pytest.raises(DeliveryError, match=rf"{name}-0 .*'max.message.bytes'"):
        producer.flush()
    producer.abort()


def test_topic_that_is_not_created(client: Writes) -> None:
    producer = client.producer()

    def send() -> None:
        producer.send(rows("no such name", [b"x"]))

    def send_and_flush() -> None:
        send()
        producer.flush()

    # The topic is known to be missing in the second call, which accepts no record.
    for write in (send_and_flush, send):
        with pytest.raises(DeliveryError, match="no such name"):
            write()
    producer.abort()


def test_a_topic_is_created_by_writing_to_it(
    client: Writes, bootstrap: str, unique_name: Callable[[], str]
) -> None:
    """Apache Kafka's brokers create topics automatically by default."""
    name = unique_name()
    producer = client.producer()
    producer.send(rows(name, [b"x"]))
    producer.flush()
    producer.close()
    assert [record.value for record in read_all(bootstrap, name)] == [b"x"]


def test_missing_topic_without_auto_creation(
    bootstrap: str, unique_name: Callable[[], str]
) -> None:
    name = unique_name()
    settings = {"allow_auto_create_topics": "false", "max_block_ms": "1000"}
    with writing(bootstrap, **settings) as client:
        producer = client.producer()
        started = time.monotonic()
        producer.send(rows(name, [b"x"]))
        with pytest.raises(DeliveryError, match=name):
            producer.flush()
        assert time.monotonic() - started < 30
        producer.abort()


def test_a_partition_that_does_not_exist(client: Writes, topic: TopicFactory) -> None:
    name = topic()
    producer = client.producer()
    producer.send(rows(name, [b"x"], partition=[0]))
    producer.flush()
    with pytest.raises(RowError) as caught:
        producer.send(rows(name, [b"x"], partition=[7]))
    assert (caught.value.topic, caught.value.partition) == (name, 7)
    producer.abort()


def test_no_broker_fails_in_time() -> None:
    with writing("127.0.0.1:1", delivery_timeout_ms="1000") as client:
        producer = client.producer()
        started = time.monotonic()
        producer.send(rows("t", [b"x"]))
        with pytest.raises(
            DeliveryError,
            match=r"'t'.*127\.0\.0\.1:1\b.*refused",
        ):
            producer.flush()
        producer.abort()
        assert time.monotonic() - started < 15


def test_a_silent_broker_fails_in_time_and_abort_does_not_hang(
    bootstrap: str, topic: TopicFactory
) -> None:
    name = topic()
    with (
        proxy(bootstrap) as between,
        writing(between.address, delivery_timeout_ms="1500") as client,
    ):
        producer = client.producer()
        producer.send(rows(name, [b"acknowledged"]))
        producer.flush()
        between.silence()
        started = time.monotonic()
        producer.send(rows(name, [b"x"] * 1_000))
        with pytest.raises(DeliveryError, match=rf"{name}"):
            producer.flush()
        producer.abort()
        assert time.monotonic() - started < 20


def test_abort_does_not_wait_for_unsent_rows() -> None:
    with writing("127.0.0.1:1") as client:
        producer = client.producer()
        producer.send(rows("t", [b"x"] * 1_000))
        started = time.monotonic()
        producer.abort()
        assert time.monotonic() - started < 4, "longer than the time limit of librdkafka"


def test_a_full_buffer_and_no_broker_fail_in_time() -> None:
    settings = {"delivery_timeout_ms": "1000", "buffer_memory": "1024"}
    with writing("127.0.0.1:1", **settings) as client:
        producer = client.producer()
        with pytest.raises(DeliveryError, match=r"127\.0\.0\.1:1\b"):
            producer.send(rows("t", [b"x" * 10] * 1_000))
        producer.abort()
