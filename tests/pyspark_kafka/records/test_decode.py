"""Tests of the decoding of batches, with each implementation."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.records import Decode, DecodeResult
from tests.pyspark_kafka.records.batches import (
    ABORT,
    ALL_COLUMNS,
    COMMIT,
    CONTROL,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    SNAPPY,
    TRANSACTIONAL,
    ZSTD,
    Row,
    batch,
    decode_request,
    marker,
    plain,
    raw_batch,
)

T = 1_700_000_000_000


def rows(decoded: DecodeResult) -> list[dict[str, Any]]:
    for found in decoded.batches:
        found.validate(full=True)
        assert found.num_rows > 0
    return [row for found in decoded.batches for row in found.to_pylist()]


def values(decoded: DecodeResult) -> list[bytes | None]:
    return [row["value"] for row in rows(decoded)]


def offsets(decoded: DecodeResult) -> list[int]:
    return [row["offset"] for row in rows(decoded)]


def test_every_column_of_a_record(decode: Decode) -> None:
    data = batch(
        [
            Row(
                key=b"k",
                value=b"v",
                headers=[(b"a", b"1"), (b"a", None), ("é".encode(), b"")],
                timestamp_delta=7,
            ),
            Row(key=None, value=None, offset_delta=4),
            Row(key=b"", value=b"", timestamp_delta=-5),
        ],
        base_offset=100,
    )
    found = decode(data, decode_request())
    assert found.batches[0].schema == SOURCE_SCHEMA

    def at(milliseconds: int) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)

    same = {"topic": "clicks", "partition": 3, "timestampType": 0}
    assert rows(found) == [
        {
            **same,
            "key": b"k",
            "value": b"v",
            "offset": 100,
            "timestamp": at(T + 7),
            "headers": [
                {"key": "a", "value": b"1"},
                {"key": "a", "value": None},
                {"key": "é", "value": b""},
            ],
        },
        {
            **same,
            "key": None,
            "value": None,
            "offset": 104,
            "timestamp": at(T),
            "headers": None,
        },
        {**same, "key": b"", "value": b"", "offset": 105, "timestamp": at(T - 5), "headers": None},
    ]
    assert found.next_offset == 106


def test_empty_data(decode: Decode) -> None:
    assert decode(b"", decode_request(5)) == DecodeResult(batches=[], next_offset=5)
    assert decode(plain([b"a"]), decode_request(5, 5)) == DecodeResult(batches=[], next_offset=5)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(decode: Decode, kind: Any) -> None:
    assert values(decode(kind(plain([b"a", b"b"])), decode_request())) == [b"a", b"b"]
    assert values(decode(memoryview(b"##" + plain([b"a"]))[2:], decode_request())) == [b"a"]


def test_gaps_between_batches(decode: Decode) -> None:
    data = plain([b"a", b"b"]) + plain([b"c"], base_offset=9) + plain([b"d"], base_offset=10)
    found = decode(data, decode_request())
    assert values(found) == [b"a", b"b", b"c", b"d"]
    assert offsets(found) == [0, 1, 9, 10]


@pytest.mark.parametrize("columns", [("value",), ("headers", "key"), ("offset", "topic")])
def test_columns_are_those_of_the_request(decode: Decode, columns: tuple[str, ...]) -> None:
    found = decode(batch([Row(key=b"k", headers=[(b"a", b"b")])]), decode_request(columns=columns))
    (only,) = found.batches
    assert only.schema == pa.schema([SOURCE_SCHEMA.field(name) for name in columns])
    everything = rows(decode(batch([Row(key=b"k", headers=[(b"a", b"b")])]), decode_request()))[0]
    assert rows(found) == [{name: everything[name] for name in columns}]


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_every_codec(decode: Decode, codec: int) -> None:
    expected = [bytes([65 + i % 26]) * 37 for i in range(500)]
    data = plain(expected, codec=codec) + plain([b"end"], base_offset=500)
    assert values(decode(data, decode_request())) == [*expected, b"end"]


def test_snappy_of_librdkafka_is_a_raw_block(decode: Decode) -> None:
    assert values(decode(plain([b"a" * 100], codec=SNAPPY, framed=False), decode_request())) == [
        b"a" * 100
    ]


class TestRange:
    DATA = b"".join(
        plain([b"%d" % (base + i) for i in range(10)], base_offset=base) for base in (0, 10, 20)
    )

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 30), (3, 27), (10, 20), (12, 15), (9, 11), (29, 30), (0, 1)]
    )
    def test_a_range_that_starts_and_ends_inside_batches(
        self, decode: Decode, start: int, end: int
    ) -> None:
        found = decode(self.DATA, decode_request(start, end))
        assert offsets(found) == list(range(start, end))
        assert found.next_offset == end

    def test_a_range_that_ends_after_the_data(self, decode: Decode) -> None:
        found = decode(self.DATA, decode_request(25, 99))
        assert (offsets(found), found.next_offset) == ([25, 26, 27, 28, 29], 30)

    def test_batches_after_the_range_are_not_checked(self, decode: Decode) -> None:
        damaged = b"\xff" * 100
        assert offsets(decode(self.DATA + damaged, decode_request(0, 30))) == list(range(30))
        behind = bytearray(plain([b"x"], base_offset=40))
        behind[-1] ^= 1
        found = decode(self.DATA + behind, decode_request(25, 40))
        assert (offsets(found), found.next_offset) == ([25, 26, 27, 28, 29], 40)

    def test_a_gap_at_the_end_of_the_range(self, decode: Decode) -> None:
        data = plain([b"a"]) + plain([b"b"], base_offset=9)
        assert decode(data, decode_request(0, 5)).next_offset == 5

    def test_next_offset_is_at_least_the_start(self, decode: Decode) -> None:
        found = decode(self.DATA[: len(self.DATA) // 3], decode_request(15, 30))
        assert found == DecodeResult(batches=[], next_offset=15)

    def test_records_before_the_range_in_compressed_batches(self, decode: Decode) -> None:
        data = plain([b"a", b"b", b"c"], codec=LZ4, base_offset=7)
        assert values(decode(data, decode_request(8, 9))) == [b"b"]


class TestPartOfABatch:
    def test_an_incomplete_batch_at_the_end_is_ignored(self, decode: Decode) -> None:
        whole, cut = plain([b"a"]), plain([b"b" * 50], base_offset=1)
        for size in range(len(cut)):
            found = decode(whole + cut[:size], decode_request())
            assert (values(found), found.next_offset) == ([b"a"], 1)

    def test_an_incomplete_batch_alone_does_not_change_the_offset(self, decode: Decode) -> None:
        found = decode(plain([b"a"], base_offset=6)[:-1], decode_request(6))
        assert found == DecodeResult(batches=[], next_offset=6)


class TestTimestamps:
    def test_log_append_time_is_the_max_timestamp(self, decode: Decode) -> None:
        data = batch(
            [Row(timestamp_delta=1), Row(timestamp_delta=2)],
            attributes=LOG_APPEND_TIME,
            max_timestamp=T + 50,
        ) + batch([Row(timestamp_delta=3)], base_offset=2)
        found = rows(decode(data, decode_request(columns=("timestamp", "timestampType"))))
        assert [row["timestampType"] for row in found] == [1, 1, 0]
        expected = [T + 50, T + 50, T + 3]
        assert [round(row["timestamp"].timestamp() * 1000) for row in found] == expected

    def test_no_timestamp_is_minus_one_millisecond(self, decode: Decode) -> None:
        data = batch([Row()], base_timestamp=-1)
        (found,) = decode(data, decode_request(columns=("timestamp", "timestampType"))).batches
        assert found.column(0).cast(pa.int64()).to_pylist() == [-1000]
        assert found.column(1).to_pylist() == [0]

    @pytest.mark.parametrize("milliseconds", [2**63 // 1000, -(2**63) // 1000 + 1])
    def test_the_largest(self, decode: Decode, milliseconds: int) -> None:
        data = batch([Row()], base_timestamp=milliseconds)
        (found,) = decode(data, decode_request(columns=("timestamp",))).batches
        assert found.column(0).cast(pa.int64()).to_pylist() == [milliseconds * 1000]


class TestTransactions:
    DATA = (
        plain([b"a1"], base_offset=0, producer_id=1, attributes=TRANSACTIONAL)
        + plain([b"b1"], base_offset=1, producer_id=2, attributes=TRANSACTIONAL)
        + plain([b"plain"], base_offset=2, producer_id=1)
        + marker(ABORT, base_offset=3, producer_id=1)
        + plain([b"a2"], base_offset=4, producer_id=1, attributes=TRANSACTIONAL)
        + marker(COMMIT, base_offset=5, producer_id=2)
        + marker(COMMIT, base_offset=6, producer_id=1)
        + plain([b"a3"], base_offset=7, producer_id=1, attributes=TRANSACTIONAL | LZ4)
        + marker(ABORT, base_offset=8, producer_id=1)
    )

    def test_aborted_batches_are_left_out(self, decode: Decode) -> None:
        found = decode(self.DATA, decode_request(aborted=[(1, 7), (1, 0)]))
        assert values(found) == [b"b1", b"plain", b"a2"]
        assert found.next_offset == 9

    def test_read_uncommitted_returns_all_but_markers(self, decode: Decode) -> None:
        data = self.DATA[: self.DATA.index(b"a2") + 3]
        assert values(decode(data, decode_request())) == [b"a1", b"b1", b"plain", b"a2"]

    def test_without_aborted_transactions_all_but_markers(self, decode: Decode) -> None:
        data = self.DATA[: self.DATA.index(b"a2") + 3]
        assert values(decode(data, decode_request(aborted=[]))) == [b"a1", b"b1", b"plain", b"a2"]

    @pytest.mark.parametrize(("first_offset", "is_left_out"), [(0, True), (2, True), (3, False)])
    def test_an_aborted_transaction_that_starts_inside_a_batch(
        self, decode: Decode, first_offset: int, is_left_out: bool
    ) -> None:
        data = plain([b"a", b"b", b"c"], producer_id=1, attributes=TRANSACTIONAL)
        found = decode(data, decode_request(aborted=[(1, first_offset)]))
        assert values(found) == ([] if is_left_out else [b"a", b"b", b"c"])

    def test_a_marker_before_the_range_counts(self, decode: Decode) -> None:
        found = decode(self.DATA, decode_request(4, 7, aborted=[(1, 0)]))
        assert values(found) == [b"a2"]

    def test_an_aborted_batch_is_not_decompressed(self, decode: Decode) -> None:
        garbage = raw_batch(
            b"garbage",
            count=1,
            last_offset_delta=0,
            producer_id=1,
            attributes=TRANSACTIONAL | ZSTD,
        )
        assert decode(garbage, decode_request(aborted=[(1, 0)])) == DecodeResult(
            batches=[], next_offset=1
        )

    def test_a_compressed_marker(self, decode: Decode) -> None:
        data = marker(ABORT, base_offset=0, producer_id=1, codec=GZIP) + plain(
            [b"a"], base_offset=1, producer_id=1, attributes=TRANSACTIONAL
        )
        assert values(decode(data, decode_request(aborted=[(1, 0)]))) == [b"a"]

    def test_an_emptied_control_batch_and_an_unknown_marker(self, decode: Decode) -> None:
        data = (
            raw_batch(b"", count=0, last_offset_delta=0, attributes=CONTROL, producer_id=1)
            + marker(9, base_offset=1, producer_id=1)
            + plain([b"a"], base_offset=2, producer_id=1, attributes=TRANSACTIONAL)
        )
        found = decode(data, decode_request(aborted=[(1, 0)]))
        assert found == DecodeResult(batches=[], next_offset=3)


class TestCompacted:
    def test_fewer_records_than_offsets(self, decode: Decode) -> None:
        data = batch([Row(offset_delta=2), Row(offset_delta=5)], last_offset_delta=9)
        found = decode(data, decode_request())
        assert (offsets(found), found.next_offset) == ([2, 5], 10)

    def test_an_empty_batch_advances_the_offset(self, decode: Decode) -> None:
        found = decode(raw_batch(b"", count=0, last_offset_delta=4), decode_request())
        assert found == DecodeResult(batches=[], next_offset=5)


class TestSplitting:
    def test_by_bytes_across_batches(self, decode: Decode) -> None:
        data = plain([b"x" * 40] * 5) + plain([b"y" * 40] * 5, base_offset=5)
        found = decode(data, decode_request(bytes_max=120))
        assert [b.num_rows for b in found.batches] == [3, 3, 3, 1]
        assert offsets(found) == list(range(10))

    def test_a_larger_row_has_its_own_batch(self, decode: Decode) -> None:
        data = plain([b"a", b"x" * 5000, b"b", b"c"])
        found = decode(data, decode_request(bytes_max=100))
        assert [b.num_rows for b in found.batches] == [1, 1, 2]
        assert values(found) == [b"a", b"x" * 5000, b"b", b"c"]

    def test_decoding_stops_after_the_record_batch_that_fills_batches_max(
        self, decode: Decode
    ) -> None:
        data = plain([b"x" * 40] * 5) + plain([b"y" * 40] * 5, base_offset=5)
        first = decode(data, decode_request(bytes_max=120, batches_max=1))
        assert (offsets(first), first.next_offset) == ([0, 1, 2, 3, 4], 5)
        second = decode(data, decode_request(first.next_offset, bytes_max=120, batches_max=1))
        assert (offsets(second), second.next_offset) == ([5, 6, 7, 8, 9], 10)
        assert decode(data, decode_request(bytes_max=120, batches_max=4)).next_offset == 10

    def test_continuing_keeps_markers(self, decode: Decode) -> None:
        def of_7(value: bytes, base_offset: int) -> bytes:
            return plain(
                [value] * 2, base_offset=base_offset, producer_id=7, attributes=TRANSACTIONAL
            )

        data = (
            of_7(b"aborted", 0)
            + marker(ABORT, base_offset=2, producer_id=7)
            + of_7(b"a", 3)
            + of_7(b"b", 5)
        )
        options: dict[str, Any] = {"aborted": [(7, 0)], "bytes_max": 1, "batches_max": 1}
        first = decode(data, decode_request(**options))
        assert (values(first), first.next_offset) == ([b"a"] * 2, 5)
        second = decode(data, decode_request(first.next_offset, **options))
        assert (values(second), second.next_offset) == ([b"b"] * 2, 7)

    def test_by_rows(self, decode: Decode) -> None:
        found = decode(plain([b""] * 25), decode_request(rows_max=10))
        assert [b.num_rows for b in found.batches] == [10, 10, 5]
        assert offsets(found) == list(range(25))

    def test_only_selected_columns_count(self, decode: Decode) -> None:
        data = batch([Row(key=b"k" * 10, value=b"v" * 100, headers=[(b"h", b"h")])] * 10)
        for columns, per_row in [(("offset",), 0), (("key",), 10), (("key", "headers"), 20)]:
            found = decode(data, decode_request(columns=columns, bytes_max=50))
            expected = 10 if per_row == 0 else 50 // per_row
            assert found.batches[0].num_rows == expected

    def test_empty_headers_count_too(self, decode: Decode) -> None:
        data = batch([Row(value=b"", headers=[(b"", None)] * 10)] * 4)
        found = decode(data, decode_request(columns=("headers",), bytes_max=160))
        assert [b.num_rows for b in found.batches] == [2, 2]
        assert rows(found) == [{"headers": [{"key": "", "value": None}] * 10}] * 4

    def test_nulls_on_both_sides_of_a_cut(self, decode: Decode) -> None:
        made = [Row(key=None if i % 3 else b"k", value=None if i % 2 else b"v") for i in range(50)]
        found = decode(batch(made), decode_request(rows_max=7, columns=("key", "value")))
        assert rows(found) == [{"key": row.key, "value": row.value} for row in made]


def test_all_columns_are_those_of_the_schema() -> None:
    assert list(ALL_COLUMNS) == SOURCE_SCHEMA.names
