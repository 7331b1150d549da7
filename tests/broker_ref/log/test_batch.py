"""Tests of batches: header, checks, patching and records."""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import (
    HEADER_BYTES,
    SEQUENCE_MAX,
    Compression,
    Record,
    TimestampType,
    check_produced_batch,
    crc_matches,
    decode_records,
    encode_batch,
    parse_batches,
    rewrite,
    unpack_header,
)
from broker_ref.log.compression import decompressed_pieces
from broker_ref.log.errors import LogError
from broker_ref.log.records import RECORDS_MAX, encode_record
from tests.broker_ref.log.batches import NOW_MS, batch, compressed, patched, with_section

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised on kafka-python's import
    from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]

records = st.builds(
    Record,
    timestamp=st.integers(-1, 2**50),
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=200),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5))).map(tuple),
)


EMPTY = encode_batch([Record()])
"""A batch with the smallest possible record."""


def code_of(data: bytes) -> ErrorCode:
    with pytest.raises(LogError) as error:
        check_produced_batch(parse_batches(data)[0])
    return error.value.error_code


def test_header_fields_are_where_kafka_puts_them() -> None:
    data = batch(3, producer=(4711, 2, 9))
    (header,) = parse_batches(data)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 2, 3)
    assert header.size_bytes == len(data)
    assert (header.producer_id, header.producer_epoch) == (4711, 2)
    assert (header.base_sequence, header.last_sequence) == (9, 11)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS + 2)
    assert (header.magic, header.record_count, header.has_producer_id) == (2, 3, True)
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_control
    assert not header.is_transactional


def test_sequences_wrap_after_the_largest() -> None:
    header = unpack_header(batch(3, producer=(1, 0, SEQUENCE_MAX - 1)))
    assert header.last_sequence == 0


def test_an_incomplete_last_batch_is_ignored() -> None:
    one, two = batch(1), batch(2)
    assert [h.record_count for h in parse_batches(one + two + one[:40])] == [1, 2]
    assert [h.record_count for h in parse_batches(one + b"\x00" * 11)] == [1]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.invalid_record),
        (batch()[:-1], ErrorCode.invalid_record),
        (batch()[:30], ErrorCode.invalid_record),
        (patched(batch(), magic=1), ErrorCode.invalid_record),
        (patched(batch(), magic=0), ErrorCode.invalid_record),
        (patched(batch(), magic=3), ErrorCode.corrupt_message),
        (patched(batch(), magic=-1), ErrorCode.corrupt_message),
        (patched(batch(), length=13), ErrorCode.corrupt_message),
        (patched(batch(), length=20), ErrorCode.corrupt_message),
        (patched(batch(), length=-1), ErrorCode.corrupt_message),
        (patched(batch(), length=2**31 - 1), ErrorCode.corrupt_message),
        (patched(batch(), length=2**30), ErrorCode.invalid_record),
        (patched(batch(), crc=1, fix_crc=False), ErrorCode.corrupt_message),
        (batch()[:-1] + b"!", ErrorCode.corrupt_message),
        (patched(batch(), base_offset=1), ErrorCode.invalid_record),
        (patched(batch(), last_offset_delta=1), ErrorCode.invalid_record),
        (patched(batch(), last_offset_delta=-1, record_count=0), ErrorCode.invalid_record),
        (patched(batch(), record_count=0), ErrorCode.invalid_record),
        (patched(batch(), record_count=-1), ErrorCode.invalid_record),
        (
            patched(batch(), last_offset_delta=2**31 - 2, record_count=2**31 - 1),
            ErrorCode.invalid_record,
        ),
        (patched(EMPTY[:-1], length=len(EMPTY) - 13), ErrorCode.invalid_record),
        (patched(batch(), attributes=0x20), ErrorCode.invalid_record),
        (patched(batch(), producer_id=1), ErrorCode.invalid_record),
        (patched(batch(), attributes=0x05), ErrorCode.unknown_server_error),
    ],
)
def test_invalid_batches_are_rejected_with_kafkas_error_code(data: bytes, code: ErrorCode) -> None:
    assert code_of(data) is code


