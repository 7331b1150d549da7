"""Record batches in message format v2 (KIP-98): decoding, checks and encoding.

All fields are big-endian. The CRC (CRC-32C) covers the bytes from `attributes` to the end of the
batch, so a broker can set the base offset and the leader epoch without recomputing the CRC.

| position | size | field                  | notes                                              |
| -------: | ---: | ---------------------- | -------------------------------------------------- |
|        0 |    8 | base offset            | 0 from producers; the broker assigns it            |
|        8 |    4 | length                 | number of bytes after this field                   |
|       12 |    4 | partition leader epoch | the broker sets it                                 |
|       16 |    1 | magic                  | 2                                                  |
|       17 |    4 | crc                    | CRC-32C of [21, end)                               |
|       21 |    2 | attributes             | bits 0-2: codec, bit 3: LogAppendTime, bit 4:      |
|          |      |                        | transactional, bit 5: control, bit 6: the base     |
|          |      |                        | timestamp is the delete horizon                    |
|       23 |    4 | last offset delta      | last offset - base offset                          |
|       27 |    8 | base timestamp         | milliseconds; records contain deltas from it       |
|       35 |    8 | max timestamp          | milliseconds; applies to all records with          |
|          |      |                        | LogAppendTime                                      |
|       43 |    8 | producer id            | -1 if the producer is not idempotent               |
|       51 |    2 | producer epoch         |                                                    |
|       53 |    4 | base sequence          | sequence of the first record, -1 if not idempotent |
|       57 |    4 | record count           |                                                    |
|       61 |      | records                | compressed together if a codec is set              |

The log uses these functions to read, check and change batches, usually without decoding their
records. The module `records` encodes and decodes single records. Invariant: no bytes beyond the
given data are read, even if a length in a batch is wrong. Source: `DefaultRecordBatch`,
`ByteBufferLogInputStream`, `UnifiedLog.analyzeAndValidateRecords` and `LogValidator`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from broker_ref.log.compression import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    decompressed_pieces,
)
from broker_ref.log.errors import LogError
from broker_ref.log.records import (
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    Record,
    decode_record,
    encode_record,
    split_records,
)

__all__ = ["NO_TIMESTAMP", "Compression", "Record"]

MAGIC = 2
LOG_OVERHEAD_BYTES = 12
HEADER_UP_TO_MAGIC_BYTES = 17
HEADER_BYTES = 61
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35
# The minimum size of a record in any format (LegacyRecord); a smaller length is invalid.
_LEGACY_RECORD_BYTES_MIN = 14
# Batch sizes and positions in a segment are int32.
BATCH_BYTES_MAX = 2**31 - 1

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

HEADER = struct.Struct("!qiibIhiqqqhii")
_PREFIX = struct.Struct("!qi")
_OFFSET_LENGTH_EPOCH = struct.Struct("!qii")
_CRC = struct.Struct("!I")

Buffer = bytes | bytearray | memoryview


class TimestampType(StrEnum):
    """The timestamp type of a record; the values are those of `message.timestamp.type`."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class BatchHeader(NamedTuple):
    """The header of a batch, with the fields of `HEADER`."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the batch including the header."""
        return self.length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record, or -1. Sequences wrap from 2^31-1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> Compression:
        """Return the codec. Raises: LogError(UNKNOWN_SERVER_ERROR) for an unknown codec."""
        codec = self.attributes & COMPRESSION_MASK
        if codec > Compression.ZSTD:
            # Kafka also returns this error code, because it does not handle its exception for
            # unknown codecs.
            raise LogError(ErrorCode.unknown_server_error, f"Unknown compression type id: {codec}")
        return Compression(codec)

    @property
    def is_compressed(self) -> bool:
        return bool(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & LOG_APPEND_TIME_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Return the time after which tombstones of the batch can be removed, or None (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


def increment_sequence(sequence: int, increment: int) -> int:
    """Return `sequence + increment`, wrapping from 2^31-1 to 0."""
    return (sequence + increment) & SEQUENCE_MAX


def unpack_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at `position`. At least 61 bytes must follow this position."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def crc_matches(batch: Buffer) -> bool:
    """Return whether the CRC of a batch is correct. `batch` must be exactly one batch."""
    stored: int = _CRC.unpack_from(batch, CRC_POSITION)[0]
    return stored == crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])


