"""Record batches for tests, encoded by the log's encoder, then compressed or patched."""

from __future__ import annotations

import struct
from typing import Any

import lz4.frame
import pyarrow as pa

from broker_ref.log.batch import (
    ATTRIBUTES_POSITION,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    Compression,
    Record,
    encode_batch,
    store_crc,
)

NOW_MS = 1_700_000_000_000


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW_MS,
    value: bytes = b"value",
    key: bytes | None = b"key",
    producer: tuple[int, int, int] | None = None,
) -> bytes:
    """Encode `count` records, a millisecond apart; `producer` is (id, epoch, sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return encode_batch(
        [Record(timestamp=timestamp + i, key=key, value=value) for i in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def compressed(plain: bytes, compression: Compression, *, xerial: bool = False) -> bytes:
    records = plain[HEADER_BYTES:]
    if compression is Compression.SNAPPY:
        section = bytes(pa.Codec("snappy").compress(records, asbytes=True))
        if xerial:
            half = len(records) // 2
            blocks = [
                bytes(pa.Codec("snappy").compress(part, asbytes=True))
                for part in (records[:half], records[half:])
            ]
            section = b"\x82SNAPPY\x00" + struct.pack("!ii", 1, 1)
            section += b"".join(struct.pack("!i", len(block)) + block for block in blocks)
    elif compression is Compression.LZ4:
        section = lz4.frame.compress(records, block_linked=False)
    else:
        sink: Any = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, compression.name.lower()) as stream:
            stream.write(records)
        section = sink.getvalue().to_pybytes()
    return with_section(plain, section, compression)


def with_section(plain: bytes, section: bytes, compression: Compression) -> bytes:
    """Return the batch with another records section and codec, and a correct CRC."""
    packed = bytearray(plain[:HEADER_BYTES]) + section
    struct.pack_into("!i", packed, 8, len(packed) - LOG_OVERHEAD_BYTES)
    attributes = struct.unpack_from("!h", packed, ATTRIBUTES_POSITION)[0] & ~0x07
    struct.pack_into("!h", packed, ATTRIBUTES_POSITION, attributes | compression)
    store_crc(packed)
    return bytes(packed)


FIELDS = (
    "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta",
    "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence",
    "record_count",
)  # fmt: skip


def patched(plain: bytes, *, fix_crc: bool = True, **fields: int) -> bytes:
    packed = bytearray(plain)
    values = list(HEADER.unpack_from(packed))
    for name, value in fields.items():
        values[FIELDS.index(name)] = value
    HEADER.pack_into(packed, 0, *values)
    if fix_crc:
        store_crc(packed)
    return bytes(packed)
