"""Encode Arrow rows as record batches in plain Python.

This is the readable reference implementation, which is also used if the compiled kernel (`_kernel`)
is not installed. It returns the same bytes and errors as `_kernel`. The docstring of `_pure`
describes the format. Source: KIP-98, DefaultRecordBatch, DefaultRecord and BuiltInPartitioner of
Apache Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from crc32c import crc32c

from pyspark_kafka.records.compression import compressor
from pyspark_kafka.records.contract import Buffer, Codec
from pyspark_kafka.records.encoding import (
    HEADER_BYTES,
    LENGTH_BYTES_MAX,
    NO_SEQUENCE,
    EncodedBatch,
    Encoding,
    next_sequence,
    no_such_partition,
    too_large,
)
from pyspark_kafka.records.partitioning import partition_of_key

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_POSITION: Final = 17
CRC_END: Final = 21
_LENGTH_END: Final = 12
_PARTITION_LEADER_EPOCH: Final = -1
_MAGIC: Final = 2
_TRANSACTIONAL_BIT: Final = 0x10

_NAMES: Final = ("partition", "timestamp", "key", "value", "headers")

# In the first record of a batch, attributes, timestamp delta and offset delta are one byte each.
_FIRST_DELTAS_BYTES: Final = 3


def encode(rows: pa.RecordBatch, encoding: Encoding) -> list[EncodedBatch]:
    """See `encoding.Encode`."""
    batches: list[_OpenBatch] = []
    open_batches: dict[int, _OpenBatch] = {}
    turn = 0
    for row in _rows(rows, encoding):
        partition = _partition(row, encoding)
        if partition is None:
            partition = encoding.unkeyed[turn]
            if partition in open_batches and not open_batches[partition].has_room_for(row):
                turn = (turn + 1) % len(encoding.unkeyed)
                partition = encoding.unkeyed[turn]
        row.check_size(encoding, partition)
        batch = open_batches.get(partition)
        if batch is None or not batch.has_room_for(row):
            batch = _OpenBatch(partition, encoding.batch_bytes_max, row.timestamp)
            open_batches[partition] = batch
            batches.append(batch)
        batch.append(row)
    return _closed(batches, encoding)


def _partition(row: _Row, encoding: Encoding) -> int | None:
    """Return the partition of a row, or None if the row has neither a partition nor a key."""
    if row.partition is not None:
        if not 0 <= row.partition < encoding.partition_count:
            raise no_such_partition(encoding, row.partition)
        return row.partition
    if row.key is None:
        return None
    return partition_of_key(row.key, encoding.partition_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row. `fields` contains the fields of the encoded record, starting with the key length."""

    partition: int | None
    timestamp: int
    key: memoryview | None
    fields: tuple[Buffer, ...]
    fields_bytes: int

    def check_size(self, encoding: Encoding, partition: int) -> None:
        """Raise `RowError` if a batch with only this row is too large for Kafka's format."""
        body_bytes = _FIRST_DELTAS_BYTES + self.fields_bytes
        batch_bytes = HEADER_BYTES + len(varint(body_bytes)) + body_bytes
        if batch_bytes - _LENGTH_END > LENGTH_BYTES_MAX:
            raise too_large(encoding, partition, batch_bytes)


def _rows(rows: pa.RecordBatch, encoding: Encoding) -> Iterator[_Row]:
    columns: dict[str, Iterable[Any]] = {name: repeat(None, rows.num_rows) for name in _NAMES}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name in ("key", "value"):
            columns[name] = binaries(column)
        elif name == "headers":
            columns[name] = column
        elif name in _NAMES:
            columns[name] = column.cast(pa.int64()).to_pylist()
    for partition, timestamp, key, value, headers in zip(
        *(columns[name] for name in _NAMES), strict=True
    ):
        fields = (*_nullable(key), *_nullable(value), *_headers(headers))
        yield _Row(
            partition=partition,
            timestamp=encoding.now_ms if timestamp is None else timestamp,
            key=key,
            fields=fields,
            fields_bytes=sum(map(len, fields)),
        )


