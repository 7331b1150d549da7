"""What cannot be read is an error in bounded time that says which partition, where and why."""

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
from pyspark_kafka.client.port import KafkaReads
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


def read(client: KafkaReads, wanted: FetchRange, *columns: str) -> int:
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
            match=rf"{name}-0 .*offsets 1 to 8 .*starts at 4, .*high watermark 10",
        ),
    ):
        read(client, fetch_range(name, 1, 8))


def test_offsets_beyond_the_end(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 10)
    with (
        reading(bootstrap) as client,
        pytest.raises(OffsetOutOfRangeError, match=rf"{name}-0 .*12 to 15 .* 10"),
    ):
        read(client, fetch_range(name, 12, 15))


def test_an_end_that_the_log_does_not_reach(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 10)
    with reading(bootstrap, poll_timeout_ms=3_000) as client:
        batches = client.fetch(fetch_range(name, 5, 15), ("offset",), COMMITTED)
        assert next(batches).column("offset").to_pylist() == [5, 6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRangeError, match=rf"{name}-0 .*10 to 15 .* 10"):
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


def test_no_broker() -> None:
    started = time.monotonic()
    with (
        reading("127.0.0.1:1", poll_timeout_ms=500) as client,
        pytest.raises(
            BrokerUnreachableError,
            match=r"t-0 at offset 3 .*127.0.0.1:1 did not .* within 0.5 s .*refused",
        ),
    ):
        read(client, fetch_range("t", 3, 5))
    assert time.monotonic() - started < 10


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
            (FetchTimeoutError, BrokerUnreachableError), match=rf"{name}-0|did not answer"
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
        assert read(client, fetch_range(name, 0, 3)) == 3, "the damage lies behind"
        with pytest.raises(CorruptBatchError, match=r"offset 3 .*CRC"):
            read(client, fetch_range(name, 0, 7))
        assert read(client, fetch_range(name, 4, 7)) == 3


@of_librdkafka
def test_header_key_that_is_not_utf_8(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v"), Record(value=b"v", headers=(("KEYKEY", b"x"),))])
    with (
        proxy(bootstrap, {b"KEYKEY": b"\xff\xfeY\xffEY"}) as between,
        reading(between.address, check_crcs="false") as client,
    ):
        with pytest.raises(KafkaError, match=rf"offset 1 of {name}-0 .*UTF-8.*includeHeaders"):
            read(client, fetch_range(name, 0, 2), "headers")
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
def test_librdkafka_writes_nothing_to_stderr() -> None:
    """In a process of its own, whose logging nobody has set up, as in a Python worker."""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", NO_HANDLERS], cwd=root, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("BrokerUnreachableError\n", "")
