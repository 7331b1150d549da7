"""The metadata as brokers fetch it: a log of record batches.

Purpose: both sides of `__cluster_metadata`, the controller's, which writes batches, and the
brokers', which read them. Invariant: one batch is one commit, so a reader never sees a part of
one; the base offset of a batch is the offset of its first metadata record. A record's value is
its JSON. What it must not know: requests, and who reads. Source: KIP-595, KIP-630.
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
"""There is one controller, which nobody elects: its epoch never changes."""


def encode_commit(commit: Commit) -> bytes:
    """One batch of at least one record."""
    return encode_batch(
        [Record(value=encode_record(record)) for record in commit.records],
        base_offset=commit.base_offset,
        leader_epoch=CONTROLLER_EPOCH,
    )


def decode_commits(data: bytes) -> list[Commit]:
    """The commits of the whole batches in `data`; UnreadableRecordError where they are damaged."""
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
    """The bytes of a snapshot; offsets in it are places in the snapshot alone."""
    return encode_commit(Commit(base_offset=0, records=tuple(records)))


def decode_snapshot(data: bytes) -> list[MetadataRecord]:
    """The records of a whole snapshot; UnreadableRecordError where it is damaged."""
    return [record for commit in decode_commits(data) for record in commit.records]
