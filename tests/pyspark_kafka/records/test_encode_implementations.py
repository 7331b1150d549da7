"""Tests that the encoding implementations agree with each other and with their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka.columns import HEADERS_TYPE
from pyspark_kafka.errors import RowError
from pyspark_kafka.records import Codec, EncodedBatch, Encoding
from pyspark_kafka.records.compression import LEVELS
from pyspark_kafka.records.partitioning import partition_of_key
from tests.pyspark_kafka.records.batches import HEADER_BYTES, Row, record_body, sized
from tests.pyspark_kafka.records.encoded import (
    NO_PRODUCER,
    NOW,
    encoding,
    encoding_implementation,
    header,
    records,
    state,
)
from tests.pyspark_kafka.records.implementations import IMPLEMENTATIONS, needs_kernel

PARTITIONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    key: bytes | None
    value: bytes | None
    partition: int | None
    timestamp: int | None
    headers: list[tuple[str, bytes | None]] | None


# Sizes near the boundaries of varints and of the words that the kernel copies.
payloads = (
    st.none()
    | st.binary(max_size=70)
    | st.sampled_from([31, 32, 33, 63, 64, 65, 511, 512, 513, 8191, 8192, 20_000]).map(bytes)
)
given_rows = st.lists(
    st.builds(
        Given,
        key=payloads,
        value=payloads,
        partition=st.none() | st.integers(0, PARTITIONS - 1),
        timestamp=st.none() | st.integers(NOW - 9000, NOW + 9000) | st.integers(0, 2**47),
        headers=st.none() | st.lists(st.tuples(st.text(max_size=9), payloads), max_size=3),
    ),
    max_size=25,
)


@st.composite
def settings_of(draw: st.DrawFn) -> Encoding:
    codec = draw(st.sampled_from(Codec))
    level = draw(st.none() | st.sampled_from(LEVELS[codec])) if LEVELS[codec] else None
    sequences = st.dictionaries(
        st.integers(0, PARTITIONS - 1), st.integers(0, 99) | st.integers(2**31 - 20, 2**31 - 1)
    )
    unkeyed = st.lists(st.integers(0, PARTITIONS - 1), min_size=1, max_size=4)
    is_transactional = draw(st.booleans())
    return encoding(
        partition_count=PARTITIONS,
        unkeyed=tuple(draw(unkeyed)),
        producer=draw(
            st.just(NO_PRODUCER)
            | sequences.map(lambda made: state(made, is_transactional=is_transactional))
        ),
        batch_bytes_max=draw(st.sampled_from([1, 100, 150, 600, 9000, 1_000_000])),
        codec=codec,
        level=level,
    )


@st.composite
def arrow(draw: st.DrawFn, rows: Sequence[Given], *, types: bool = True) -> pa.RecordBatch:
    """Return the rows as a slice of a larger batch, whose headers are also a slice."""
    before = draw(st.integers(0, 9))
    around = [Given(key=b"#", value=b"##", partition=9, timestamp=9, headers=[("#", None)])]
    padded = [*around * before, *rows, *around * draw(st.integers(0, 2))]
    kinds = st.sampled_from([pa.binary(), pa.large_binary()] if types else [pa.binary()])
    columns: dict[str, Any] = {
        "key": pa.array([row.key for row in padded], draw(kinds)),
        "value": pa.array([row.value for row in padded], draw(kinds)),
        "partition": pa.array([row.partition for row in padded], pa.int32()),
        "timestamp": pa.array(
            [row.timestamp for row in padded], draw(st.sampled_from([pa.int64(), STAMPS]))
        ),
        "headers": pa.array([row.headers for row in padded], HEADERS_TYPE),
    }
    for name in columns:
        if all(getattr(row, name) in (None, []) for row in rows) and draw(st.booleans()):
            columns = {kept: column for kept, column in columns.items() if kept != name}
    columns["topic"] = pa.array(["clicks"] * len(padded))
    return pa.RecordBatch.from_pydict(columns).slice(before, len(rows))


STAMPS = pa.timestamp("ms", tz="UTC")


@needs_kernel
@settings(max_examples=120, deadline=None)
@given(rows=given_rows, options=settings_of(), data=st.data())
def test_the_same_bytes(rows: list[Given], options: Encoding, data: st.DataObject) -> None:
    batch = data.draw(arrow(rows))
    assert encoding_implementation("cython")(batch, options) == encoding_implementation("pure")(
        batch, options
    )


@needs_kernel
def test_the_same_bytes_of_many_rows() -> None:
    made = pa.RecordBatch.from_pylist(
        [
            {
                "key": None if i % 7 == 0 else b"k%d" % (i % 900),
                "value": None if i % 11 == 0 else b"v" * (i * i % 700),
                "timestamp": None if i % 13 == 0 else NOW + i * i,
                "headers": [(f"h{j}", None if j else b"x" * (i % 50)) for j in range(i % 4)],
            }
            for i in range(4000)
        ],
        schema=pa.schema(
            {
                "key": pa.binary(),
                "value": pa.binary(),
                "timestamp": STAMPS,
                "headers": HEADERS_TYPE,
            }
        ),
    )
    for bytes_max in (20_000, 1_000_000):
        options = encoding(partition_count=50, unkeyed=(3, 4), batch_bytes_max=bytes_max)
        assert encoding_implementation("cython")(made, options) == encoding_implementation("pure")(
            made, options
        )


@needs_kernel
@settings(max_examples=30, deadline=None)
@given(partitions=st.lists(st.none() | st.integers(-2, 9) | st.integers(-(2**31), 2**31 - 1)))
def test_the_same_errors(partitions: list[int | None]) -> None:
    column = pa.array(partitions, pa.int32())
    rows = pa.RecordBatch.from_pydict({"partition": column})
    outcomes: list[list[EncodedBatch] | str] = []
    for name in ("cython", "pure"):
        try:
            outcomes.append(encoding_implementation(name)(rows, encoding()))
        except RowError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@settings(max_examples=60, deadline=None)
@given(rows=given_rows, options=settings_of(), data=st.data())
def test_round_trip(name: str, rows: list[Given], options: Encoding, data: st.DataObject) -> None:
    batches = encoding_implementation(name)(data.draw(arrow(rows)), options)
    expected = placed(rows, options)
    assert [batch.partition for batch in batches] == [partition for partition, _ in expected]
    sequences = dict(options.producer.next_sequences)
    for batch, (partition, its_rows) in zip(batches, expected, strict=True):
        assert records(batch) == [
            {
                "key": row.key,
                "value": row.value,
                "headers": [{"key": key, "value": value} for key, value in row.headers or ()]
                or None,
                "timestamp": NOW if row.timestamp is None else row.timestamp,
            }
            for row in its_rows
        ]
        found = header(batch)
        stamps = [NOW if row.timestamp is None else row.timestamp for row in its_rows]
        assert (found["base_timestamp"], found["max_timestamp"]) == (stamps[0], max(stamps))
        assert found["attributes"] == options.codec | 16 * options.producer.is_transactional
        if options.producer is not NO_PRODUCER:
            sequence = sequences.get(partition, 0)
            assert found["base_sequence"] == batch.base_sequence == sequence
            sequences[partition] = (sequence + len(its_rows)) % 2**31


def placed(rows: Sequence[Given], options: Encoding) -> list[tuple[int, list[Given]]]:
    """Return the rows of each batch according to `Encoding`, with the sizes of encoded records."""
    batches: list[tuple[int, list[Given]]] = []
    open_at: dict[int, int] = {}
    turn = 0

    def fits(partition: int, row: Given) -> bool:
        its_rows = [*batches[open_at[partition]][1], row] if partition in open_at else [row]
        return len(its_rows) == 1 or plain_size(its_rows) <= options.batch_bytes_max

    for row in rows:
        partition = row.partition
        if partition is None and row.key is not None:
            partition = partition_of_key(row.key, PARTITIONS)
        if partition is None:
            if not fits(options.unkeyed[turn % len(options.unkeyed)], row):
                turn += 1
            partition = options.unkeyed[turn % len(options.unkeyed)]
        if partition not in open_at or not fits(partition, row):
            open_at[partition] = len(batches)
            batches.append((partition, []))
        batches[open_at[partition]][1].append(row)
    return batches


def plain_size(rows: Sequence[Given]) -> int:
    stamps = [NOW if row.timestamp is None else row.timestamp for row in rows]
    size = HEADER_BYTES
    for index, (row, stamp) in enumerate(zip(rows, stamps, strict=True)):
        headers = [(key.encode(), value) for key, value in row.headers or ()]
        made = Row(key=row.key, value=row.value, headers=headers, timestamp_delta=stamp - stamps[0])
        size += len(sized(record_body(made, index)))
    return size
