"""Encodes and decodes single records in message format v2.

    record: length varint | attributes int8 | timestamp delta varlong | offset delta varint
            | key length varint (-1: null) | key | value length varint | value
            | header count varint | (key length varint | key | value length varint | value)*

Varints use zigzag encoding. Records are decoded for timestamp lookups, the key check for compacted
topics, compaction, internal topics and tests, but not for fetches or ordinary appends. Invariant:
at most one record and one piece of the decompressed batch are in memory. Source: `DefaultRecord`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.errors import LogError

NO_TIMESTAMP = -1
RECORD_BYTES_MAX = 1 << 27
RECORDS_MAX = 1 << 20
"""Maximum number of records that are decoded from one batch.

Decoding this many records takes about ten seconds, during which the broker serves no requests. An
uncompressed batch with the default `max.message.bytes` contains at most 150,000 records, but one
megabyte of compressed data can contain a hundred million records.
"""
# One byte each: length, attributes, two deltas, key length, value length and header count.
RECORD_BYTES_MIN = 7
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_VARLONG_BYTES_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record. `timestamp` is in milliseconds since the epoch, or -1 if it is not set."""

    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """The record fields that compaction needs, and the remaining bytes of the record.

    `attributes` is the first byte of the record. `tail` contains all bytes after the timestamp
    delta.
    """

    timestamp: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool
    attributes: memoryview
    tail: memoryview

    def encode(self, base_timestamp: int) -> bytes:
        """Encode the record, including its length, for a batch with `base_timestamp`.

        Raises: LogError(INVALID_RECORD) if the timestamp delta is not an int64.
        """
        timestamp_delta = _int64(self.timestamp - base_timestamp, "a timestamp delta")
        body = b"".join((self.attributes, _varint(timestamp_delta), self.tail))
        return _varint(len(body)) + body


def split_records(pieces: Iterator[bytes | memoryview], count: int) -> Iterator[memoryview]:
    """Split the decompressed data of a batch into `count` records, and yield the record bodies.

    A body does not include the length of the record. Raises during iteration:
    LogError(INVALID_RECORD) if the data does not contain exactly `count` records, or if `count`
    exceeds `RECORDS_MAX`.
    """
    if count > RECORDS_MAX:
        raise _invalid(f"the record count is {count}, but the limit is {RECORDS_MAX}")
    pending = memoryview(b"")
    for index in range(count):
        while (bounds := _record_bounds(pending)) is None or bounds[1] > len(pending):
            missing = 1 if bounds is None else bounds[1] - len(pending)
            more = _gather(pieces, missing)
            if not more:
                raise _invalid(
                    f"the record count is {count}, but only {index} records are complete"
                )
            pending = memoryview(b"".join((pending, more)))
        start, end = bounds
        yield pending[start:end]
        pending = pending[end:]
    if pending or any(pieces):
        raise _invalid("there are extra bytes after the last record")


def _gather(pieces: Iterator[bytes | memoryview], bytes_min: int) -> bytes:
    """Return at least the next `bytes_min` bytes, or all remaining bytes if there are fewer."""
    gathered, size_bytes = [], 0
    while size_bytes < bytes_min and (piece := next(pieces, None)) is not None:
        gathered.append(piece)
        size_bytes += len(piece)
    return b"".join(gathered)


def decode_record(body: memoryview, *, base_offset: int, base_timestamp: int) -> Record:
    """Decode a record from its body. Raises: LogError(INVALID_RECORD)."""
    reader = _Reader(body)
    reader.skip(1)  # The attributes of a record are unused.
    timestamp = _int64(base_timestamp + reader.varint(), "a record's timestamp")
    record = Record(
        offset=base_offset + reader.varint(),
        timestamp=timestamp,
        key=reader.nullable_bytes(),
        value=reader.nullable_bytes(),
        headers=_headers(reader),
    )
    reader.expect_end()
    return record


def view_record(body: memoryview, *, base_timestamp: int) -> RecordView:
    """Decode the record fields that compaction needs. Raises: LogError(INVALID_RECORD)."""
    reader = _Reader(body)
    reader.skip(1)
    timestamp = _int64(base_timestamp + reader.varint(), "a record's timestamp")
    position = reader.position
    offset_delta = reader.varint()
    key = reader.nullable_bytes()
    return RecordView(
        timestamp=timestamp,
        offset_delta=offset_delta,
        key=key,
        is_tombstone=reader.varint() == -1,
        attributes=body[:1],
        tail=body[position:],
    )


def encode_record(record: Record, *, offset_delta: int, timestamp_delta: int) -> bytes:
    """Encode a record, including its length."""
    parts = [b"\x00", _varint(timestamp_delta), _varint(offset_delta)]
    parts += [_nullable_bytes(record.key), _nullable_bytes(record.value)]
    parts.append(_varint(len(record.headers)))
    for key, value in record.headers:
        parts += [_nullable_bytes(key.encode()), _nullable_bytes(value)]
    body = b"".join(parts)
    return _varint(len(body)) + body


def _record_bounds(pending: memoryview) -> tuple[int, int] | None:
    """Return the start and end of the first record's body, or None if its length is incomplete."""
    reader = _Reader(pending)
    try:
        length = reader.varint()
    except LogError:
        if len(pending) < _VARLONG_BYTES_MAX:
            return None
        raise
    if not 0 < length <= RECORD_BYTES_MAX:
        raise _invalid(f"a record has an invalid length of {length}")
    return reader.position, reader.position + length


def _headers(reader: _Reader) -> tuple[tuple[str, bytes | None], ...]:
    count = reader.varint()
    if not 0 <= count <= reader.remaining:
        raise _invalid(f"a record has an invalid header count of {count}")
    headers = []
    for _ in range(count):
        key = reader.nullable_bytes()
        if key is None:
            raise _invalid("a record header has no key")
        headers.append((key.decode("utf-8", "replace"), reader.nullable_bytes()))
    return tuple(headers)


class _Reader:
    """A reader for the body of a record. It never reads beyond the end of the body."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def skip(self, count: int) -> None:
        if count > self.remaining:
            raise _invalid("a record is incomplete")
        self.position += count

    def varint(self) -> int:
        position = self.position
        if position < len(self._data) and (byte := self._data[position]) < 0x80:
            self.position = position + 1
            return (byte >> 1) ^ -(byte & 1)
        value, shift = 0, 0
        for _ in range(_VARLONG_BYTES_MAX):
            if self.position >= len(self._data):
                raise _invalid("a record is incomplete")
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
        raise _invalid("a varint has more than ten bytes")

    def nullable_bytes(self) -> bytes | None:
        length = self.varint()
        if length == -1:
            return None
        if length < -1 or length > self.remaining:
            raise _invalid(f"a field has length {length}, but only {self.remaining} bytes remain")
        start = self.position
        self.position += length
        return bytes(self._data[start : self.position])

    def expect_end(self) -> None:
        if self.remaining:
            raise _invalid(f"there are {self.remaining} extra bytes at the end of a record")


_SHORT_VARINTS = tuple(bytes((zigzag,)) for zigzag in range(0x80))


def _nullable_bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return _SHORT_VARINTS[zigzag]
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def _int64(value: int, what: str) -> int:
    if not _LONG_MIN <= value <= _LONG_MAX:
        raise _invalid(f"{what} of {value} is not a valid int64")
    return value


def _invalid(reason: str) -> LogError:
    return LogError(
        ErrorCode.invalid_record, f"The records of a batch cannot be decoded: {reason}."
    )
