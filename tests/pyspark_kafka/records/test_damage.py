"""Tests of the errors for corrupt and unsupported batches, with each implementation."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from pyspark_kafka.errors import CorruptBatchError, KafkaError
from pyspark_kafka.records import Decode
from pyspark_kafka.records.contract import DecodeError, DecodeFailure
from tests.pyspark_kafka.records.batches import (
    CONTROL,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    Row,
    batch,
    compressed,
    decode_request,
    plain,
    raw_batch,
    record_body,
    sized,
    varint,
    with_crc,
)

BODY = record_body(Row(key=b"k", value=b"v"), 0)


def patched(data: bytes, position: int, new: bytes) -> bytes:
    return with_crc(data[:position] + new + data[position + len(new) :])


def section(records: bytes, count: int = 1, attributes: int = 0) -> bytes:
    return raw_batch(
        records, count=count, last_offset_delta=9, base_offset=50, attributes=attributes
    )


def fails(
    decode: Decode, data: bytes, failure: DecodeFailure, *details: int, **bounds: Any
) -> None:
    """Check that decoding reports the first batch as corrupt, with this failure and its details."""
    with pytest.raises(CorruptBatchError) as caught:
        decode(data, decode_request(aborted=[], **bounds))
    check_object(caught.value, int.from_bytes(data[:8], "big", signed=True))
    check_failure(caught.value, failure, *details)


def failure_of(error: KafkaError) -> DecodeError:
    """Return the failure from which the error was made."""
    assert isinstance(error.__context__, DecodeError)
    return error.__context__


def check_failure(error: KafkaError, failure: DecodeFailure, *details: int) -> None:
    """Check the failure, its first details, and that the message contains these details."""
    found = failure_of(error)
    assert (found.failure, found.details[: len(details)]) == (failure, details)
    assert all(str(detail) in error.what for detail in details)


def check_object(error: KafkaError, offset: int) -> None:
    assert (error.topic, error.partition, error.offset) == ("clicks", 3, offset)


@pytest.mark.parametrize("magic", [0, 1])
def test_legacy_formats_are_rejected(decode: Decode, magic: int) -> None:
    long = raw_batch(b"", count=0, last_offset_delta=0, magic=magic, base_offset=7)
    # Messages of the legacy formats can be shorter than a batch header.
    short = struct.pack(">qiIb", 7, 14, 0, magic) + bytes(9)
    for data in (long, short):
        with pytest.raises(KafkaError, match=f"v{magic}") as caught:
            decode(data, decode_request())
        assert not isinstance(caught.value, CorruptBatchError)
        assert "'engine'" in caught.value.advice
        check_object(caught.value, 7)


@pytest.mark.parametrize(
    ("data", "failure", "details"),
    [
        (
            raw_batch(b"", count=0, last_offset_delta=0, magic=3),
            DecodeFailure.MAGIC,
            (3,),
        ),
        (
            raw_batch(b"", count=0, last_offset_delta=0, length=-1),
            DecodeFailure.LENGTH,
            (-1,),
        ),
        (
            raw_batch(b"", count=0, last_offset_delta=0, length=48),
            DecodeFailure.LENGTH,
            (48,),
        ),
        (plain([b"a"], base_offset=-1), DecodeFailure.BACKWARD, (0,)),
        (raw_batch(b"", count=0, last_offset_delta=-1), DecodeFailure.OFFSETS, (-1,)),
        (raw_batch(b"", count=-1, last_offset_delta=0), DecodeFailure.COUNT, (-1, 1)),
        (raw_batch(b"", count=2, last_offset_delta=0), DecodeFailure.COUNT, (2, 1)),
        (
            raw_batch(b"", count=0, last_offset_delta=0, attributes=5),
            DecodeFailure.CODEC,
            (5,),
        ),
        (
            raw_batch(b"", count=0, last_offset_delta=0, attributes=7),
            DecodeFailure.CODEC,
            (7,),
        ),
    ],
)
def test_headers(
    decode: Decode, data: bytes, failure: DecodeFailure, details: tuple[int, ...]
) -> None:
    fails(decode, data, failure, *details)


def test_offsets_beyond_int64(decode: Decode) -> None:
    data = raw_batch(b"", count=0, last_offset_delta=9, base_offset=2**63 - 10)
    fails(decode, data, DecodeFailure.OFFSETS, 9, end_offset=2**63 - 1)


def test_the_last_offsets_of_all(decode: Decode) -> None:
    data = raw_batch(
        sized(BODY) + sized(record_body(Row(), 8)),
        count=2,
        last_offset_delta=8,
        base_offset=2**63 - 10,
    )
    found = decode(data, decode_request(columns=("offset",), end_offset=2**63 - 1))
    assert found.batches[0].column(0).to_pylist() == [2**63 - 10, 2**63 - 2]
    assert found.next_offset == 2**63 - 1


@pytest.mark.parametrize("base_offset", [0, 1])
def test_batches_that_go_back(decode: Decode, base_offset: int) -> None:
    data = plain([b"a", b"b"]) + plain([b"c"], base_offset=base_offset)
    with pytest.raises(CorruptBatchError) as caught:
        decode(data, decode_request())
    check_failure(caught.value, DecodeFailure.BACKWARD, 2)
    check_object(caught.value, base_offset)


def test_crc_detects_every_flipped_bit(decode: Decode) -> None:
    data = plain([b"abc"])
    for position in range(17, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        fails(decode, bytes(damaged), DecodeFailure.CRC)


def test_crc_is_checked_before_the_range(decode: Decode) -> None:
    """An invalid last offset in a batch before the range could hide rows of the range."""
    data = bytearray(plain([b"a"] * 10))
    data[26] = 1
    fails(decode, bytes(data), DecodeFailure.CRC, start_offset=5)


NO_RECORDS = (DecodeFailure.COMPRESSED, DecodeFailure.RECORDS_CUT)
"""The codec rejects the bytes, or decompresses them to no bytes."""


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
class TestCompressed:
    def test_garbage(self, decode: Decode, codec: int) -> None:
        data = raw_batch(b"\xff" * 40, count=1, last_offset_delta=0, attributes=codec)
        fails(decode, data, DecodeFailure.COMPRESSED)

    def test_cut_off(self, decode: Decode, codec: int) -> None:
        whole = compressed(codec, sized(record_body(Row(value=b"v" * 5000), 0)))
        data = raw_batch(whole[:-6], count=1, last_offset_delta=0, attributes=codec)
        fails(decode, data, DecodeFailure.COMPRESSED)

    @pytest.mark.slow
    def test_too_many_decompressed_bytes(self, decode: Decode, codec: int) -> None:
        before = pa.total_allocated_bytes()
        data = batch([Row(value=bytes(50_000_000))], codec=codec)
        fails(decode, data, DecodeFailure.TOO_LARGE, 1_000_000, decompressed_bytes_max=1_000_000)
        assert pa.total_allocated_bytes() - before < 20_000_000

    def test_exactly_the_limit_of_decompressed_bytes(self, decode: Decode, codec: int) -> None:
        rows = [Row(value=b"v" * 5000)]
        size = len(sized(record_body(rows[0], 0)))
        data = batch(rows, codec=codec)
        assert decode(data, decode_request(decompressed_bytes_max=size)).batches[0].num_rows == 1
        fails(decode, data, DecodeFailure.TOO_LARGE, size - 1, decompressed_bytes_max=size - 1)

    def test_nested_compression_is_corrupt(self, decode: Decode, codec: int) -> None:
        inner = compressed(codec, sized(BODY))
        data = raw_batch(compressed(codec, inner), count=1, last_offset_delta=0, attributes=codec)
        self.fails_in_first_record(decode, data)

    def test_nested_batch_is_corrupt(self, decode: Decode, codec: int) -> None:
        """Only legacy formats have nested batches."""
        inner = batch([Row()] * 3, codec=codec)
        self.fails_in_first_record(decode, section(compressed(codec, inner), attributes=codec))

    def fails_in_first_record(self, decode: Decode, data: bytes) -> None:
        with pytest.raises(CorruptBatchError) as caught:
            decode(data, decode_request())
        assert failure_of(caught.value).details[0] == 0

    def test_the_limit_is_for_each_batch(self, decode: Decode, codec: int) -> None:
        rows = [Row(value=bytes(9000))] * 100
        data = b"".join(batch(rows, codec=codec, base_offset=100 * i) for i in range(10))
        found = decode(data, decode_request(decompressed_bytes_max=1_000_000, bytes_max=50_000))
        assert [b.num_rows for b in found.batches] == [5] * 200

    def test_empty_section(self, decode: Decode, codec: int) -> None:
        data = raw_batch(b"", count=1, last_offset_delta=0, attributes=codec)
        with pytest.raises(CorruptBatchError) as caught:
            decode(data, decode_request())
        assert failure_of(caught.value).failure in NO_RECORDS


def test_snappy_with_invalid_sizes(decode: Decode) -> None:
    for block in (b"", b"\0\0\0\0", b"\0\0\0\x09ab", b"\xff\xff\xff\xff"):
        made = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"\0\0\0\x02\x01\0" + block
        data = raw_batch(made, count=1, last_offset_delta=0, attributes=SNAPPY)
        with pytest.raises(CorruptBatchError) as caught:
            decode(data, decode_request())
        assert failure_of(caught.value).failure in NO_RECORDS


@pytest.mark.parametrize(
    ("records", "count", "failure", "details"),
    [
        (b"", 1, DecodeFailure.RECORDS_CUT, (0, 1)),
        (sized(BODY), 2, DecodeFailure.RECORDS_CUT, (1, 2)),
        (b"\x80", 3, DecodeFailure.RECORDS_CUT, (0, 3)),
        (varint(-1), 1, DecodeFailure.RECORD_LENGTH, (0, -1)),
        (varint(9) + bytes(8), 1, DecodeFailure.RECORD_LENGTH, (0, 9)),
        (varint(0), 1, DecodeFailure.RECORD_CUT, (0,)),
        (sized(BODY + b"xx"), 1, DecodeFailure.RECORD_TRAILING, (0, 2)),
        (sized(BODY) + b"xxx", 1, DecodeFailure.TRAILING, (3,)),
        (sized(BODY), 0, DecodeFailure.TRAILING, (9,)),
        (sized(record_body(Row(), -1)), 1, DecodeFailure.OFFSET, (0, -1)),
        (sized(record_body(Row(), 10)), 1, DecodeFailure.OFFSET, (0, 10)),
        (sized(record_body(Row(), 3)) * 2, 2, DecodeFailure.OFFSET, (1, 3)),
        (sized(b"\0\0\0" + varint(-2) + b"x"), 1, DecodeFailure.FIELD_LENGTH, (0, -2)),
        (sized(b"\0\0\0" + varint(2) + b"x"), 1, DecodeFailure.FIELD_LENGTH, (0, 2)),
        (
            sized(b"\0\0\0" + varint(2**31 - 1) + b"x"),
            1,
            DecodeFailure.FIELD_LENGTH,
            (0, 2**31 - 1),
        ),
        (sized(b"\0\0\0\1\1" + varint(-1)), 1, DecodeFailure.HEADER_COUNT, (0, -1)),
        (sized(b"\0\0\0\1\1" + varint(2) + b"\0\0\0"), 1, DecodeFailure.HEADER_COUNT, (0, 2)),
        (sized(b"\0\0\0\1\1" + varint(1) + b"\1\1"), 1, DecodeFailure.FIELD_LENGTH, (0, -1)),
    ],
)
def test_records(
    decode: Decode, records: bytes, count: int, failure: DecodeFailure, details: tuple[int, ...]
) -> None:
    fails(decode, section(records, count), failure, *details)


@pytest.mark.parametrize(
    "body",
    [
        b"\0" + b"\xff" * 9 + b"\x02",
        b"\0" + b"\x80" * 10 + b"\0",
        b"\0\0" + b"\xff" * 4 + b"\x10",
        b"\0\0" + b"\x80" * 5 + b"\0",
    ],
)
def test_numbers_with_too_many_bits(decode: Decode, body: bytes) -> None:
    fails(decode, section(sized(body + bytes(20))), DecodeFailure.NUMBER, 0)


def test_length_with_too_many_bits(decode: Decode) -> None:
    fails(decode, section(b"\x80" * 5 + b"\1"), DecodeFailure.NUMBER, 0)


def test_the_largest_and_overlong_numbers_are_valid(decode: Decode) -> None:
    body = b"\0" + b"\xff" * 9 + b"\x01" + b"\x80\x80\x80\x80\0" + b"\1\1\0"
    (found,) = decode(section(sized(body)), decode_request(columns=("offset",))).batches
    assert found.column(0).to_pylist() == [50]


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_control_record_with_an_invalid_key(decode: Decode, key: bytes | None) -> None:
    data = batch([Row(key=key)], attributes=CONTROL, base_offset=4)
    fails(decode, data, DecodeFailure.MARKER)
    assert decode(data, decode_request()).next_offset == 5


class TestValuesThatDoNotFitAColumn:
    @pytest.mark.parametrize(
        ("base", "delta"),
        [(2**63 // 1000 + 1, 0), (-(2**62), 0), (2**63 - 1, 2**62), (0, -(2**63))],
    )
    def test_a_timestamp(self, decode: Decode, base: int, delta: int) -> None:
        data = batch([Row(), Row(timestamp_delta=delta)], base_timestamp=base, base_offset=8)
        if abs(base) < 2**50:
            offset, stamp = 9, base + delta
        else:
            offset, stamp = 8, base
        with pytest.raises(KafkaError, match=str(stamp)) as caught:
            decode(data, decode_request())
        assert not isinstance(caught.value, CorruptBatchError)
        assert caught.value.column == "timestamp"
        check_object(caught.value, offset)
        assert decode(data, decode_request(columns=("value",))).next_offset == 10

    def test_a_timestamp_whose_sum_is_beyond_int64(self, decode: Decode) -> None:
        base = 2**63 // 1000
        data = batch([Row(timestamp_delta=2**63 - 1)], base_timestamp=base)
        with pytest.raises(KafkaError, match=str(base + 2**63 - 1)):
            decode(data, decode_request())

    @pytest.mark.parametrize(
        "key",
        [
            b"\xff",
            b"a\x80",
            b"\xc0\x80",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xe2\x82",
            b"\xf5",
        ],
    )
    def test_a_header_key(self, decode: Decode, key: bytes) -> None:
        data = batch([Row(), Row(headers=[(b"ok", b""), (key, b"")])], base_offset=8)
        with pytest.raises(KafkaError) as caught:
            decode(data, decode_request())
        assert caught.value.column == "headers"
        check_object(caught.value, 9)
        assert decode(data, decode_request(columns=("value",))).next_offset == 10
        assert decode(data, decode_request(8, 9)).next_offset == 9


def test_header_fields_are_checked_with_a_valid_crc(decode: Decode) -> None:
    data = patched(plain([b"a"], base_offset=5), 23, struct.pack(">i", -7))
    fails(decode, data, DecodeFailure.OFFSETS, -7)


def test_later_batches_are_checked_too(decode: Decode) -> None:
    data = plain([b"a"]) + patched(plain([b"b"], base_offset=1), 57, struct.pack(">i", 5))
    with pytest.raises(CorruptBatchError) as caught:
        decode(data, decode_request())
    check_failure(caught.value, DecodeFailure.COUNT, 5)
    check_object(caught.value, 1)
