"""Tests of the preparation of rows, which checks all rows before it sends any."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.errors import RowError
from pyspark_kafka.sink.rows import RowPreparation

TIMES = pa.timestamp("us", tz="Europe/Berlin")


class Partitions:
    """Partition counts by topic; the requested topics are recorded."""

    def __init__(self, **counts: int) -> None:
        self.counts: dict[str, int] = counts
        self.asked: list[str] = []

    def __call__(self, topic: str) -> int | None:
        self.asked.append(topic)
        return self.counts.get(topic)


def preparation(topic: str | None = "t", partitions: Partitions | None = None) -> RowPreparation:
    return RowPreparation(topic=topic, partition_count=partitions or Partitions(t=3, u=1))


def batch(types: Mapping[str, Any] | None = None, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            name: pa.array(values, (types or {}).get(name, DEFAULT_TYPES[name]))
            for name, values in columns.items()
        }
    )


DEFAULT_TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": TIMES,
    "headers": HEADERS_TYPE,
}


@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_text_is_its_utf_8_bytes(text: Any) -> None:
    prepared = preparation().prepare(
        batch({"value": text, "key": text}, value=["ü", None, ""], key=["k", None, "k"])
    )
    assert prepared.column("value").to_pylist() == ["ü".encode(), None, b""]
    assert prepared.column("key").to_pylist() == [b"k", None, b"k"]


def test_the_option_overrides_the_column_and_its_nulls() -> None:
    rows = preparation("t")
    prepared = rows.prepare(batch(value=[b"a", b"b"], topic=["u", None]))
    assert prepared.column("topic").to_pylist() == ["t", "t"]
    assert rows.rows_by_topic == {"t": 2}


def test_rows_are_counted_by_topic() -> None:
    rows = preparation(None)
    rows.prepare(batch(value=[b"a", b"b", b"c"], topic=["u", "t", "u"]))
    rows.prepare(batch(value=[b"a"], topic=["t"]))
    assert rows.rows_by_topic == {"t": 2, "u": 2}


def test_null_topic_is_refused() -> None:
    with pytest.raises(RowError, match=r"\b1\b.*\b2\b") as caught:
        preparation(None).prepare(batch(value=[b"a", b"b"], topic=["t", None]))
    assert caught.value.column == "topic"


@pytest.mark.parametrize(
    ("topic", "partition", "fact"),
    [
        ("t", 3, "0 to 2"),
        ("u", 1, "0 to 0"),
        ("t", -1, "0 to 2"),
        ("new", -7, "'new'"),
    ],
)
def test_partition_out_of_range_is_refused(topic: str, partition: int, fact: str) -> None:
    rows = batch(value=[b"a", b"b", b"c"], topic=["t", topic, "u"], partition=[2, partition, None])
    with pytest.raises(RowError) as caught:
        preparation(None).prepare(rows)
    error = caught.value
    assert (error.column, error.topic, error.partition) == ("partition", topic, partition)
    assert fact in str(error)


def test_partitions_in_range_and_null_are_kept() -> None:
    rows = preparation(None)
    prepared = rows.prepare(
        batch(value=[b"a", b"b", b"c"], topic=["t", "u", "u"], partition=[2, 0, None])
    )
    assert prepared.column("partition").to_pylist() == [2, 0, None]


def test_partition_of_an_unknown_topic_is_not_checked() -> None:
    prepared = preparation("new").prepare(batch(value=[b"a"], partition=[5]))
    assert prepared.num_rows == 1


def test_partition_count_is_cached_until_a_partition_exceeds_it() -> None:
    partitions = Partitions(t=1)
    rows = preparation("t", partitions)
    rows.prepare(batch(value=[b"a"], partition=[0]))
    rows.prepare(batch(value=[b"a"], partition=[0]))
    assert partitions.asked == ["t"]
    partitions.counts["t"] = 2
    rows.prepare(batch(value=[b"a"], partition=[1]))
    assert partitions.asked == ["t", "t"]


def test_partition_count_is_not_requested_without_partitions() -> None:
    partitions = Partitions(t=1)
    preparation("t", partitions).prepare(batch(value=[b"a"]))
    preparation("t", partitions).prepare(batch(value=[b"a"], partition=[None]))
    assert partitions.asked == []


def test_timestamps_become_milliseconds() -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123_999, tzinfo=UTC)
    prepared = preparation().prepare(batch(value=[b"a", b"b"], timestamp=[at, None]))
    column = prepared.column("timestamp")
    assert column.cast(pa.int64()).to_pylist() == [1_714_979_289_123, None]


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (datetime(1969, 12, 31, 23, 59, tzinfo=UTC), "1969-12-31 23:59"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "0000-12-31 23:00"),
    ],
)
def test_timestamp_before_1970_is_refused(at: datetime, text: str) -> None:
    with pytest.raises(RowError, match=text) as caught:
        preparation().prepare(batch(value=[b"a"], timestamp=[at]))
    assert caught.value.column == "timestamp"


@pytest.mark.parametrize("headers", [[[(None, b"x")]], [None, [("a", b"1"), None]]])
def test_header_without_key_is_refused(headers: list[Any]) -> None:
    with pytest.raises(RowError) as caught:
        preparation().prepare(batch(value=[b"a"] * len(headers), headers=headers))
    assert caught.value.column == "headers"


def test_headers_are_kept() -> None:
    headers = [[("a", b"1"), ("a", None)], None, []]
    prepared = preparation().prepare(batch(value=[b"a"] * 3, headers=headers))
    assert prepared.column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        [],
    ]


def test_only_the_rows_of_a_slice_are_checked() -> None:
    whole = batch(
        value=[b"a", b"b"], topic=[None, "t"], partition=[9, 0], headers=[[(None, b"x")], None]
    )
    assert preparation(None).prepare(whole.slice(1)).num_rows == 1
