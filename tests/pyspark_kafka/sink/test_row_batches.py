"""Tests that rows are converted to the same Arrow batches that newer Spark versions pass."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.sink.row_batches import arrow_batches

HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
SCHEMA = (
    StructType()
    .add("headers", HEADERS)
    .add("key", StringType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("timestamp", TimestampType())
)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the worker's time zone, in which Spark returns datetimes without a time zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_every_column() -> None:
    rows = [
        Row(
            headers=[Row(key="a", value=bytearray(b"1")), Row(key="b", value=None)],
            key="k",
            value=bytearray(b"v"),
            topic="t",
            partition=1,
            timestamp=datetime(2024, 5, 6, 7, 8, 9, 123_456),  # noqa: DTZ001
        ),
        Row(headers=None, key=None, value=None, topic=None, partition=None, timestamp=None),
    ]
    (batch,) = arrow_batches(rows, SCHEMA)
    assert batch.schema.types == [
        HEADERS_TYPE,
        pa.string(),
        pa.binary(),
        pa.string(),
        pa.int32(),
        pa.timestamp("us", tz="UTC"),
    ]
    first, second = batch.to_pylist()
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (first["key"], first["value"]) == ("k", b"v")
    assert first["timestamp"].isoformat() == "2024-05-06T05:08:09.123456+00:00"
    assert set(second.values()) == {None}


def test_batches_are_bounded_and_nothing_is_lost() -> None:
    schema = StructType().add("value", StringType())
    rows = (Row(value=str(number)) for number in range(2_500))
    batches = list(arrow_batches(rows, schema))
    assert [batch.num_rows for batch in batches] == [1_000, 1_000, 500]
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert values == [str(number) for number in range(2_500)]


def test_no_rows_are_no_batches() -> None:
    assert list(arrow_batches([], SCHEMA)) == []
