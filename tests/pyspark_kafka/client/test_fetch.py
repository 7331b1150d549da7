"""Tests that a range is returned as Arrow batches with all its records, once and in order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.client.librdkafka import fetch as fetch_module
from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.errors import KafkaError
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, reading, write

pytestmark = pytest.mark.usefixtures("engine")
of_librdkafka = pytest.mark.parametrize("engine", ["librdkafka"], indirect=True)

COMMITTED = IsolationLevel.READ_COMMITTED
ALL_COLUMNS = tuple(SOURCE_SCHEMA.names)


def fetch_range(topic: str, start: int, end: int, partition: int = 0) -> FetchRange:
    return FetchRange(
        topic_partition=TopicPartition(topic, partition), start_offset=start, end_offset=end
    )


def rows(
    client: KafkaReadClient, wanted: FetchRange, columns: tuple[str, ...] = ("offset",)
) -> list[dict[str, Any]]:
    batches = list(client.fetch(wanted, columns, COMMITTED))
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_column(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    at = 1_700_000_000_123
    headers = (("a", b"1"), ("b", None), ("a", b""), ("ü", b"\xff"))
    records = [
        Record(value=b"v", key=b"k", partition=1, timestamp_ms=at, headers=headers),
        Record(value=None, key=None, partition=1, timestamp_ms=at),
        Record(value=b"", key=b"", partition=1, timestamp_ms=at),
    ]
    write(bootstrap, name, records)
    with reading(bootstrap) as client:
        (batch,) = client.fetch(fetch_range(name, 0, 3, partition=1), ALL_COLUMNS, COMMITTED)
    assert batch.schema.equals(SOURCE_SCHEMA)
    time = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    same = {"topic": name, "partition": 1, "timestamp": time, "timestampType": 0}
    assert batch.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "offset": 0,
            "headers": [{"key": k, "value": v} for k, v in headers],
            **same,
        },
        {"key": None, "value": None, "offset": 1, "headers": None, **same},
        {"key": b"", "value": b"", "offset": 2, "headers": None, **same},
    ]


def test_log_append_time_is_type_1(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    write(bootstrap, name, [Record(value=b"v", timestamp_ms=1)])
    with reading(bootstrap) as client:
        (row,) = rows(client, fetch_range(name, 0, 1), ("timestampType", "timestamp"))
    assert row["timestampType"] == 1
    assert row["timestamp"].year > 2000


@pytest.mark.parametrize(
    "columns", [("value",), ("offset", "key"), ("headers", "topic"), ALL_COLUMNS[::-1]]
)
def test_only_the_requested_columns_in_their_order(
    bootstrap: str, topic: TopicFactory, columns: tuple[str, ...]
) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")])
    with reading(bootstrap) as client:
        (batch,) = client.fetch(fetch_range(name, 0, 1), columns, COMMITTED)
    assert tuple(batch.schema.names) == columns
    assert batch.schema.types == [SOURCE_SCHEMA.field(name).type for name in columns]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1000), (0, 1), (999, 1000), (3, 997), (499, 501), (5, 5), (7, 3)]
)
def test_exactly_the_range(bootstrap: str, topic: TopicFactory, start: int, end: int) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"%d" % n) for n in range(1000)])
    with reading(bootstrap) as client:
        read = rows(client, fetch_range(name, start, end), ("offset", "value"))
    assert [(row["offset"], row["value"]) for row in read] == [
        (n, b"%d" % n) for n in range(start, end)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_range_inside_compressed_batches(bootstrap: str, topic: TopicFactory, codec: str) -> None:
    name = topic()
    records = [Record(value=b"%01000d" % n) for n in range(300)]
    write(bootstrap, name, records, compression_type=codec, linger_ms=50)
    with reading(bootstrap) as client:
        read = rows(client, fetch_range(name, 17, 283), ("value",))
    assert [row["value"] for row in read] == [r.value for r in records[17:283]]


@of_librdkafka
def test_batches_are_bounded_in_rows(
    bootstrap: str, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "ROWS_PER_BATCH", 100)
    monkeypatch.setattr(fetch_module, "_MESSAGES_PER_CALL", 30)
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 1000)
    with reading(bootstrap) as client:
        sizes = [b.num_rows for b in client.fetch(fetch_range(name, 0, 1000), ("key",), COMMITTED)]
    assert sum(sizes) == 1000
    assert max(sizes) < 130


@of_librdkafka
def test_batches_are_bounded_in_bytes(
    bootstrap: str, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_module, "BYTES_PER_BATCH", 10_000)
    name = topic()
    write(bootstrap, name, [Record(value=b"v" * 3_000)] * 50 + [Record(value=b"v" * 50_000)])
    with reading(bootstrap) as client:
        batches = list(client.fetch(fetch_range(name, 0, 51), ("value",), COMMITTED))
    sizes = [sum(len(value) for value in batch.column("value").to_pylist()) for batch in batches]
    assert sum(sizes) == 200_000
    assert sorted(sizes)[-2] <= 10_000, "only a batch with a single record may be larger"


def test_values_of_a_mebibyte(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(**{"max.message.bytes": "3000000"})
    records = [Record(value=bytes([n]) * 2**20) for n in range(20)]
    write(bootstrap, name, records, message_max_bytes=3_000_000)
    with reading(bootstrap, fetch_max_bytes="1048576") as client:
        batches = list(client.fetch(fetch_range(name, 0, 20), ("value",), COMMITTED))
    assert [v for b in batches for v in b.column("value").to_pylist()] == [r.value for r in records]


def test_reader_may_be_closed_before_its_end(bootstrap: str, topic: TopicFactory) -> None:
    name = topic()
    write(bootstrap, name, [Record(value=b"v")] * 30_000, linger_ms=20)
    with reading(bootstrap) as client:
        reader = client.fetch(fetch_range(name, 0, 30_000), ("offset",), COMMITTED)
        assert next(reader).num_rows > 0
        del reader
        assert len(rows(client, fetch_range(name, 29_990, 30_000))) == 10


def test_timestamp_outside_of_sparks_range_is_an_error(bootstrap: str, topic: TopicFactory) -> None:
    name = topic(**{"message.timestamp.after.max.ms": str(2**63 - 1)})
    nanoseconds = 1_700_000_000_000_000_000
    write(bootstrap, name, [Record(value=b"v"), Record(value=b"v", timestamp_ms=nanoseconds)])
    with reading(bootstrap) as client:
        with pytest.raises(KafkaError, match=rf"{name}-0.*{nanoseconds}"):
            rows(client, fetch_range(name, 0, 2), ("timestamp",))
        assert len(rows(client, fetch_range(name, 0, 2), ("timestampType",))) == 2


def test_the_schema_has_no_large_types() -> None:
    """Spark's reader supports only 32-bit offsets, so batches are bounded."""
    assert SOURCE_SCHEMA.field("value").type == pa.binary()
