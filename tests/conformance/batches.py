"""An encoder and decoder of record batches for tests (format v2, KIP-98 and KIP-32).

It shares no code with the broker or the connector, so that the tests detect a misreading of the
format that both have in common. It can also encode invalid batches. Timestamps and offsets of
records are relative to their batch, and varints are zig-zag encoded.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp,
max timestamp, producer id, producer epoch, base sequence, record count."""
_CRC_POSITION = 17
_CHECKED_FROM = 21
_LENGTH_COUNTS_FROM = 12

NONE, GZIP, ZSTD = 0, 1, 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NOW_MS = 1_700_000_000_000
"""A fixed timestamp, so that the tests do not depend on the current time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record with an absolute timestamp and, after `parse`, an absolute offset."""

    value: bytes | None = b"value"
    key: bytes | None = b"key"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = NOW_MS
    offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A decoded batch. `records` is empty for compression types other than none and gzip."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    size: int
    records: tuple[Record, ...]

    @property
    def codec(self) -> int:
        return self.attributes & 0x07

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def batch(
    records: Sequence[Record],
    *,
    codec: int = NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
    magic: int = 2,
    last_offset_delta: int | None = None,
    record_count: int | None = None,
    corrupt: bool = False,
) -> bytes:
    """Encode `records` as one batch.

    `corrupt` breaks the checksum. The other arguments set header fields.
    """
    base_timestamp_ms = records[0].timestamp_ms
    body = b"".join(_pack(r, i, base_timestamp_ms) for i, r in enumerate(records))
    if codec == GZIP:
        body = gzip.compress(body)
    header = _HEADER.pack(
        base_offset,
        _HEADER.size - _LENGTH_COUNTS_FROM + len(body),
        leader_epoch,
        magic,
        0,
        codec | attributes,
        len(records) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records) if record_count is None else record_count,
    )
    data = bytearray(header + body)
    checksum = crc32c.crc32c(bytes(data[_CHECKED_FROM:])) ^ (1 if corrupt else 0)
    data[_CRC_POSITION:_CHECKED_FROM] = struct.pack(">I", checksum)
    return bytes(data)


def values(*texts: str, timestamp_ms: int = NOW_MS) -> list[Record]:
    return [Record(value=text.encode(), timestamp_ms=timestamp_ms) for text in texts]


def parse(data: bytes | None) -> list[Batch]:
    """Decode the complete batches in a fetch response and ignore a partial batch at the end."""
    batches = []
    position = 0
    data = data or b""
    while position + _HEADER.size <= len(data):
        size = _LENGTH_COUNTS_FROM + struct.unpack_from(">i", data, position + 8)[0]
        if position + size > len(data):
            break
        batches.append(_parse_one(data[position : position + size]))
        position += size
    return batches


def _parse_one(data: bytes) -> Batch:
    fields = _HEADER.unpack_from(data)
    base_offset, _, leader_epoch, magic, crc, attributes, last_delta, base_ms, max_ms = fields[:9]
    assert magic == 2
    assert crc == crc32c.crc32c(data[_CHECKED_FROM:]), (
        f"wrong checksum of the batch at offset {base_offset}"
    )
    body = data[_HEADER.size :]
    records: tuple[Record, ...] = ()
    if attributes & 0x07 in (NONE, GZIP):
        body = gzip.decompress(body) if attributes & 0x07 == GZIP else body
        append_ms = max_ms if attributes & LOG_APPEND_TIME else None
        records = _unpack_all(body, fields[12], base_offset, base_ms, append_ms)
    return Batch(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_delta,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer_id=fields[9],
        producer_epoch=fields[10],
        base_sequence=fields[11],
        record_count=fields[12],
        size=len(data),
        records=records,
    )


def _pack(record: Record, offset_delta: int, base_timestamp_ms: int) -> bytes:
    body = b"\0" + _varint(record.timestamp_ms - base_timestamp_ms) + _varint(offset_delta)
    body += _sized(record.key) + _sized(record.value) + _varint(len(record.headers))
    for name, value in record.headers:
        body += _sized(name.encode()) + _sized(value)
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    number = (value << 1) ^ (value >> 63)
    packed = bytearray()
    while number >= 0x80:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def take(self, length: int) -> bytes:
        self._position += length
        return self._data[self._position - length : self._position]

    def sized(self) -> bytes | None:
        length = self.varint()
        return None if length < 0 else self.take(length)


def _unpack_all(
    body: bytes, count: int, base_offset: int, base_ms: int, append_ms: int | None
) -> tuple[Record, ...]:
    reader = _Reader(body)
    records = []
    for _ in range(count):
        reader.varint()  # length
        reader.take(1)  # attributes, unused
        timestamp_ms = base_ms + reader.varint()
        offset = base_offset + reader.varint()
        key, value = reader.sized(), reader.sized()
        headers = tuple(
            ((reader.sized() or b"").decode(), reader.sized()) for _ in range(reader.varint())
        )
        records.append(
            Record(
                key=key,
                value=value,
                headers=headers,
                timestamp_ms=timestamp_ms if append_ms is None else append_ms,
                offset=offset,
            )
        )
    return tuple(records)
