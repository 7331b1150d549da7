"""The durable journal of cluster metadata.

Purpose: keep batches of records so that a batch is there whole or not at all, in the order
written, before anyone is told of it. On disk: the magic, then per batch a frame (big-endian, four
bytes each: its length, its CRC-32C, the CRC-32C of these eight bytes) and its bytes. The first
batch is what all earlier ones added up to when the file was written, as a whole.

Invariant: a batch that `append` returned from survives any crash. A torn tail, which no caller
was told of, is cut; what cannot be one (damage in the first batch, or with a sound batch after it)
is refused by name and position. What it must not know: what the records mean.
"""

from __future__ import annotations

import logging
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

MAGIC: Final = b"BRMETA\x00\x02"
_SUMMARY: Final = struct.Struct(">II")
_FRAME: Final = struct.Struct(">III")

logger = logging.getLogger(__name__)


class CorruptJournalError(LogError):
    """The journal is damaged where that cannot be a torn write: names the file and position."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class Journal:
    """An open journal, made where it is missing; `batches` are those found when it was opened."""

    def __init__(self, storage: Storage, path: str) -> None:
        """Raises: CorruptJournalError, StorageError."""
        self._storage = storage
        self._path = path
        self._failure: str | None = None
        if not storage.exists(path):
            storage.write_atomically(path, MAGIC + _framed(()))
        self._file = storage.open(path)
        self.batches = self._recover()

    def append(self, records: Sequence[MetadataRecord]) -> None:
        """Write one batch and make it durable.

        StorageError where that fails, and from then on: what is on disk is not known any more.
        """
        if self._failure is not None:
            raise StorageError(f"{self._failure} Mend that, then restart the broker.")
        try:
            self._file.append(_framed(records))
            self._file.flush()
        except StorageError as error:
            self._failure = str(error)
            raise

    def rewrite(self, records: Sequence[MetadataRecord]) -> None:
        """Put one batch in the place of all, at once and durably; StorageError as for `append`."""
        self._file.close()
        try:
            self._storage.write_atomically(self._path, MAGIC + _framed(records))
            self._file = self._storage.open(self._path)
        except StorageError as error:
            self._failure = str(error)
            raise

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _recover(self) -> list[tuple[MetadataRecord, ...]]:
        data = self._file.read(0, self._file.size())
        if not data.startswith(MAGIC):
            raise CorruptJournalError(
                f"{self._path} is not a metadata journal of this version: it begins with "
                f"{data[: len(MAGIC)]!r}. Restore it from a copy or start with an empty directory."
            )
        batches = []
        position = len(MAGIC)
        while (end := _batch_end(data, position)) is not None:
            batches.append(self._decode(data, position, end))
            position = end
        is_first = position == len(MAGIC)
        if is_first or any(
            _batch_end(data, later) is not None for later in range(position + 1, len(data))
        ):
            raise CorruptJournalError(
                f"{self._path} is damaged at byte {position}, which is no torn end. "
                "Restore it from a copy or start with an empty directory."
            )
        if position < len(data):
            logger.warning("%s ends in a torn batch at byte %d, which is cut", self._path, position)
            self._file.truncate(position)
            self._file.flush()
        return [batch for batch in batches if batch]

    def _decode(self, data: bytes, position: int, end: int) -> tuple[MetadataRecord, ...]:
        try:
            return decode_records(data[position + _FRAME.size : end])
        except UnreadableRecordError as error:
            raise CorruptJournalError(
                f"{self._path} has a batch at byte {position} that this version of the "
                f"broker cannot read ({error}). Start the version that wrote it."
            ) from error


def _framed(records: Sequence[MetadataRecord]) -> bytes:
    data = encode_records(records)
    summary = _SUMMARY.pack(len(data), crc32c(data))
    return _FRAME.pack(len(data), crc32c(data), crc32c(summary)) + data


def _batch_end(data: bytes, position: int) -> int | None:
    """Where the batch at `position` ends; None where no whole and sound one is."""
    start = position + _FRAME.size
    if start > len(data):
        return None
    length, checksum, summary_checksum = _FRAME.unpack_from(data, position)
    end: int = start + length
    if end > len(data) or crc32c(data[position : position + _SUMMARY.size]) != summary_checksum:
        return None
    return end if crc32c(data[start:end]) == checksum else None