def binaries(column: Any) -> Iterator[memoryview | None]:
    """Yield views of the values of a binary or string column."""
    if not len(column):
        return
    _, offsets, data = column.buffers()
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    bounds = memoryview(offsets).cast("q" if is_large else "i")[column.offset :]
    content = memoryview(data or b"")
    for index, is_valid in enumerate(column.is_valid().to_pylist()):
        yield content[bounds[index] : bounds[index + 1]] if is_valid else None


def _headers(scalar: Any) -> Iterator[Buffer]:
    """Yield the encoded headers. Null is encoded as an empty list."""
    if scalar is None or not scalar.is_valid:
        yield varint(0)
        return
    pairs = scalar.values
    yield varint(len(pairs))
    for key, value in zip(
        binaries(pairs.field("key")), binaries(pairs.field("value")), strict=True
    ):
        yield from _nullable(key)
        yield from _nullable(value)


def _nullable(data: Buffer | None) -> tuple[Buffer, ...]:
    return (varint(-1),) if data is None else (varint(len(data)), data)


@lru_cache(maxsize=1 << 14)
def varint(number: int) -> bytes:
    """Encode a number of at most 64 bits as a zigzag varint."""
    unsigned = number << 1 ^ number >> 63
    encoded = bytearray()
    while unsigned > 0x7F:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)


@dataclass(slots=True)
class _OpenBatch:
    partition: int
    bytes_max: int
    base_timestamp: int
    max_timestamp: int = field(init=False)
    record_count: int = 0
    size_bytes: int = HEADER_BYTES
    section: list[Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.max_timestamp = self.base_timestamp

    def has_room_for(self, row: _Row) -> bool:
        size_bytes = sum(map(len, self._deltas(row))) + row.fields_bytes
        return not self.record_count or self.size_bytes + size_bytes <= self.bytes_max

    def append(self, row: _Row) -> None:
        record = (*self._deltas(row), *row.fields)
        self.section += record
        self.size_bytes += sum(map(len, record))
        self.record_count += 1
        self.max_timestamp = max(self.max_timestamp, row.timestamp)

    def _deltas(self, row: _Row) -> tuple[bytes, bytes]:
        """Return the encoded length of a record, and its encoded attributes and deltas."""
        timestamp_delta = varint(row.timestamp - self.base_timestamp)
        deltas = b"\0" + timestamp_delta + varint(self.record_count)
        return varint(len(deltas) + row.fields_bytes), deltas


def _closed(batches: list[_OpenBatch], encoding: Encoding) -> list[EncodedBatch]:
    producer, codec = encoding.producer, encoding.codec
    compress = None if codec is Codec.NONE else compressor(codec, encoding.level)
    attributes = codec | (_TRANSACTIONAL_BIT if producer.is_transactional else 0)
    next_sequences = dict(producer.next_sequences)
    closed: list[EncodedBatch] = []
    for batch in batches:
        sequence = NO_SEQUENCE
        if producer.is_idempotent:
            sequence = next_sequences.get(batch.partition, 0)
            next_sequences[batch.partition] = next_sequence(sequence, batch.record_count)
        written: Buffer = b"".join(batch.section)
        if compress is not None:
            written = compress(memoryview(written))
        if HEADER_BYTES + len(written) - _LENGTH_END > LENGTH_BYTES_MAX:
            raise too_large(encoding, batch.partition, HEADER_BYTES + len(written))
        data = assembled(
            written,
            attributes=attributes,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            record_count=batch.record_count,
        )
        closed.append(
            EncodedBatch(
                partition=batch.partition,
                base_sequence=sequence,
                record_count=batch.record_count,
                data=data,
            )
        )
    return closed


def assembled(
    section: Buffer,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> memoryview:
    """Build a batch. `section` contains the records, compressed with the codec in `attributes`."""
    data = bytearray(HEADER_BYTES)
    data += section
    HEADER.pack_into(
        data,
        0,
        0,
        len(data) - _LENGTH_END,
        _PARTITION_LEADER_EPOCH,
        _MAGIC,
        0,
        attributes,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    return sealed(data)


def sealed(data: bytearray) -> memoryview:
    """Write the CRC into the batch, and return a read-only view of the batch."""
    struct.pack_into(">I", data, CRC_POSITION, crc32c(memoryview(data)[CRC_END:]))
    return memoryview(data).toreadonly()
