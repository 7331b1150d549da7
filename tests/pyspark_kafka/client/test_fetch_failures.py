"""Tests of failed reads: the error is raised in bounded time and names partition and cause."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from pyspark_kafka.client.librdkafka import fetch as fetch_module
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import (
    BrokerUnreachableError,
    CorruptBatchError,
    FetchTimeoutError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.proxy import proxy
from tests.pyspark_kafka.client.records import Record, reading, write
from tests.pyspark_kafka.client.test_fetch import fetch_range

pytestmark = pytest.mark.usefixtures("engine")
of_librdkafka = pytest.mark.parametrize("engine", ["librdkafka"], indirect=True)

COMMITTED = IsolationLevel.READ_COMMITTED
MARK = b"-a-value-to-be-damaged-"


def read(client: KafkaReadClient, wanted: FetchRange, *columns: str) -> int:
    batches = client.fetch(wanted, columns or ("value",), COMMITTED)
    return sum(batch.num_rows for batch in batches)


def test_offsets_below_the_log_start(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 10)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    (future,) = admin.delete_records([RdTopicPartition(name, 0, 4)]).values()
    future.result()
    with (
        reading(bootstrap) as client,
        pytest.raises(
            OffsetOutOfRangeError,
            match=rf"{name}-0\b.*\b1 to 8\b.*\b4\b.*\b10\b",
        ),
    ):
        read(client, fetch_range(name, 1, 8))


def test_offsets_beyond_the_end(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 10)
    with (
        reading(bootstrap) as client,
        pytest.raises(OffsetOutOfRangeError, match=rf"{name}-0\b.*\b12 to 15\b.*\b10\b"),
    ):
        read(client, fetch_range(name, 12, 15))


@pytest.mark.slow
def test_an_end_that_the_log_does_not_reach(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 10)
    with reading(bootstrap, poll_timeout_ms=3_000) as client:
        batches = client.fetch(fetch_range(name, 5, 15), ("offset",), COMMITTED)
        assert next(batches).column("offset").to_pylist() == [5, 6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRangeError, match=rf"{name}-0\b.*\b10 to 15\b.*\b10\b"):
            next(batches)


@pytest.mark.parametrize("partition", [0, 5])
def test_a_topic_or_partition_that_does_not_exist(
    bootstrap: str, topic: TopicFactory, unique_name: Callable[[], str], partition: int
) -> None:
    name = topic() if partition else unique_name()
    with (
        reading(bootstrap, poll_timeout_ms=500) as client,
        pytest.raises(UnknownTopicOrPartitionError, match=name),
    ):
        read(client, fetch_range(name, 0, 5, partition=partition))


@pytest.mark.slow
def test_no_broker() -> None:
    started = time.monotonic()
    with (
        reading("127.0.0.1:1", poll_timeout_ms=500) as client,
        pytest.raises(
            BrokerUnreachableError,
            match=r"t-0\b.*\b3\b.*127\.0\.0\.1:1\b.*\b0\.5 s\b.*refused",
        ),
    ):
        read(client, fetch_range("t", 3, 5))
    assert time.monotonic() - started < 10


@pytest.mark.slow
def test_a_silent_broker(
    bootstrap: str, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "ROWS_PER_BATCH", 10)
    monkeypatch.setattr(fetch_module, "_MESSAGES_PER_CALL", 10)
    name = topic()
    write(bootstrap, name, [Record(value=b"%05000d" % n) for n in range(2_000)])
    with (
        proxy(bootstrap) as between,
        reading(
            between.address,
            poll_timeout_ms=3_000,
            queued_max_messages_kbytes="64",
            fetch_max_bytes="65536",
            message_max_bytes="65536",
            max_partition_fetch_bytes="65536",
            default_api_timeout_ms="1000",
        ) as client,
    ):
        batches = client.fetch(fetch_range(name, 0, 2_000), ("value",), COMMITTED)
        first = next(batches)
        between.silence()
        with pytest.raises(
            (FetchTimeoutError, BrokerUnreachableError), match=rf"{name}-0|{between.address}"
        ):
            for _ in batches:
                pass
    assert first.num_rows > 0


def test_a_damaged_batch(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 3)
    write(bootstrap, name, [Record(value=MARK)])
    write(bootstrap, name, [Record(value=b"v")] * 3)
    with (
        proxy(bootstrap, {MARK: MARK.upper()}) as between,
        reading(between.address) as client,
    ):
        assert read(client, fetch_range(name, 0, 3)) == 3, "the corrupt batch is after the range"
        with pytest.raises(CorruptBatchError, match="CRC") as caught:
            read(client, fetch_range(name, 0, 7))
        assert caught.value.offset == 3
        assert read(client, fetch_range(name, 4, 7)) == 3


@of_librdkafka
def test_header_key_that_is_not_utf_8(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v"), Record(value=b"v", headers=(("KEYKEY", b"x"),))])
    with (
        proxy(bootstrap, {b"KEYKEY": b"\xff\xfeY\xffEY"}) as between,
        reading(between.address, check_crcs="false") as client,
    ):
        with pytest.raises(KafkaError, match=r"UTF-8.*includeHeaders") as caught:
            read(client, fetch_range(name, 0, 2), "headers")
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == (name, 0, 1)
        assert read(client, fetch_range(name, 0, 2), "value") == 2


NO_HANDLERS = """
from tests.pyspark_kafka.client.records import reading
with reading("127.0.0.1:1", default_api_timeout_ms="500") as client:
    try:
        client.list_topics()
    except Exception as error:
        print(type(error).__name__)
"""


@of_librdkafka
@pytest.mark.slow
def test_librdkafka_writes_nothing_to_stderr() -> None:
    """The test runs in a new process without configured logging, like a Python worker."""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", NO_HANDLERS], cwd=root, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("BrokerUnreachableError\n", "")
