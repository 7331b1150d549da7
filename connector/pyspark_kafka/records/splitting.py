"""Split an encoded batch that a broker rejects as too large.

Such batches are rare, so there is only one implementation, in plain Python. Records keep their
order, timestamps and sequence numbers. Each resulting batch is identical to what `encode` returns
for the same rows. Source: `ProducerBatch.split` of Apache Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark_kafka.records._pure_encode import HEADER, assembled, varint
from pyspark_kafka.records.compression import compressor
from pyspark_kafka.records.contract import Buffer, Codec
from pyspark_kafka.records.decompression import decompress
from pyspark_kafka.records.encoding import (
    HEADER_BYTES,
    LENGTH_BYTES_MAX,
    NO_SEQUENCE,
    EncodedBatch,
    next_sequence,
)

_CODEC_MASK: Final = 0x07


def split(batch: EncodedBatch, *, level: int | None = None) -> list[EncodedBatch]:
    """Split a batch with several records into two batches of similar uncompressed size.

    `level` is `Encoding.level`. The caller passes the level, because a batch does not contain it.
    """
    assert batch.record_count > 1
    (
        _, _, _, _, _, attributes, _, base_timestamp, _, producer_id, producer_epoch, _, _,
    ) = HEADER.unpack_from(batch.data)  # fmt: skip
    codec = Codec(attributes & _CODEC_MASK)
    section = batch.data[HEADER_BYTES:]
    if codec is not Codec.NONE:
        plain = decompress(codec, section, base_offset=0, bytes_max=LENGTH_BYTES_MAX)
        section = memoryview(plain)
    records = _records(section, batch.record_count, base_timestamp)
    sequence, parts = batch.base_sequence, []
    for part in _halves(records):
        base = part[0].timestamp
        written: Buffer = b"".join(record.at(base, index) for index, record in enumerate(part))
        if codec is not Codec.NONE:
            written = compressor(codec, level)(memoryview(written))
        data = assembled(
            written,
            attributes=attributes,
            base_timestamp=base,
            max_timestamp=max(record.timestamp for record in part),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            record_count=len(part),
        )
        parts.append(
            replace(batch, base_sequence=sequence, record_count=len(part), data=data),
        )
        if sequence != NO_SEQUENCE:
            sequence = next_sequence(sequence, len(part))
    return parts


@dataclass(frozen=True, slots=True)
class _Record:
    """An encoded record. `rest` contains the bytes after the timestamp delta and offset delta."""

    timestamp: int
    attributes: bytes
    rest: memoryview

    def at(self, base_timestamp: int, offset_delta: int) -> bytes:
        """Encode the record with a different base timestamp and offset delta."""
        deltas = varint(self.timestamp - base_timestamp) + varint(offset_delta)
        body_bytes = len(self.attributes) + len(deltas) + len(self.rest)
        return b"".join((varint(body_bytes), self.attributes, deltas, self.rest))


def _records(section: memoryview, count: int, base_timestamp: int) -> list[_Record]:
    found, position = [], 0
    for _ in range(count):
        body_bytes, start = _number(section, position)
        timestamp_delta, after = _number(section, start + 1)
        _, after = _number(section, after)
        position = start + body_bytes
        found.append(
            _Record(
                base_timestamp + timestamp_delta,
                bytes(section[start : start + 1]),
                section[after:position],
            )
        )
    assert position == len(section)
    return found


def _number(section: memoryview, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position after the varint."""
    unsigned, shift = 0, 0
    while section[position] & 0x80:
        unsigned |= (section[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    unsigned |= section[position] << shift
    return unsigned >> 1 ^ -(unsigned & 1), position + 1


def _halves(records: list[_Record]) -> tuple[list[_Record], list[_Record]]:
    """Split the records into two parts.

    The parts have similar sizes unless a single record contains most of the bytes.
    """
    left = sum(len(record.rest) for record in records) // 2
    for index, record in enumerate(records[:-1], 1):
        left -= len(record.rest)
        if left <= 0:
            return records[:index], records[index:]
    return records[:-1], records[-1:]
