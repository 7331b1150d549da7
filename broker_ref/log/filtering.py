"""What is left of one batch after compaction (MemoryRecords.filterTo, KIP-98, KIP-534).

| batch                                        | becomes                                         |
| -------------------------------------------- | ----------------------------------------------- |
| every record stays, no new delete horizon    | itself, byte for byte                           |
| a record goes                                | the same offsets, epoch, producer and sequence  |
|                                              | over the records that stay, in the same codec   |
| a tombstone stays, and no horizon is set yet | its base timestamp says when tombstones may go  |
| no record stays, and its end must be known   | a header without records                        |
| no record stays                              | nothing                                         |

Purpose: that table. Invariant: a batch keeps its first and last offset, so that gaps are between
batches only, and a record that stays keeps its bytes but for the timestamp delta. What it must not
know: which records are the last of their key.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_ref.log.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    TimestampType,
    store_crc,
)
from broker_ref.log.compression import Compression, compressed, decompressed_pieces
from broker_ref.log.records import NO_TIMESTAMP, RecordView, split_records, view_record

_FLAGS = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


def filter_batch(
    header: BatchHeader,
    batch: memoryview,
    *,
    retain: Callable[[RecordView], bool],
    retain_empty: bool,
    new_delete_horizon_ms: int,
) -> bytes | None:
    """The batch with only the records that `retain` wants, None where nothing is left.

    `new_delete_horizon_ms` is the time from which its tombstones may go, set where none is set yet.
    Raises: LogError where its records cannot be read.
    """
    views = view_records(header, batch)
    kept = [view for view in views if retain(view)]
    if not kept:
        return _empty(header) if retain_empty else None
    sets_horizon = header.delete_horizon_ms is None and any(view.is_tombstone for view in kept)
    if len(kept) == len(views) and not sets_horizon:
        return bytes(batch)
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if sets_horizon:
        base_timestamp, attributes = new_delete_horizon_ms, attributes | DELETE_HORIZON_BIT
    shift_ms = header.base_timestamp - base_timestamp
    section = b"".join(view.encode(shift_ms) for view in kept)
    max_timestamp = header.max_timestamp
    if header.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = header.base_timestamp + max(view.timestamp_delta for view in kept)
    return _pack(
        header,
        compressed(header.compression, section),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(kept),
    )


def view_records(header: BatchHeader, batch: memoryview) -> list[RecordView]:
    """The records of a batch, as much of them as compaction looks at. Raises: LogError."""
    pieces = decompressed_pieces(header.compression, batch[HEADER_BYTES:])
    return [view_record(body) for body in split_records(pieces, header.record_count)]


def _empty(header: BatchHeader) -> bytes:
    return _pack(
        header,
        b"",
        attributes=Compression.NONE | header.attributes & _FLAGS,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        record_count=0,
    )


def _pack(
    header: BatchHeader,
    section: bytes,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
) -> bytes:
    packed = bytearray(HEADER_BYTES) + section
    HEADER.pack_into(
        packed, 0, header.base_offset, len(packed) - LOG_OVERHEAD_BYTES,
        header.partition_leader_epoch, header.magic, 0, attributes, header.last_offset_delta,
        base_timestamp, max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, record_count,
    )  # fmt: skip
    store_crc(packed)
    return bytes(packed)
