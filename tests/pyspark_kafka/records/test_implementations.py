"""Tests that all implementations return the same rows and Arrow batches, or the same error."""

from __future__ import annotations

import struct

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka.records import DecodeRequest, DecodeResult
from tests.pyspark_kafka.records.batches import (
    ABORT,
    ALL_COLUMNS,
    COMMIT,
    CONTROL,
    CRC_POSITION,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Row,
    batch,
    decode_request,
    marker,
    with_crc,
)
from tests.pyspark_kafka.records.implementations import needs_kernel, outcome

pytestmark = needs_kernel


def same(data: bytes, options: DecodeRequest) -> None:
    kernel, pure = outcome("cython", data, options), outcome("pure", data, options)
    assert kernel == pure
    if isinstance(kernel, DecodeResult):
        assert isinstance(pure, DecodeResult)
        assert [b.schema for b in kernel.batches] == [b.schema for b in pure.batches]


payloads = st.none() | st.binary(max_size=70) | st.sampled_from([b"x" * 300, b"y" * 5000])
header_keys = st.text(max_size=8).map(str.encode) | st.binary(max_size=4)
rows = st.builds(
    Row,
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(header_keys, payloads), max_size=3),
    timestamp_delta=st.integers(-10_000, 10_000) | st.integers(-(2**63), 2**63 - 1),
)
sound_rows = st.builds(
    Row,
    key=payloads,
    value=payloads,
    headers=st.lists(st.tuples(st.text(max_size=8).map(str.encode), payloads), max_size=3),
    timestamp_delta=st.integers(-10_000, 10_000),
)


# Mostly common timestamps, otherwise timestamps near the limits of Spark and of int64.
EDGE = 2**63 // 1000
timestamps = st.just(1_700_000_000_000) | st.sampled_from(
    [-1, 0, EDGE - 2**20, EDGE, EDGE + 1, -EDGE + 2**20, -EDGE, -EDGE - 1, 2**63 - 1, -(2**63)]
)


@st.composite
def logs(draw: st.DrawFn, rows: st.SearchStrategy[Row]) -> list[bytes]:
    """Draw the batches of a log: ascending offsets with gaps, some batches in transactions."""
    offset, made = draw(st.integers(0, 20)), []
    for _ in range(draw(st.integers(1, 5))):
        producer_id = draw(st.integers(1, 3))
        if draw(st.integers(0, 4)) == 0:
            kind = draw(st.sampled_from([ABORT, COMMIT, 7]))
            made.append(marker(kind, base_offset=offset, producer_id=producer_id))
            offset += 1
            continue
        listed = draw(st.lists(rows, max_size=6))
        last = max(0, len(listed) - 1) + draw(st.integers(0, 3))
        made.append(
            batch(
                listed,
                codec=draw(st.sampled_from([0, 0, 1, 2, 3, 4])),
                base_offset=offset,
                producer_id=producer_id,
                attributes=draw(st.sampled_from([0, LOG_APPEND_TIME, TRANSACTIONAL])),
                last_offset_delta=last,
                base_timestamp=draw(timestamps),
                max_timestamp=draw(timestamps),
            )
        )
        offset += last + 1 + draw(st.integers(0, 2))
    return made


@st.composite
def options(draw: st.DrawFn) -> DecodeRequest:
    start = draw(st.integers(0, 25))
    aborted = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=4)
    columns = st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, unique=True)
    return decode_request(
        start_offset=start,
        end_offset=start + draw(st.integers(0, 50)),
        columns=tuple(draw(columns | st.just(list(ALL_COLUMNS)))),
        aborted=draw(st.none() | aborted),
        bytes_max=draw(st.sampled_from([1, 100, 1000, 1 << 20])),
        rows_max=draw(st.sampled_from([1, 3, 9, 1000])),
        decompressed_bytes_max=draw(st.sampled_from([500, 1 << 20])),
        batches_max=draw(st.sampled_from([1, 2, 1000])),
    )


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(made=logs(sound_rows), options=options())
def test_valid_logs(made: list[bytes], options: DecodeRequest) -> None:
    same(b"".join(made), options)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(made=logs(rows), options=options(), data=st.data())
def test_truncated_logs_and_values_out_of_range(
    made: list[bytes], options: DecodeRequest, data: st.DataObject
) -> None:
    joined = b"".join(made)
    same(joined[: data.draw(st.integers(0, len(joined)))], options)


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Flip bits, insert invalid numbers, remove or repeat parts."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        if not damaged:
            break
        # Half of the changes are in the header or the first record, which contain the numbers.
        near = st.integers(0, min(len(damaged), HEADER_BYTES + 16) - 1)
        at = draw(near | st.integers(0, len(damaged) - 1))
        how = draw(st.sampled_from(["flip", "replace", "cut", "double"]))
        if how == "flip":
            damaged[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "replace":
            new = draw(
                st.sampled_from(
                    [
                        b"\xff" * 10,
                        b"\x80" * 10,
                        b"\xff" * 9 + b"\x01",
                        b"\0" * 4,
                        b"\x7f\xff\xff\xff",
                    ]
                )
                | st.binary(min_size=1, max_size=4)
            )
            damaged[at : at + len(new)] = new
        elif how == "cut":
            del damaged[at : at + draw(st.integers(1, 8))]
        else:
            damaged[at:at] = damaged[at : at + draw(st.integers(1, 8))]
    return bytes(damaged)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(made=logs(sound_rows), options=options(), data=st.data())
def test_mutated_logs(made: list[bytes], options: DecodeRequest, data: st.DataObject) -> None:
    same(data.draw(mutated(b"".join(made))), options)


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(made=logs(sound_rows), options=options(), data=st.data())
def test_mutated_batches_with_a_valid_crc(
    made: list[bytes], options: DecodeRequest, data: st.DataObject
) -> None:
    """The batches are corrupt but have a valid CRC, as from a faulty or malicious producer."""
    at = data.draw(st.integers(0, len(made) - 1))
    damaged = data.draw(mutated(made[at]))
    if data.draw(st.booleans()) and len(damaged) >= HEADER_BYTES:
        damaged = damaged[:8] + struct.pack(">i", len(damaged) - 12) + damaged[12:]
    if len(damaged) > CRC_POSITION + 4:
        damaged = with_crc(damaged)
    same(b"".join([*made[:at], damaged, *made[at + 1 :]]), options)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200), options=options())
