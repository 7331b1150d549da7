"""The metadata log as record batches, which brokers fetch.

This module encodes and decodes batches of `__cluster_metadata`. Invariants: a batch contains
exactly one commit (records that take effect together), so brokers never apply only part of a
commit. The base offset of a batch is the offset of its first metadata record. The value of each
record is JSON. Source: KIP-595, KIP-630.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from broker_ref.controller.metadata import Commit
from broker_ref.controller.records import (
    MetadataRecord,
    UnreadableRecordError,
    decode_records,
    encode_record,
    join_records,
)
from broker_ref.log.batch import Record, encode_batch, parse_batches, unpack_header
from broker_ref.log.batch import decode_records as decode_batch
from broker_ref.log.errors import LogError
from broker_ref.protocol.identifiers import Uuid

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = Uuid(int=1)
METADATA_PARTITION: Final = 0

CONTROLLER_EPOCH: Final = 0
"""The epoch of the controller. It never changes, because there are no controller elections."""

CACHED_BYTES_MAX: Final = 1 << 14
"""The maximum size of a batch that is decoded once for all brokers of a process.

Commits are immutable, so the brokers can share them.
"""


def encode_commit(base_offset: int, encoded: Iterable[bytes]) -> bytes:
    """Encode a commit as one batch. `encoded` contains at least one encoded record."""
    return encode_batch(
        [Record(value=value) for value in encoded],
        base_offset=base_offset,
        leader_epoch=CONTROLLER_EPOCH,
    )


def decode_commits(data: bytes) -> Iterator[Commit]:
    """Yield the commits in `data`, which contains complete batches.

    Raises: UnreadableRecordError during the iteration.
    """
    position = 0
    try:
        for header in parse_batches(data) if data else ():
            batch = data[position : position + header.size_bytes]
            decode = _decode_commit if header.size_bytes <= CACHED_BYTES_MAX else _decode_new_commit
            yield decode(batch)
            position += header.size_bytes
    except LogError as error:
        raise UnreadableRecordError(str(error)) from error


def _decode_new_commit(batch: bytes) -> Commit:
    encoded = join_records(record.value or b"" for record in decode_batch(batch))
    return Commit(base_offset=unpack_header(batch).base_offset, records=decode_records(encoded))


_decode_commit = lru_cache(maxsize=64)(_decode_new_commit)


def encode_snapshot(records: Iterable[MetadataRecord]) -> bytes:
    """Encode a snapshot. The offset of a record is its position in the snapshot."""
    return encode_commit(0, map(encode_record, records))


def decode_snapshot(data: bytes) -> list[MetadataRecord]:
    """Decode the records of a complete snapshot. Raises: UnreadableRecordError."""
    return [record for commit in decode_commits(data) for record in commit.records]