def store_crc(batch: bytearray) -> None:
    """Compute the CRC of a batch and store it. `batch` must be exactly one batch."""
    with memoryview(batch) as view, view[ATTRIBUTES_POSITION:] as covered:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(covered))


def parse_batches(records: Buffer) -> tuple[BatchHeader, ...]:
    """Check the format and the CRC of the batches in `records` and return their headers.

    An incomplete batch at the end of `records` is ignored, as in Kafka.

    Raises: LogError(CORRUPT_MESSAGE) for an invalid length, an unknown magic byte or a wrong CRC;
    LogError(INVALID_RECORD) for magic 0 or 1, or if there is no complete batch. Produce requests of
    version 3 and later must use message format v2 (`ProduceRequest.validateRecords`).
    """
    view = memoryview(records)
    headers: list[BatchHeader] = []
    position = 0
    while (size_bytes := _next_batch_bytes(view, position)) is not None:
        if view[position + HEADER_UP_TO_MAGIC_BYTES - 1] != MAGIC:
            raise LogError(
                ErrorCode.invalid_record,
                "A record batch has message format "
                f"v{view[position + HEADER_UP_TO_MAGIC_BYTES - 1]}, but v2 is required. Use a "
                "client that supports Produce version 3 or later.",
            )
        if size_bytes < HEADER_BYTES:
            raise LogError(
                ErrorCode.corrupt_message,
                f"A record batch of {size_bytes} bytes is smaller than a batch header.",
            )
        batch = view[position : position + size_bytes]
        if not crc_matches(batch):
            raise LogError(
                ErrorCode.corrupt_message,
                f"The CRC of a record batch of {size_bytes} bytes does not match its contents.",
            )
        headers.append(unpack_header(batch))
        position += size_bytes
    if not headers:
        raise LogError(
            ErrorCode.invalid_record,
            "The request must contain at least one record batch per partition.",
        )
    return tuple(headers)


