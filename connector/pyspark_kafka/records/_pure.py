"""Decode record batches to Arrow in plain Python.

This is the readable reference implementation, which is also used if the compiled kernel (`_kernel`)
is not installed. It returns the same rows, Arrow batches and errors as `_kernel`. Source: KIP-98,
DefaultRecordBatch and DefaultRecord of Apache Kafka.

A batch has the following format. Numbers are big-endian, positions are counted from the start of
the batch, and the CRC-32C covers all bytes from `attributes` onward:

| position | size | field                  | notes                                              |
| -------: | ---: | ---------------------- | -------------------------------------------------- |
|        0 |    8 | base offset            |                                                    |
|        8 |    4 | length                 | number of bytes after this field                   |
|       12 |    4 | partition leader epoch |                                                    |
|       16 |    1 | magic                  | 2; legacy formats have 0 or 1 at this position     |
|       17 |    4 | crc                    |                                                    |
|       21 |    2 | attributes             | 0-2 codec, 3 LogAppendTime, 4 transactional,       |
|          |      |                        | 5 control                                          |
|       23 |    4 | last offset delta      | last offset minus base offset                      |
|       27 |    8 | base timestamp         | milliseconds                                       |
|       35 |    8 | max timestamp          | with LogAppendTime, the timestamp of all records   |
|       43 |    8 | producer id            |                                                    |
|       51 |    6 | epoch, base sequence   |                                                    |
|       57 |    4 | record count           | can be lower than the number of offsets, or 0      |
|       61 |      | records                | compressed together if there is a codec            |

A record has the following format. Timestamp deltas are zigzag varints of up to 64 bits, and all
other numbers are zigzag varints of up to 32 bits:

    length | attributes, 1 byte | timestamp delta | offset delta
    | key length, -1 for null | key | value length, -1 for null | value
    | header count | (key length | key | value length, -1 for null | value)*
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NoReturn

import pyarrow as pa

from pyspark_kafka.records.contract import (
    HEADER_OVERHEAD_BYTES,
    Buffer,
    Codec,
    DecodeError,
    DecodeFailure,
    DecodeRequest,
    DecodeResult,
    to_kafka_error,
)
from pyspark_kafka.records.decompression import decompress
from pyspark_kafka.records.read_committed import AbortedProducers, is_abort_marker

_MAGIC: Final = 2
_LEGACY_MAGICS: Final = (0, 1)
UP_TO_MAGIC_BYTES: Final = 17
_LENGTH_END: Final = 12
_ATTRIBUTES: Final = 21
BASE_OFFSET: Final = struct.Struct(">q")
_BEGIN: Final = struct.Struct(">qiib")
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")

_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20

_INT32_BITS: Final = 32
_INT64_BITS: Final = 64
_INT64_MAX: Final = 2**63 - 1
_HEADER_BYTES_MIN: Final = 2

# Arrow's timestamps are int64 microseconds.
_TIMESTAMP_MS_MAX: Final = _INT64_MAX // 1000


def decode(data: Buffer, request: DecodeRequest) -> DecodeResult:
    """See `contract.Decode`."""
    try:
        return _decode(memoryview(data).cast("B"), request)
    except DecodeError as error:
        raise to_kafka_error(error, request) from None


def _decode(data: memoryview, request: DecodeRequest) -> DecodeResult:
    rows = _Rows(request)
    aborted = None if request.aborted is None else AbortedProducers(request.aborted)
    next_offset, offset_min, position = request.start_offset, 0, 0
    while next_offset < request.end_offset and len(data) - position >= UP_TO_MAGIC_BYTES:
        base_offset: int = BASE_OFFSET.unpack_from(data, position)[0]
        if rows.full_batches >= request.batches_max:
            break
        if base_offset >= request.end_offset:
            next_offset = request.end_offset
            break
        batch = read_batch(data[position:], offset_min)
        if batch is None:
            break
        if _is_delivered(batch, aborted, request):
            for record in read_records(batch, request):
                if request.start_offset <= record.offset < request.end_offset:
                    rows.append(record, batch.timestamp_type)
        position += batch.size_bytes
        offset_min = batch.last_offset + 1
        next_offset = min(max(next_offset, offset_min), request.end_offset)
    return DecodeResult(batches=rows.finish(), next_offset=next_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBatch:
    """A complete batch with a valid header and CRC.

    `section` contains the records, which may be compressed.
    """

    base_offset: int
    size_bytes: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    record_count: int
    section: memoryview

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def timestamp_type(self) -> int:
        """The number of the timestamp type in Kafka and Spark: 0 CreateTime, 1 LogAppendTime."""
        return 1 if self.attributes & _LOG_APPEND_TIME_BIT else 0


@cache
def _crc32c() -> Callable[[Buffer], int]:
    """Import `crc32c` on first use, because it imports `importlib.metadata`, which is slow."""
    from crc32c import crc32c  # noqa: PLC0415

    return crc32c


def read_batch(
    data: memoryview, offset_min: int, *, crc_of: Callable[[Buffer], int] | None = None
) -> ParsedBatch | None:
    """Parse the batch at the start of `data`. Return None if the batch is incomplete."""
    base_offset, length, _, magic = _BEGIN.unpack_from(data)
    if magic in _LEGACY_MAGICS:
        raise DecodeError(DecodeFailure.LEGACY, base_offset, magic)
    if magic != _MAGIC:
        raise DecodeError(DecodeFailure.MAGIC, base_offset, magic)
    if length < _HEADER.size - _LENGTH_END:
        raise DecodeError(DecodeFailure.LENGTH, base_offset, length)
    size_bytes = length + _LENGTH_END
    if size_bytes > len(data):
        return None
    if base_offset < offset_min:
        raise DecodeError(DecodeFailure.BACKWARD, base_offset, offset_min)
    (
        _, _, _, _, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, _, record_count,
    ) = _HEADER.unpack_from(data)  # fmt: skip
    if (computed := (crc_of or _crc32c())(data[_ATTRIBUTES:size_bytes])) != crc:
        raise DecodeError(DecodeFailure.CRC, base_offset, crc, computed)
    if last_offset_delta < 0 or base_offset + last_offset_delta >= _INT64_MAX:
        raise DecodeError(DecodeFailure.OFFSETS, base_offset, last_offset_delta)
    if not 0 <= record_count <= last_offset_delta + 1:
        raise DecodeError(DecodeFailure.COUNT, base_offset, record_count, last_offset_delta + 1)
    if (codec := attributes & _CODEC_MASK) > max(Codec):
        raise DecodeError(DecodeFailure.CODEC, base_offset, codec)
    return ParsedBatch(
        base_offset=base_offset,
        size_bytes=size_bytes,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        record_count=record_count,
        section=data[_HEADER.size : size_bytes],
    )


def _is_delivered(
    batch: ParsedBatch, aborted: AbortedProducers | None, request: DecodeRequest
) -> bool:
    """Return whether the records of `batch` must be decoded, and update `aborted`.

    Abort markers before the requested range also update `aborted`, because a fetch response can
    list aborted transactions that end before that range.
    """
    if aborted is not None:
        aborted.admit(batch.last_offset)
    if batch.is_control:
        if aborted is not None and _is_abort_marker(batch, request):
            aborted.end(batch.producer_id)
        return False
    if aborted is not None and batch.is_transactional:
        return batch.last_offset >= request.start_offset and batch.producer_id not in aborted
    return batch.last_offset >= request.start_offset


def _is_abort_marker(batch: ParsedBatch, request: DecodeRequest) -> bool:
    """Return whether the control batch is an abort marker.

    A control batch contains one record, or none if compaction has removed it.
    """
    if batch.record_count == 0:
        return False
    return is_abort_marker(next(read_records(batch, request)).key, base_offset=batch.base_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def read_records(batch: ParsedBatch, request: DecodeRequest) -> Iterator[_Record]:
    """Yield the records of a batch in order."""
    section = batch.section
    if batch.record_count == 0 and not section:
        return
    if codec := Codec(batch.attributes & _CODEC_MASK):
        section = memoryview(
            decompress(
                codec,
                section,
                base_offset=batch.base_offset,
                bytes_max=request.decompressed_bytes_max,
            )
        )
    position, delta_min = 0, 0
    for index in range(batch.record_count):
        fields = _Fields(batch, index, section, position)
        yield (record := _record(fields, batch, delta_min))
        position = fields.end
        delta_min = record.offset - batch.base_offset + 1
    if position < len(section):
        raise DecodeError(DecodeFailure.TRAILING, batch.base_offset, len(section) - position)


def _record(fields: _Fields, batch: ParsedBatch, delta_min: int) -> _Record:
    fields.byte()  # attributes, which Kafka does not use
    timestamp_delta = fields.varint(_INT64_BITS)
    offset_delta = fields.varint(_INT32_BITS)
    if not delta_min <= offset_delta <= batch.last_offset_delta:
        fields.fail(DecodeFailure.OFFSET, offset_delta, delta_min, batch.last_offset_delta)
    key = fields.nullable()
    value = fields.nullable()
    count = fields.varint(_INT32_BITS)
    if not 0 <= count <= fields.left // _HEADER_BYTES_MIN:
        fields.fail(DecodeFailure.HEADER_COUNT, count, fields.left)
    headers = [(fields.required(), fields.nullable()) for _ in range(count)]
    if fields.left:
        fields.fail(DecodeFailure.RECORD_TRAILING, fields.left)
    log_append_time = batch.attributes & _LOG_APPEND_TIME_BIT
    return _Record(
        offset=batch.base_offset + offset_delta,
        timestamp=batch.max_timestamp
        if log_append_time
        else batch.base_timestamp + timestamp_delta,
        key=key,
        value=value,
        headers=headers,
    )


class _Fields:
    """A reader of the fields of one record, which never reads past the end of the record."""

    def __init__(self, batch: ParsedBatch, index: int, section: memoryview, position: int) -> None:
        self._batch = batch
        self._index = index
        self._section = section
        self._position = position
        self._cut: tuple[DecodeFailure, *tuple[int, ...]] = (
            DecodeFailure.RECORDS_CUT,
            batch.record_count,
        )
        self.end = len(section)
        length = self.varint(_INT32_BITS)
        if not 0 <= length <= self.left:
            self.fail(DecodeFailure.RECORD_LENGTH, length, self.left)
        self._cut = (DecodeFailure.RECORD_CUT,)
        self.end = self._position + length

    def fail(self, failure: DecodeFailure, *details: int) -> NoReturn:
        raise DecodeError(failure, self._batch.base_offset, self._index, *details)

    @property
    def left(self) -> int:
        return self.end - self._position

    def byte(self) -> int:
        if not self.left:
            self.fail(*self._cut)
        self._position += 1
        return self._section[self._position - 1]

    def varint(self, bits: int) -> int:
        """Read a zigzag varint of at most `bits` bits."""
        unsigned, shift = 0, 0
        while True:
            byte = self.byte()
            unsigned |= (byte & 0x7F) << shift
            shift += 7
            if unsigned >> bits or (byte & 0x80 and shift >= bits):
                self.fail(DecodeFailure.NUMBER)
            if not byte & 0x80:
                return (unsigned >> 1) ^ -(unsigned & 1)

    def nullable(self) -> bytes | None:
        length = self.varint(_INT32_BITS)
        return None if length == -1 else self._take(length)

    def required(self) -> bytes:
        return self._take(self.varint(_INT32_BITS))

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= self.left:
            self.fail(DecodeFailure.FIELD_LENGTH, length, self.left)
        self._position += length
        return bytes(self._section[self._position - length : self._position])


class _Rows:
    """A collector of rows, which builds Arrow batches of limited size."""

    def __init__(self, request: DecodeRequest) -> None:
        self._request = request
        self._batches: list[pa.RecordBatch] = []
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in self._request.columns}
        self._row_count = 0
        self._payload_bytes = 0

    @property
    def full_batches(self) -> int:
        """The number of completed Arrow batches."""
        return len(self._batches)

    def append(self, record: _Record, timestamp_type: int) -> None:
        row = self._row(record, timestamp_type)
        payload_bytes = self._bytes_of(record)
        if self._row_count == self._request.rows_max or (
            self._row_count and self._payload_bytes + payload_bytes > self._request.bytes_max
        ):
            self._flush()
        for name, column in self._columns.items():
            column.append(row[name])
        self._row_count += 1
        self._payload_bytes += payload_bytes

    def finish(self) -> list[pa.RecordBatch]:
        if self._row_count:
            self._flush()
        return self._batches

    def _flush(self) -> None:
        schema = self._request.schema
        arrays = [pa.array(self._columns[field.name], field.type) for field in schema]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        self._clear()

    def _row(self, record: _Record, timestamp_type: int) -> dict[str, Any]:
        """Return the row for a record. Raises `DecodeError` if a value does not fit its column."""
        row: dict[str, Any] = {
            "key": record.key,
            "value": record.value,
            "topic": self._request.topic,
            "partition": self._request.partition,
            "offset": record.offset,
            "timestampType": timestamp_type,
        }
        if "timestamp" in self._columns:
            if abs(record.timestamp) > _TIMESTAMP_MS_MAX:
                raise DecodeError(DecodeFailure.TIMESTAMP, record.offset, record.timestamp)
            row["timestamp"] = record.timestamp * 1000
        if "headers" in self._columns:
            row["headers"] = _headers(record)
        return row

    def _bytes_of(self, record: _Record) -> int:
        total = 0
        if "key" in self._columns:
            total += len(record.key or b"")
        if "value" in self._columns:
            total += len(record.value or b"")
        if "headers" in self._columns:
            for key, value in record.headers:
                total += len(key) + len(value or b"") + HEADER_OVERHEAD_BYTES
        return total


def _headers(record: _Record) -> list[tuple[str, bytes | None]] | None:
    """Return the headers in order, including repeated keys, or None if the record has none."""
    try:
        return [(key.decode(), value) for key, value in record.headers] or None
    except UnicodeDecodeError:
        raise DecodeError(DecodeFailure.HEADER_KEY, record.offset) from None
