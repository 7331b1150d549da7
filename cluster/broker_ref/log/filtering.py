"""The part of a batch that compaction retains (`MemoryRecords.filterTo`, KIP-98, KIP-534).

| batch                                           | result                                        |
| ----------------------------------------------- | --------------------------------------------- |
| all records are retained, no new delete horizon | the batch is unchanged                        |
| some records are removed                        | a batch with the retained records, and with   |
|                                                 | the same offsets, leader epoch, producer,     |
|                                                 | sequence and codec                            |
| no delete horizon yet, and either a tombstone   | the base timestamp becomes the delete         |
| is retained or the batch is a marker whose      | horizon, after which compaction can remove    |
| transaction has no other batches                | the tombstone or the marker                   |
| all records are removed, the header is needed   | a header without records                      |
| all records are removed                         | the batch is removed                          |

Invariants: a batch keeps its first and last offset, so offset gaps exist only between batches. In a
retained record, only the timestamp delta changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kio.schema.errors import ErrorCode

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
from broker_ref.log.errors import LogError
from broker_ref.log.records import NO_TIMESTAMP, RecordView, split_records, view_record

_RECORDS_HELD_MAX = 10_000
_FLAGS = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


def filter_batch(
    header: BatchHeader,
    batch: memoryview,
    *,
    retain: Callable[[RecordView], bool],
    retain_empty: bool,
    new_delete_horizon_ms: int | None,
    is_discardable_marker: bool = False,
) -> bytes | None:
    """Return a batch with only the records that `retain` accepts, or None if nothing remains.

    A batch without a delete horizon receives the delete horizon `new_delete_horizon_ms` if it
    contains a tombstone or `is_discardable_marker` is True. If `retain_empty` is True, the header
    of a batch without records is retained. Raises: LogError if the records cannot be decoded.
    """
    held: list[RecordView] | None = None

    def kept() -> Iterable[RecordView]:
        return filter(retain, view_records(header, batch)) if held is None else held

    # Batches with more records are decoded twice to avoid keeping all records in memory.
    if header.record_count <= _RECORDS_HELD_MAX:
        held = list(kept())
    count, max_timestamp, has_tombstone = 0, NO_TIMESTAMP, False
    for view in kept():
        count += 1
        max_timestamp = max(max_timestamp, view.timestamp)
        has_tombstone = has_tombstone or view.is_tombstone
    if count == 0:
        return _empty(header) if retain_empty else None
    base_timestamp, attributes = header.base_timestamp, header.attributes
    may_go_later = has_tombstone or is_discardable_marker
    if may_go_later and header.delete_horizon_ms is None and new_delete_horizon_ms is not None:
        base_timestamp, attributes = new_delete_horizon_ms, attributes | DELETE_HORIZON_BIT
    elif count == header.record_count:
        return bytes(batch)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    section = b"".join(view.encode(base_timestamp) for view in kept())
    return pack(
        header,
        compressed(header.compression, section),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
    )


def view_records(header: BatchHeader, batch: memoryview) -> Iterator[RecordView]:
    """Yield the record fields that compaction needs, one record of the batch at a time.

    Raises during iteration: LogError if the records cannot be decoded, or if their offsets are not
    in ascending order. The offsets are checked because they determine which records of other
    batches are removed.
    """
    pieces = decompressed_pieces(header.compression, batch[HEADER_BYTES:])
    delta_min = 0
    for body in split_records(pieces, header.record_count):
        view = view_record(body, base_timestamp=header.base_timestamp)
        if not delta_min <= view.offset_delta <= header.last_offset_delta:
            raise LogError(
                ErrorCode.invalid_record,
                f"A record has offset {header.base_offset + view.offset_delta}, but an offset from "
                f"{header.base_offset + delta_min} to {header.last_offset} was expected.",
            )
        delta_min = view.offset_delta + 1
        yield view


def _empty(header: BatchHeader) -> bytes:
    return pack(
        header,
        b"",
        attributes=Compression.NONE | header.attributes & _FLAGS,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        record_count=0,
    )


def pack(
    header: BatchHeader,
    section: bytes,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
) -> bytes:
    """Return a batch with the encoded records in `section`.

    The other header fields are copied from `header`.
    """
    packed = bytearray(HEADER_BYTES) + section
    HEADER.pack_into(
        packed, 0, header.base_offset, len(packed) - LOG_OVERHEAD_BYTES,
        header.partition_leader_epoch, header.magic, 0, attributes, header.last_offset_delta,
        base_timestamp, max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, record_count,
    )  # fmt: skip
    store_crc(packed)
    return bytes(packed)