def parse_checked_batches(data: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    """Return the headers and bytes of batches that are complete and have been checked."""
    view = memoryview(data)
    batches = []
    position = 0
    while position < len(view):
        header = unpack_header(view, position)
        batches.append((header, view[position : position + header.size_bytes]))
        position += header.size_bytes
    return batches


def end_offset_of(data: Buffer) -> int:
    """Return the offset after the last batch. The batches must be complete and checked."""
    position, last = 0, 0
    while position < len(data):
        last = position
        position += LOG_OVERHEAD_BYTES + _PREFIX.unpack_from(data, position)[1]
    return unpack_header(data, last).next_offset


def _next_batch_bytes(view: memoryview, position: int) -> int | None:
    """Return the size of the batch at `position`, or None if it is incomplete."""
    remaining = len(view) - position
    if remaining < LOG_OVERHEAD_BYTES:
        return None
    length: int = _PREFIX.unpack_from(view, position)[1]
    if length < _LEGACY_RECORD_BYTES_MIN or length > BATCH_BYTES_MAX - LOG_OVERHEAD_BYTES:
        raise LogError(
            ErrorCode.corrupt_message, f"A record batch has an invalid length of {length}."
        )
    if remaining < HEADER_UP_TO_MAGIC_BYTES:
        return None
    magic = view[position + HEADER_UP_TO_MAGIC_BYTES - 1]
    if magic > MAGIC:
        raise LogError(
            ErrorCode.corrupt_message, f"A record batch has an unknown magic byte: {magic}."
        )
    size_bytes = length + LOG_OVERHEAD_BYTES
    return size_bytes if size_bytes <= remaining else None


def check_produced_batch(header: BatchHeader) -> None:
    """Check the header of a batch from a client (`LogValidator.validateBatch`, origin CLIENT).

    Raises: LogError(UNKNOWN_SERVER_ERROR) for an unknown codec, and LogError(INVALID_RECORD) in
    these cases:

    - The base offset is not 0.
    - The record count does not match the offsets, or is too large for the size of the batch.
    - The batch is a control batch, or has a producer id but no sequence number.
    """
    counted = header.last_offset_delta + 1
    records_bytes = header.size_bytes - HEADER_BYTES
    reason = None
    if header.base_offset != 0:
        reason = f"its base offset must be 0, not {header.base_offset}"
    elif counted <= 0:
        reason = f"its last offset delta must be at least 0, not {header.last_offset_delta}"
    elif header.record_count <= 0:
        reason = f"its record count must be at least 1, not {header.record_count}"
    elif counted != header.record_count:
        reason = f"its record count is {header.record_count}, but its offsets require {counted}"
    elif not header.is_compressed and counted * RECORD_BYTES_MIN > records_bytes:
        reason = f"its {records_bytes} bytes of records cannot contain {counted} records"
    elif header.is_control:
        reason = "clients cannot write control records"
    elif header.has_producer_id and header.base_sequence < 0:
        reason = f"producer {header.producer_id} sent the invalid sequence {header.base_sequence}"
    if reason is not None:
        raise LogError(ErrorCode.invalid_record, f"The record batch was rejected: {reason}.")
    _ = header.compression


def rewrite(
    batch: Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> bytearray:
    """Return a copy of a batch with the fields that the broker assigns.

    With CreateTime, `log_append_time_ms` is None. With LogAppendTime, it becomes the max timestamp
    of the copy, and the timestamp type is set in the attributes. The CRC is recomputed only if the
    attributes or the max timestamp have changed.
    """
    patched = bytearray(batch)
    length: int = _PREFIX.unpack_from(patched)[1]
    _OFFSET_LENGTH_EPOCH.pack_into(patched, 0, base_offset, length, leader_epoch)
    fields = HEADER.unpack_from(patched)
    attributes, max_timestamp = fields[5], fields[8]
    if log_append_time_ms is None:
        new_attributes, new_max_timestamp = attributes & ~LOG_APPEND_TIME_BIT, max_timestamp
    else:
        new_attributes, new_max_timestamp = attributes | LOG_APPEND_TIME_BIT, log_append_time_ms
    if (new_attributes, new_max_timestamp) != (attributes, max_timestamp):
        struct.pack_into("!h", patched, ATTRIBUTES_POSITION, new_attributes)
        struct.pack_into("!q", patched, MAX_TIMESTAMP_POSITION, new_max_timestamp)
        store_crc(patched)
    return patched


def decode_records(
    batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """Yield the records of a complete batch whose CRC has been checked.

    Raises during iteration: LogError(INVALID_RECORD) if the records do not match the header,
    LogError(CORRUPT_MESSAGE) if the compressed data is corrupt or too large.
    """
    view = memoryview(batch)
    header = unpack_header(view)
    pieces = decompressed_pieces(
        header.compression, view[HEADER_BYTES:], bytes_max=decompressed_bytes_max
    )
    for body in split_records(pieces, header.record_count):
        record = decode_record(
            body, base_offset=header.base_offset, base_timestamp=header.base_timestamp
        )
        if not header.base_offset <= record.offset <= header.last_offset:
            raise LogError(
                ErrorCode.invalid_record,
                f"A record has offset {record.offset}, but its batch contains offsets "
                f"{header.base_offset} to {header.last_offset}.",
            )
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            record = replace(record, timestamp=header.max_timestamp)
        yield record


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Encode an uncompressed batch with CreateTime, for internal topics and tests.

    The records receive consecutive offsets starting at `base_offset`. The `offset` fields of the
    records are ignored.
    """
    listed = list(records)
    base_timestamp = listed[0].timestamp
    body = b"".join(
        encode_record(record, offset_delta=delta, timestamp_delta=record.timestamp - base_timestamp)
        for delta, record in enumerate(listed)
    )
    attributes = (TRANSACTIONAL_BIT if is_transactional else 0) | (CONTROL_BIT if is_control else 0)
    batch = bytearray(HEADER_BYTES) + body
    HEADER.pack_into(
        batch, 0, base_offset, len(batch) - LOG_OVERHEAD_BYTES, leader_epoch, MAGIC, 0,
        attributes, len(listed) - 1, base_timestamp, max(r.timestamp for r in listed),
        producer_id, producer_epoch, base_sequence, len(listed),
    )  # fmt: skip
    store_crc(batch)
    return bytes(batch)
