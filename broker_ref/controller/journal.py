"""The durable, append-only journal of cluster metadata.

Purpose: keep batches of records so that a batch is there whole or not at all, in the order
written, before anyone is told of it. On disk: the magic, then per batch its length and CRC-32C
(big-endian, four bytes each) and its bytes.

Invariant: a batch that `append` returned from survives any crash. A torn tail, which no caller
was told of, is cut; damage before the tail is refused by name and position. What it must not
know: what the records mean.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from broker_ref.controller.records import (
    MetadataRecord,
    UnreadableRecordError,
    decode_records,
    encode_records,
)
from broker_ref.log.errors import LogError
from broker_ref.log.storage import Storage, StorageError

MAGIC: Final = b"BRMETA\x00\x01"
_FRAME: Final = struct.Struct(">II")


class CorruptJournalError(LogError):
    """The journal is damaged where that cannot be a torn write: names the file and position."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class Journal:
    """An open journal; `batches` are those found when it was opened."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._file = storage.open(path)
        self._failure: str | None = None
        self.batches = self._recover()

    def append(self, records: Sequence[MetadataRecord]) -> None:
        """Write one batch and make it durable.

        StorageError where that fails, and from then on: what is on disk is not known any more.
        """
        if self._failure is not None:
            raise StorageError(f"{self._failure} Mend that, then restart the broker.")
        data = encode_records(records)
        try:
            self._file.append(_FRAME.pack(len(data), crc32c(data)) + data)
            self._file.flush()
        except StorageError as error:
            self._failure = str(error)
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _recover(self) -> list[tuple[MetadataRecord, ...]]:
        data = self._file.read(0, self._file.size())
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            self._file.truncate(0)
            self._file.append(MAGIC)
            self._file.flush()
            return []
        if not data.startswith(MAGIC):
            raise CorruptJournalError(
                f"{self._file.path} is not a metadata journal of this version: it begins with "
                f"{data[: len(MAGIC)]!r}. Restore it from a copy or start with an empty directory."
            )
        batches = []
        position = len(MAGIC)
        while (end := self._batch_end(data, position)) is not None:
            batches.append(self._decode(data, position, end))
            position = end
        if position < len(data):
            self._file.truncate(position)
            self._file.flush()
        return batches

    def _batch_end(self, data: bytes, position: int) -> int | None:
        """Where the whole batch at `position` ends; None where only a torn tail is left."""
        if position + _FRAME.size > len(data):
            return None
        length, checksum = _FRAME.unpack_from(data, position)
        start = position + _FRAME.size
        end: int = start + length
        if end > len(data) or not any(data[position:]):
            return None
        if crc32c(data[start:end]) == checksum:
            return end
        if end == len(data):
            return None
        raise CorruptJournalError(
            f"{self._file.path} is damaged at byte {position}, before its last batch. "
            "Restore it from a copy or start with an empty directory."
        )

    def _decode(self, data: bytes, position: int, end: int) -> tuple[MetadataRecord, ...]:
        try:
            return decode_records(data[position + _FRAME.size : end])
        except UnreadableRecordError as error:
            raise CorruptJournalError(
                f"{self._file.path} has a batch at byte {position} that this version of the "
                f"broker cannot read ({error}). Start the version that wrote it."
            ) from error
