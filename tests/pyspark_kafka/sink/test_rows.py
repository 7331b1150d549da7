"""Rows are checked before any is sent, and put into the producer's form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.errors import RowError
from pyspark_kafka.sink.rows import RowPreparation

TIMES = pa.timestamp("us", tz="Europe/Berlin")


class Partitions:
    """Partition counts by topic; notes what was asked."""

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


def test_a_null_topic() -> None:
    with pytest.raises(
        RowError, match=r"1 of 2 rows have a null in column 'topic'.*option 'topic'"
    ):
        preparation(None).prepare(batch(value=[b"a", b"b"], topic=["t", None]))


@pytest.mark.parametrize(
    ("topic", "partition", "message"),
    [
        ("t", 3, r"partition 3 of topic 't', which has 3 \(0 to 2\): correct the column"),
        ("u", 1, r"partition 1 of topic 'u', which has 1 \(0 to 0\)"),
        ("t", -1, r"partition -1 of topic 't', which has 3"),
        ("new", -7, r"partition -7 of topic 'new', which does not exist yet"),
    ],
)
def test_a_partition_out_of_range(topic: str, partition: int, message: str) -> None:
    rows = batch(value=[b"a", b"b", b"c"], topic=["t", topic, "u"], partition=[2, partition, None])
    with pytest.raises(RowError, match=message):
        preparation(None).prepare(rows)


def test_partitions_in_range_and_null() -> None:
    rows = preparation(None)
    prepared = rows.prepare(
        batch(value=[b"a", b"b", b"c"], topic=["t", "u", "u"], partition=[2, 0, None])
    )
    assert prepared.column("partition").to_pylist() == [2, 0, None]


def test_a_new_topic_is_left_to_the_broker() -> None:
    prepared = preparation("new").prepare(batch(value=[b"a"], partition=[5]))
    assert prepared.num_rows == 1


def test_a_topic_is_asked_about_once_and_again_when_it_may_have_grown() -> None:
    partitions = Partitions(t=1)
    rows = preparation("t", partitions)
    rows.prepare(batch(value=[b"a"], partition=[0]))
    rows.prepare(batch(value=[b"a"], partition=[0]))
    assert partitions.asked == ["t"]
    partitions.counts["t"] = 2
    rows.prepare(batch(value=[b"a"], partition=[1]))
    assert partitions.asked == ["t", "t"]


def test_without_the_column_no_partitions_are_asked_for() -> None:
    partitions = Partitions(t=1)
    preparation("t", partitions).prepare(batch(value=[b"a"]))
    preparation("t", partitions).prepare(batch(value=[b"a"], partition=[None]))
    assert partitions.asked == []


def test_times_become_milliseconds() -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123_999, tzinfo=UTC)
    prepared = preparation().prepare(batch(value=[b"a", b"b"], timestamp=[at, None]))
    column = prepared.column("timestamp")
    assert column.cast(pa.int64()).to_pylist() == [1_714_979_289_123, None]


def test_a_time_before_1970() -> None:
    with pytest.raises(RowError, match=r"timestamp 1969-12-31.*none before 1970"):
        preparation().prepare(
            batch(value=[b"a"], timestamp=[datetime(1969, 12, 31, 23, 59, tzinfo=UTC)])
        )


@pytest.mark.parametrize("headers", [[[(None, b"x")]], [None, [("a", b"1"), None]]])
def test_a_header_without_a_key(headers: list[Any]) -> None:
    with pytest.raises(RowError, match=r"header that is null or has a null key"):
        preparation().prepare(batch(value=[b"a"] * len(headers), headers=headers))


def test_headers_pass_as_they_are() -> None:
    headers = [[("a", b"1"), ("a", None)], None, []]
    prepared = preparation().prepare(batch(value=[b"a"] * 3, headers=headers))
    assert prepared.column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        [],
    ]


def test_a_slice_is_judged_by_its_own_rows() -> None:
    whole = batch(
        value=[b"a", b"b"], topic=[None, "t"], partition=[9, 0], headers=[[(None, b"x")], None]
    )
    assert preparation(None).prepare(whole.slice(1)).num_rows == 1
