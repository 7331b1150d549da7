"""The metadata log as record batches, in the form in which brokers fetch it.

Purpose: encode and decode batches of `__cluster_metadata`, for the controller and the brokers.
Invariant: one batch is one commit, so a reader never sees a part of a commit; the base offset of a
batch is the offset of its first metadata record. A record's value is its JSON. Must not know:
requests, readers. Source: KIP-595, KIP-630.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_ref.controller.metadata import Commit
from broker_ref.controller.records import (
    MetadataRecord,
    UnreadableRecordError,
    decode_record,
    encode_record,
)
from broker_ref.log.batch import Record, decode_records, encode_batch, parse_batches
from broker_ref.log.errors import LogError
from broker_ref.protocol.identifiers import Uuid

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = Uuid(int=1)
METADATA_PARTITION: Final = 0

CONTROLLER_EPOCH: Final = 0
"""The only controller is never elected, so its epoch never changes."""


def encode_commit(commit: Commit) -> bytes:
    """Encode one commit of at least one record as one batch."""
    return encode_batch(
        [Record(value=encode_record(record)) for record in commit.records],
        base_offset=commit.base_offset,
        leader_epoch=CONTROLLER_EPOCH,
    )


def decode_commits(data: bytes) -> list[Commit]:
    """Decode the commits of the whole batches in `data`; raise UnreadableRecordError."""
    commits, position = [], 0
    try:
        for header in parse_batches(data) if data else ():
            batch = memoryview(data)[position : position + header.size_bytes]
            records = tuple(decode_record(record.value or b"") for record in decode_records(batch))
            commits.append(Commit(base_offset=header.base_offset, records=records))
            position += header.size_bytes
    except LogError as error:
        raise UnreadableRecordError(str(error)) from error
    return commits


def encode_snapshot(records: Sequence[MetadataRecord]) -> bytes:
    """Encode a snapshot; its offsets are positions within the snapshot."""
    return encode_commit(Commit(base_offset=0, records=tuple(records)))


def decode_snapshot(data: bytes) -> list[MetadataRecord]:
    """Decode the records of a whole snapshot; raise UnreadableRecordError."""
    return [record for commit in decode_commits(data) for record in commit.records]
