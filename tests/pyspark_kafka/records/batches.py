"""Valid and corrupt record batches for the decoding tests.

The encoder shares no code with the tested decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from pyspark_kafka.kafka.transactions import AbortedTransaction
from pyspark_kafka.records import DecodeRequest

HEADER_BYTES = 61
CRC_POSITION = 17
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
ABORT, COMMIT = 0, 1
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
ALL_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
ARROW_NAMES = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}

Headers = Sequence[tuple[bytes, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record; `offset_delta` None means the delta of the previous record plus 1."""

    key: bytes | None = None
    value: bytes | None = b"v"
    headers: Headers = ()
    timestamp_delta: int = 0
    offset_delta: int | None = None


def varint(value: int) -> bytes:
    unsigned = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while unsigned > 0x7F:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_body(row: Row, offset_delta: int) -> bytes:
    headers = b"".join(nullable(key) + nullable(value) for key, value in row.headers)
    return (
        b"\0"
        + varint(row.timestamp_delta)
        + varint(offset_delta)
        + nullable(row.key)
        + nullable(row.value)
        + varint(len(row.headers))
        + headers
    )


def sized(body: bytes) -> bytes:
    return varint(len(body)) + body


def records_section(rows: Iterable[Row]) -> tuple[bytes, int]:
    section, delta = bytearray(), -1
    for row in rows:
        delta = delta + 1 if row.offset_delta is None else row.offset_delta
        section += sized(record_body(row, delta))
    return bytes(section), delta


def with_crc(data: bytes) -> bytes:
    crc = struct.pack(">I", crc32c(data[CRC_POSITION + 4 :]))
    return data[:CRC_POSITION] + crc + data[CRC_POSITION + 4 :]


def raw_batch(section: bytes, *, count: int, last_offset_delta: int, **fields: Any) -> bytes:
    """Build a batch with this records section; `fields` are header fields."""
    header = struct.pack(
        ">qiibIhiqqqhii",
        fields.pop("base_offset", 0),
        fields.pop("length", HEADER_BYTES - 12 + len(section)),
        0,
        fields.pop("magic", 2),
        0,
        fields.pop("attributes", 0),
        last_offset_delta,
        fields.pop("base_timestamp", 1_700_000_000_000),
        fields.pop("max_timestamp", 1_700_000_000_999),
        fields.pop("producer_id", -1),
        -1,
        -1,
        count,
    )
    assert not fields
    return with_crc(header + section)


def batch(rows: Sequence[Row], *, codec: int = 0, framed: bool = True, **fields: Any) -> bytes:
    section, delta = records_section(rows)
    return raw_batch(
        compressed(codec, section, framed=framed),
        count=fields.pop("count", len(rows)),
        last_offset_delta=fields.pop("last_offset_delta", max(delta, 0)),
        attributes=fields.pop("attributes", 0) | codec,
        **fields,
    )


def plain(values: Iterable[bytes], **fields: Any) -> bytes:
    return batch([Row(value=value) for value in values], **fields)


def marker(kind: int, *, base_offset: int, producer_id: int, **fields: Any) -> bytes:
    row = Row(key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 0))
    return batch(
        [row],
        base_offset=base_offset,
        producer_id=producer_id,
        attributes=CONTROL | TRANSACTIONAL,
        **fields,
    )


def compressed(codec: int, section: bytes, *, framed: bool = True) -> bytes:
    """Compress a records section.

    With `framed`, snappy has the block format of Java; otherwise it is one raw block, as in
    librdkafka.
    """
    if codec == 0:
        return section
    if codec == SNAPPY:
        snappy: Any = pa.Codec("snappy")
        if not framed:
            return bytes(snappy.compress(section, asbytes=True))
        blocks = [b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)]
        for start in range(0, len(section), 1000):
            block = snappy.compress(section[start : start + 1000], asbytes=True)
            blocks += [struct.pack(">i", len(block)), block]
        return b"".join(blocks)
    sink: Any = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, ARROW_NAMES[codec]) as stream:
        stream.write(section)
    return bytes(sink.getvalue())


def decode_request(
    start_offset: int = 0,
    end_offset: int = 1 << 40,
    columns: tuple[str, ...] = ALL_COLUMNS,
    aborted: Sequence[tuple[int, int]] | None = None,
    **bounds: int,
) -> DecodeRequest:
    return DecodeRequest(
        topic="clicks",
        partition=3,
        start_offset=start_offset,
        end_offset=end_offset,
        columns=columns,
        aborted=None
        if aborted is None
        else tuple(AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted),
        **{"batches_max": 1 << 20, **bounds},
    )