def test_the_maximum_number_of_minimal_records_is_accepted() -> None:
    check_produced_batch(parse_batches(EMPTY)[0])
    check_produced_batch(parse_batches(encode_batch([Record()] * 50))[0])
    crowded = patched(batch(), last_offset_delta=999, record_count=1000)
    check_produced_batch(unpack_header(compressed(crowded, Compression.GZIP)))


@pytest.mark.parametrize(("timestamp_delta", "offset_delta"), [(2**62, 0), (0, 1), (0, -1)])
def test_records_that_exceed_their_batch_are_invalid(
    timestamp_delta: int, offset_delta: int
) -> None:
    plain = patched(batch(), base_timestamp=2**62)
    record = encode_record(Record(), offset_delta=offset_delta, timestamp_delta=timestamp_delta)
    with pytest.raises(LogError) as error:
        list(decode_records(with_section(plain, record, Compression.NONE)))
    assert error.value.error_code is ErrorCode.invalid_record


@given(st.binary(max_size=200))
def test_garbage_is_rejected(data: bytes) -> None:
    with pytest.raises(LogError):
        parse_batches(data)


@given(st.data())
def test_a_flipped_bit_under_the_crc_is_detected(data: st.DataObject) -> None:
    damaged = bytearray(batch(3))
    position = data.draw(st.integers(21, len(damaged) - 1))
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    assert code_of(bytes(damaged)) is ErrorCode.corrupt_message


def test_rewrite_sets_offset_and_epoch_and_leaves_the_crc_alone() -> None:
    data = batch(2)
    patched_batch = rewrite(data, base_offset=1000, leader_epoch=7, log_append_time_ms=None)
    header = unpack_header(patched_batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1000, 7)
    assert header.crc == unpack_header(data).crc
    assert crc_matches(patched_batch)
    assert [r.offset for r in decode_records(patched_batch)] == [1000, 1001]


def test_rewrite_sets_log_append_time_and_the_crc() -> None:
    stamped = rewrite(batch(2), base_offset=5, leader_epoch=0, log_append_time_ms=NOW_MS + 99)
    header = unpack_header(stamped)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == NOW_MS + 99
    assert crc_matches(stamped)
    assert [r.timestamp for r in decode_records(stamped)] == [NOW_MS + 99] * 2
    back = rewrite(stamped, base_offset=5, leader_epoch=0, log_append_time_ms=None)
    assert unpack_header(back).timestamp_type is TimestampType.CREATE_TIME
    assert crc_matches(back)


@given(st.lists(records, min_size=1, max_size=20), st.integers(0, 2**40))
def test_records_round_trip(given_records: list[Record], base_offset: int) -> None:
    data = encode_batch(given_records, base_offset=base_offset)
    decoded = list(decode_records(data))
    assert [r.offset for r in decoded] == list(range(base_offset, base_offset + len(decoded)))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in decoded] == [
        (r.timestamp, r.key, r.value, r.headers) for r in given_records
    ]


def test_encoding_is_compatible_with_kafka_python() -> None:
    given_records = [
        Record(timestamp=NOW_MS, key=b"k", value=b"v" * 300, headers=(("h", b"1"), ("n", None))),
        Record(timestamp=NOW_MS - 5, key=None, value=None),
    ]
    (theirs,) = MemoryRecords(encode_batch(given_records, base_offset=10))
    assert theirs.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value) for r in theirs]
    assert read == [(10, NOW_MS, b"k", b"v" * 300), (11, NOW_MS - 5, None, None)]

    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    builder.append(NOW_MS, b"k", b"v" * 300, [("h", b"1")])
    builder.append(NOW_MS + 5, None, b"")
    builder.close()
    data = bytes(builder.buffer())
    (header,) = parse_batches(data)
    assert header.max_timestamp == NOW_MS + 5
    assert list(decode_records(data)) == [
        Record(offset=0, timestamp=NOW_MS, key=b"k", value=b"v" * 300, headers=(("h", b"1"),)),
        Record(offset=1, timestamp=NOW_MS + 5, key=None, value=b""),
    ]

    for length in (63, 64, 8_191, 8_192):  # The length of a varint changes between two of them.
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
        builder.append(NOW_MS, None, b"v" * length)
        builder.close()
        ours = encode_batch([Record(timestamp=NOW_MS, value=b"v" * length)])
        assert len(ours) == len(bytes(builder.buffer()))


