"""Tests of row checksums: both implementations, and the values that change a sum."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.records import IMPLEMENTATION, checksums
from pyspark_kafka.records.checksums import CHECKSUMS, RowChecksums
from pyspark_kafka.sink.rows import RowPreparation
from tests.pyspark_kafka.records.implementations import IMPLEMENTATIONS, needs_kernel

STAMPS = pa.timestamp("ms", tz="UTC")
Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    topic: str | None = "clicks"
    partition: int | None = None
    timestamp: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] | None = None

    @property
    def identity(self) -> Given:
        """The row with null instead of empty headers, because Kafka does not distinguish them."""
        return replace(self, headers=self.headers or None)


def checksum_implementation(name: str) -> RowChecksums:
    module = "_kernel" if name == "cython" else "_pure_checksums"
    found: RowChecksums = importlib.import_module(f"pyspark_kafka.records.{module}").row_checksums
    return found


@pytest.fixture(params=IMPLEMENTATIONS)
def row_checksums(request: pytest.FixtureRequest) -> RowChecksums:
    return checksum_implementation(request.param)


# Sizes near the boundaries of words, blocks and stripes.
payloads = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from([47, 48, 49, 63, 64, 65, 79, 80, 127, 128, 129, 200]).flatmap(
        lambda size: st.binary(min_size=size, max_size=size)
    )
)
given_row = st.builds(
    Given,
    topic=st.none() | st.sampled_from(["", "clicks", "a", "b" * 70]),
    partition=st.none() | st.integers(0, 2**31 - 1),
    timestamp=st.none() | st.integers(0, 2**63 - 1),
    key=payloads,
    value=payloads,
    headers=st.none() | st.lists(st.tuples(st.text(max_size=9), payloads), max_size=3).map(tuple),
)
given_rows = st.lists(given_row, max_size=12)


def plain(rows: Sequence[Given]) -> pa.RecordBatch:
    """Return the rows with all columns and their usual types."""
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array([row.topic for row in rows], pa.string()),
            "partition": pa.array([row.partition for row in rows], pa.int32()),
            "timestamp": pa.array([row.timestamp for row in rows], pa.int64()),
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "headers": pa.array([row.headers for row in rows], HEADERS_TYPE),
        }
    )


@st.composite
def in_any_type(draw: st.DrawFn, rows: Sequence[Given]) -> pa.RecordBatch:
    """Return the rows as a slice of a larger batch, with other types and without empty columns."""
    before = draw(st.integers(0, 9))
    around = Given(
        topic="#", partition=9, timestamp=9, key=b"#", value=b"##", headers=(("#", b""),)
    )
    padded = [around] * before + [*rows] + [around] * draw(st.integers(0, 2))
    batch = plain(padded)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["topic"] = draw(_topics(columns["topic"]))
    for name in ("key", "value"):
        columns[name] = columns[name].cast(draw(st.sampled_from([pa.binary(), pa.large_binary()])))
    columns["timestamp"] = columns["timestamp"].cast(
        draw(st.sampled_from([pa.int64(), pa.timestamp("ms"), STAMPS]))
    )
    columns["headers"] = columns["headers"].cast(draw(st.sampled_from(HEADER_TYPES)))
    for name in list(columns):
        if all(getattr(row, name) in (None, ()) for row in rows) and draw(st.booleans()):
            del columns[name]
    if not columns:
        columns["value"] = batch.column("value")
    return pa.RecordBatch.from_pydict(columns).slice(before, len(rows))


HEADER_TYPES = [
    HEADERS_TYPE,
    pa.list_(pa.struct({"key": pa.large_string(), "value": pa.large_binary()})),
]


@st.composite
def _topics(draw: st.DrawFn, column: Any) -> Any:
    kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]))
    cast = column.cast(kind)
    if draw(st.booleans()):
        return cast
    index = draw(st.sampled_from([pa.int32(), pa.int8(), pa.uint16(), pa.int64()]))
    encoded = cast.dictionary_encode(null_encoding=draw(st.sampled_from(["mask", "encode"])))
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(index), encoded.dictionary)


def one(row_checksums: RowChecksums, row: Given) -> int:
    return row_checksums(plain([row]))


def test_row_checksums_is_of_the_selected_implementation() -> None:
    assert checksums.row_checksums is checksum_implementation(IMPLEMENTATION)


@pytest.mark.slow
@needs_kernel
@settings(max_examples=300, deadline=None)
@given(rows=given_rows, data=st.data())
def test_the_implementations_agree(rows: list[Given], data: st.DataObject) -> None:
    batch = data.draw(in_any_type(rows))
    assert checksum_implementation("cython")(batch) == checksum_implementation("pure")(batch)


@needs_kernel
@pytest.mark.parametrize("is_last", [False, True])
def test_the_implementations_agree_on_every_size(is_last: bool) -> None:
    """The field is at the end of the memory, or the data of another field follows."""
    payload = random.Random(1).randbytes(300)
    for size in range(300):
        values = [payload[:size]] if is_last else [payload[:size], payload]
        batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())}).slice(0, 1)
        assert checksum_implementation("cython")(batch) == checksum_implementation("pure")(batch), (
            size
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@settings(max_examples=150, deadline=None)
@given(rows=given_rows, data=st.data())
def test_types_order_and_batches_do_not_affect_the_sum(
    name: str, rows: list[Given], data: st.DataObject
) -> None:
    row_checksums = checksum_implementation(name)
    expected = sum(one(row_checksums, row.identity) for row in rows) % CHECKSUMS
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [shuffled[:cut], shuffled[cut:]]
    sums = [row_checksums(data.draw(in_any_type(part))) for part in parts]
    assert sum(sums) % CHECKSUMS == expected
    assert all(0 <= one_sum < CHECKSUMS for one_sum in sums)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@settings(max_examples=300, deadline=None)
@given(first=given_row, second=given_row)
def test_other_rows_have_other_sums(name: str, first: Given, second: Given) -> None:
    assume(first.identity != second.identity)
    row_checksums = checksum_implementation(name)
    assert one(row_checksums, first) != one(row_checksums, second)


BASE = Given(
    partition=3,
    timestamp=1_700_000_000_000,
    key=b"key",
    value=b"value",
    headers=(("a", b"1"), ("b", b"2")),
)
OTHERS: dict[str, Given] = {
    "another topic": replace(BASE, topic="clocks"),
    "another partition": replace(BASE, partition=4),
    "no partition": replace(BASE, partition=None),
    "another timestamp": replace(BASE, timestamp=1_700_000_000_001),
    "no timestamp": replace(BASE, timestamp=None),
    "another key": replace(BASE, key=b"kez"),
    "no key": replace(BASE, key=None),
    "an empty key": replace(BASE, key=b""),
    "another value": replace(BASE, value=b"valuf"),
    "no value": replace(BASE, value=None),
    "an empty value": replace(BASE, value=b""),
    "a zero behind the value": replace(BASE, value=b"value\0"),
    "bytes moved from key to value": replace(BASE, key=b"ke", value=b"yvalue"),
    "key and value in each other's place": replace(BASE, key=b"value", value=b"key"),
    "a key alone": replace(BASE, key=b"alone", value=None),
    "a value alone": replace(BASE, key=None, value=b"alone"),
    "neither key nor value": replace(BASE, key=None, value=None),
    "no headers": replace(BASE, headers=None),
    "what was a key is a header": replace(
        BASE, key=None, headers=(("key", b"value"), *(BASE.headers or ())), value=None
    ),
    "fewer headers": replace(BASE, headers=BASE.headers[:1] if BASE.headers else None),
    "headers in another order": replace(BASE, headers=(("b", b"2"), ("a", b"1"))),
    "another header key": replace(BASE, headers=(("a", b"1"), ("c", b"2"))),
    "another header value": replace(BASE, headers=(("a", b"1"), ("b", b"3"))),
    "no header value": replace(BASE, headers=(("a", b"1"), ("b", None))),
    "an empty header value": replace(BASE, headers=(("a", b"1"), ("b", b""))),
    "bytes moved between headers": replace(BASE, headers=(("a", b"1b"), ("", b"2"))),
}


@pytest.mark.parametrize("what", OTHERS)
def test_each_field_counts(row_checksums: RowChecksums, what: str) -> None:
    sums = {one(row_checksums, row) for row in (BASE, OTHERS[what])}
    assert len(sums) == 2


def test_all_sums_differ(row_checksums: RowChecksums) -> None:
    assert len({one(row_checksums, row) for row in (BASE, *OTHERS.values())}) == len(OTHERS) + 1


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 128, 200, 1000])
def test_every_bit_counts(row_checksums: RowChecksums, size: int) -> None:
    payload = bytearray(random.Random(size).randbytes(size))
    found = {one(row_checksums, Given(value=bytes(payload)))}
    for position in range(size):
        for bit in (0, 7):
            payload[position] ^= 1 << bit
            found.add(one(row_checksums, Given(value=bytes(payload))))
            payload[position] ^= 1 << bit
    assert len(found) == 2 * size + 1


def test_values_that_moved_to_other_rows_change_the_sum(row_checksums: RowChecksums) -> None:
    """Each column has the same values, but in other rows."""
    straight = [Given(key=b"1", value=b"x"), Given(key=b"2", value=b"y")]
    crossed = [Given(key=b"1", value=b"y"), Given(key=b"2", value=b"x")]
    assert row_checksums(plain(straight)) != row_checksums(plain(crossed))


def test_repeated_rows_count_each_time(row_checksums: RowChecksums) -> None:
    once = one(row_checksums, BASE)
    assert row_checksums(plain([BASE] * 3)) == 3 * once % CHECKSUMS
    assert row_checksums(plain([])) == 0


def test_null_and_empty_lists_of_headers_are_the_same(row_checksums: RowChecksums) -> None:
    of_null, of_none = (one(row_checksums, replace(BASE, headers=h)) for h in (None, ()))
    without = plain([BASE]).drop_columns(["headers"])
    assert of_null == of_none == row_checksums(without)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Given(topic="t"), 0x6D8570A4CE543ACC),
        (BASE, 0x7391AA32CD93FFA6),
        (Given(topic="t", value=bytes(range(200)), headers=(("h", None),)), 0xFB8FD467C009B30E),
    ],
    ids=["nothing", "everything", "long"],
)
def test_sums_are_stable_across_releases(
    row_checksums: RowChecksums, row: Given, expected: int
) -> None:
    """Decisions contain checksums, so another checksum would need another decision format."""
    assert one(row_checksums, row) == expected


def test_prepared_rows_have_checksums(row_checksums: RowChecksums) -> None:
    """The rows have all of Spark's column types, and a topic from the option or the column."""
    made = plain([BASE, replace(BASE, key=None)])
    stamps = made.column("timestamp").cast(STAMPS)
    made = made.set_column(2, "timestamp", stamps.cast(pa.timestamp("us", tz="UTC")))
    as_text = made.set_column(4, "value", made.column("value").cast(pa.large_string()))
    from_column = RowPreparation(topic=None, partition_count=lambda _: 9).prepare(made)
    from_option = RowPreparation(topic="clicks", partition_count=lambda _: 9).prepare(as_text)
    expected = row_checksums(plain([BASE, replace(BASE, key=None)]))
    assert row_checksums(from_column) == row_checksums(from_option) == expected
