"""Tests of the native producer's row buffer, which splits rows by topic and by size."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_kafka.client.delivery_errors import DeliveryErrors
from pyspark_kafka.client.native.row_buffer import (
    RowBuffer,
    by_topic,
    check_record_sizes,
    pieces_of,
)
from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.errors import RowError
from tests.pyspark_kafka.client.records import rows

SIZES = [10, 10, 200, 60, 10]
ERRORS = DeliveryErrors(bootstrap_servers="b:1", record_bytes_max=1_000)


def test_rows_by_topic_keep_their_order() -> None:
    topics = ["b", "a", "b", "c", "a", "b"]
    batch = rows("", [b"%d" % n for n in range(6)]).set_column(1, "topic", pa.array(topics))
    found = {name: of.column("value").to_pylist() for name, of in by_topic(batch)}
    assert found == {"a": [b"1", b"4"], "b": [b"0", b"2", b"5"], "c": [b"3"]}
    assert by_topic(rows("t", [b"x"]))[0][1].schema.names == ["value"]


def test_rows_of_a_rare_topic_do_not_keep_others_in_memory() -> None:
    topics = ["rare", *["often"] * 999]
    batch = rows("", [b"x" * 1_000] * 1_000).set_column(1, "topic", pa.array(topics))
    (rare,) = (of for name, of in by_topic(batch) if name == "rare")
    assert rare.get_total_buffer_size() < 2_000


@pytest.mark.parametrize("bytes_max", [1, 10, 100, 200, 500, 10_000])
def test_pieces_contain_all_rows_and_are_bounded(bytes_max: int) -> None:
    values = [b"x" * n * n for n in range(25)]
    ((_, batch),) = by_topic(rows("t", values))
    pieces = list(pieces_of(batch, bytes_max))
    assert [value for piece in pieces for value in piece.column("value").to_pylist()] == values
    assert all(piece.nbytes <= bytes_max or piece.num_rows == 1 for piece in pieces)
    assert len(pieces) <= 1 + 8 * batch.nbytes // bytes_max


def test_taken_rows_keep_their_order_and_are_bounded() -> None:
    buffer = RowBuffer()
    pieces = [by_topic(rows("t", [b"%d" % n, b"x" * size]))[0][1] for n, size in enumerate(SIZES)]
    for piece in pieces:
        buffer.add(piece, 0.0)
    taken = []
    while buffer.pieces:
        taken.append(buffer.take(100))
        assert buffer.bytes == sum(piece.nbytes for piece in buffer.pieces)
    assert pa.Table.from_batches(taken) == pa.Table.from_batches(pieces)
    assert [batch.num_rows // 2 for batch in taken] == [2, 1, 2]


def _checked(value: int, key: int, header: int) -> None:
    columns = {
        "value": pa.array([b"x", b"x" * value]),
        "key": pa.array([None, b"k" * key]),
        "headers": pa.array([None, [("h", b"y" * header), ("i", None)]], HEADERS_TYPE),
    }
    check_record_sizes(pa.RecordBatch.from_pydict(columns), "t", ERRORS)


def test_record_as_large_as_a_request_is_accepted() -> None:
    _checked(500, 200, 196)
    _checked(896, 0, 0)


@pytest.mark.parametrize("sizes", [(897, 0, 0), (500, 397, 0), (500, 200, 197), (0, 0, 897)])
def test_record_larger_than_a_request_is_rejected(sizes: tuple[int, int, int]) -> None:
    value, key, header = sizes
    with pytest.raises(RowError) as caught:
        _checked(*sizes)
    assert caught.value.topic == "t"
    assert all(str(size) in caught.value.what for size in (value, key, header + 2, 1000))


def test_null_headers_do_not_count() -> None:
    headers = pa.array([[("h", b"y" * 2_000)], [("h", b"y")]], HEADERS_TYPE)
    first_is_null = pa.py_buffer(b"\x02")
    masked = pa.Array.from_buffers(
        HEADERS_TYPE, 2, [first_is_null, headers.buffers()[1]], children=[headers.values]
    )
    assert masked.to_pylist()[0] is None
    columns = {"value": pa.array([b"x", b"x"]), "headers": masked}
    check_record_sizes(pa.RecordBatch.from_pydict(columns), "t", ERRORS)


def test_large_values_of_different_rows_are_accepted() -> None:
    columns = {"value": pa.array([b"x" * 800, b""]), "key": pa.array([b"", b"k" * 800])}
    check_record_sizes(pa.RecordBatch.from_pydict(columns), "t", ERRORS)