def test_garbage_as_records(data: bytes, options: DecodeRequest) -> None:
    for count in (1, 3):
        header = struct.pack(
            ">qiibIhiqqqhii", 0, HEADER_BYTES - 12 + len(data), 0, 2, 0, 0, 9, 0, 0, -1, 0, 0, count
        )
        same(with_crc(header + data), options)


@given(key=st.none() | st.binary(max_size=6))
def test_keys_of_control_records(key: bytes | None) -> None:
    same(batch([Row(key=key)], attributes=CONTROL), decode_request(aborted=[(1, 0)]))


@given(keys=st.lists(st.binary(max_size=5), min_size=1, max_size=3))
def test_utf8_of_header_keys(keys: list[bytes]) -> None:
    same(batch([Row(headers=[(key, None) for key in keys])]), decode_request(columns=("headers",)))


def test_every_two_bytes_and_edges_as_utf8() -> None:
    edges = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)
    keys = [bytes((first, second)) for first in range(256) for second in edges]
    keys += [bytes((first, second, 0x80)) for first in range(0xE0, 0xF0) for second in edges]
    keys += [bytes((first, second, 0x80, 0xBF)) for first in range(0xF0, 0xF6) for second in edges]
    for key in keys:
        same(batch([Row(headers=[(key, None)])]), decode_request(columns=("headers",)))


common_payloads = st.none() | st.sampled_from([b"", b"k", b"x" * 31, b"y" * 70, b"z" * 9000])
common_rows = st.builds(
    Row,
    key=common_payloads,
    value=common_payloads,
    timestamp_delta=st.sampled_from([0, 1, -1, 63, 64, -65, 8191, 2**20 - 1, -(2**20), 2**20]),
    offset_delta=st.none(),
    headers=st.just(()) | st.sampled_from([(), (), ((b"h", None),)]),
)


@settings(max_examples=80, deadline=None)
@given(made=st.lists(st.lists(common_rows, max_size=40), min_size=1, max_size=4), options=options())
def test_runs_of_common_records(made: list[list[Row]], options: DecodeRequest) -> None:
    """Common records, which take the kernel's fast path, are mixed with others."""
    data, offset = [], 0
    for index, rows in enumerate(made):
        attributes = LOG_APPEND_TIME if index % 3 == 1 else 0
        data.append(batch(rows, base_offset=offset, attributes=attributes))
        offset += max(1, len(rows))
    same(b"".join(data), options)


@pytest.mark.parametrize("behind", [0, 1, 31, 32, 33])
def test_fields_of_every_size(behind: int) -> None:
    """The kernel copies whole words, but the rows must contain only the bytes of the field."""
    rows = [Row(key=bytes([n % 251]) * n, value=bytes([n % 241]) * (300 - n)) for n in range(300)]
    same(batch([*rows, Row(value=b"b" * behind)]), decode_request(columns=ALL_COLUMNS[:7]))


@pytest.mark.slow
@pytest.mark.parametrize("bytes_max", [1, 69, 70, 71, 4000, 4001])
@pytest.mark.parametrize("rows_max", [1, 63, 64, 65, 1000])
def test_cuts_between_common_records(bytes_max: int, rows_max: int) -> None:
    rows = [Row(key=b"k" * (i % 3), value=b"v" * 69 if i % 50 < 45 else None) for i in range(900)]
    data = batch(rows) + batch(rows, base_offset=900, attributes=LOG_APPEND_TIME)
    for columns in (("value",), ("key", "value", "timestampType"), ("offset",)):
        same(data, decode_request(columns=columns, bytes_max=bytes_max, rows_max=rows_max))


def test_more_nulls_than_a_batch_has_rows() -> None:
    rows = [Row(value=None, headers=[(b"h", None)] * 501)] * 200
    same(batch(rows), decode_request(columns=("value", "headers")))


def test_many_rows_grow_every_column() -> None:
    made = [
        Row(
            key=None if i % 7 == 0 else b"k" * (i % 40),
            value=None if i % 11 == 0 else b"v" * (i % 200),
            headers=[(b"h%d" % j, None if j else b"x" * (i % 50)) for j in range(i % 5)],
        )
        for i in range(5000)
    ]
    for codec in (0, 4):
        same(batch(made, codec=codec), decode_request())
        same(batch(made, codec=codec), decode_request(bytes_max=100_000))


class TestCrc:
    @pytest.mark.parametrize("by_tables", [False, True])
    def test_every_length(self, by_tables: bool) -> None:
        from pyspark_kafka.records._kernel import crc_of  # noqa: PLC0415

        data = bytes((i * i + i // 7) & 0xFF for i in range(20_000))
        sizes = [*range(1200), *range(6000, 6500), 12_287, 12_288, 12_289, 19_999]
        for size in sizes:
            assert crc_of(data[:size], by_tables) == crc32c.crc32c(data[:size])
        for start in range(16):
            view = memoryview(data)[start:]
            assert crc_of(view, by_tables) == crc32c.crc32c(view)