@pytest.mark.parametrize(
    ("codec", "xerial"), [*((codec, False) for codec in CODECS), (Compression.SNAPPY, True)]
)
def test_every_codec_is_read(codec: Compression, xerial: bool) -> None:
    plain = batch(2000, value=b"some value that repeats itself " * 4)
    packed = compressed(plain, codec, xerial=xerial)
    assert len(packed) < len(plain) / 4
    assert unpack_header(packed).compression is codec
    assert list(decode_records(packed)) == list(decode_records(plain))


@pytest.mark.parametrize("codec", CODECS)
def test_a_decompression_bomb_is_rejected_within_the_limit(codec: Compression) -> None:
    packed = compressed(batch(1, value=bytes(10_000_000)), codec)
    with pytest.raises(LogError) as error:
        list(decode_records(packed, decompressed_bytes_max=1_000_000))
    assert error.value.error_code is ErrorCode.corrupt_message


def test_a_decompression_bomb_costs_little_time_and_memory() -> None:
    zeros = bytes(1 << 20)
    sink: Any = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(130):
            stream.write(zeros)
    section = sink.getvalue().to_pybytes()
    assert len(section) < 1 << 20
    pieces = decompressed_pieces(Compression.ZSTD, memoryview(section))
    with pytest.raises(LogError) as error:
        sum(map(len, pieces))
    assert error.value.error_code is ErrorCode.corrupt_message


def test_the_number_of_decoded_records_is_limited() -> None:
    claim = RECORDS_MAX + 1
    wrong = patched(batch(3), record_count=claim, last_offset_delta=claim - 1)
    with pytest.raises(LogError, match=str(RECORDS_MAX)) as error:
        next(decode_records(wrong))
    assert error.value.error_code is ErrorCode.invalid_record


def test_a_snappy_block_that_claims_gigabytes_is_rejected() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"x" * 20
    with pytest.raises(LogError, match="snappy"):
        list(decode_records(with_section(batch(), claim, Compression.SNAPPY)))


@pytest.mark.parametrize("codec", CODECS)
@given(noise=st.binary(max_size=60))
def test_corrupt_compressed_records_are_rejected(codec: Compression, noise: bytes) -> None:
    packed = with_section(batch(3), noise, codec)
    with pytest.raises(LogError) as error:
        list(decode_records(packed))
    assert error.value.error_code in (ErrorCode.corrupt_message, ErrorCode.invalid_record)


@given(st.data())
def test_corrupt_plain_records_are_rejected_or_counted(data: st.DataObject) -> None:
    plain = bytearray(batch(3))
    position = data.draw(st.integers(HEADER_BYTES, len(plain) - 1))
    plain[position] = data.draw(st.integers(0, 255))
    try:
        count = len(list(decode_records(plain)))
    except LogError as error:
        count = 3 if error.error_code is ErrorCode.invalid_record else -1
    assert count == 3


def test_a_wrong_record_count_is_rejected() -> None:
    for count in (2, 4):
        wrong = patched(batch(3), record_count=count, last_offset_delta=count - 1)
        with pytest.raises(LogError) as error:
            list(decode_records(wrong))
        assert error.value.error_code is ErrorCode.invalid_record


def test_an_oversized_record_is_rejected() -> None:
    section = b"\xfe\xff\xff\xff\x0f" + b"x" * 50
    with pytest.raises(LogError, match="2147483647"):
        list(decode_records(with_section(batch(), section, Compression.NONE)))
