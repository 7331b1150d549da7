"""The durable journal of cluster metadata.

The journal stores batches of records in order, before the changes in these records become visible.
A batch is either complete or absent.

File format: the file starts with the magic bytes, followed by batches. Each batch starts with three
big-endian fields of four bytes: the length of the payload, the CRC-32C of the payload, and the
CRC-32C of the first two fields. The payload follows. It consists of an offset (eight bytes) and the
records. The first batch is a snapshot of all earlier records, and its offset is the end offset of
the snapshot. In the other batches, the offset is the offset of the first record. The offsets are
contiguous.

Invariant: a batch survives any crash after `append` has returned. A torn batch at the end of the
file is truncated, because `append` did not acknowledge it. If there is other corruption (in the
first batch, or before a valid batch), opening the journal raises CorruptJournalError with the file
and the position.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from typing import Final

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import Commit
from broker_ref.controller.records import (
    UnreadableRecordError,
    decode_records,
    join_records,
)
from broker_ref.log.errors import LogError
from broker_ref.log.storage import Storage, StorageError

MAGIC: Final = b"BRMETA\x00\x03"
_SUMMARY: Final = struct.Struct(">II")
_FRAME: Final = struct.Struct(">III")
_OFFSET: Final = struct.Struct(">Q")

logger = logging.getLogger(__name__)


class CorruptJournalError(LogError):
    """The journal is corrupt for a reason other than a torn write."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, message)


class Journal:
    """An open journal. The file is created if it does not exist.

    `snapshot` and `commits` are the contents of the file when it was opened. `release_contents`
    frees them. `snapshot.base_offset` is the end offset of the snapshot. `failure` is the reason
    why the journal rejects writes, or None if it accepts them.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        """Open the journal. Raises: CorruptJournalError or StorageError."""
        self._storage = storage
        self._path = path
        self.failure: str | None = None
        if not storage.exists(path):
            storage.write_atomically(path, MAGIC + _framed(0, ()))
        self._file = storage.open(path)
        self.snapshot, *self.commits = self._recover()

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return self._file.size()

    def release_contents(self) -> None:
        """Release the memory of `snapshot` and `commits`."""
        self.snapshot, self.commits = Commit(base_offset=0, records=()), []

    def append(self, base_offset: int, encoded: Iterable[bytes]) -> None:
        """Append one batch durably. `encoded` contains the encoded records.

        After the first StorageError, all further appends fail as well, because the state on disk is
        unknown.
        """
        if self.failure is not None:
            raise StorageError(f"{self.failure} Repair the storage, then restart the controller.")
        try:
            self._file.append(_framed(base_offset, encoded))
            self._file.flush()
        except StorageError as error:
            self.failure = str(error)
            raise

    def rewrite(self, encoded: Iterable[bytes], *, end_offset: int) -> None:
        """Replace the contents atomically with a snapshot that consists of the encoded records.

        Raises: StorageError.
        """
        self._file.close()
        try:
            self._storage.write_atomically(self._path, MAGIC + _framed(end_offset, encoded))
            self._file = self._storage.open(self._path)
        except StorageError as error:
            self.failure = str(error)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _recover(self) -> list[Commit]:
        data = self._file.read(0, self._file.size())
        if not data.startswith(MAGIC):
            raise CorruptJournalError(
                f"{self._path} is not a metadata journal of this broker version, because it starts "
                f"with {data[: len(MAGIC)]!r}. Restore the file from a backup or start with an "
                "empty directory."
            )
        batches: list[Commit] = []
        position = len(MAGIC)
        next_offset = None
        while (end := _batch_end(data, position)) is not None:
            batch = self._decode(data, position, end)
            if next_offset is not None and batch.base_offset != next_offset:
                raise CorruptJournalError(
                    f"{self._path} is corrupt at byte {position}. A batch starts at offset "
                    f"{batch.base_offset}, but offset {next_offset} was expected. Restore the "
                    "file from a backup."
                )
            next_offset = batch.base_offset if next_offset is None else batch.end_offset
            batches.append(batch)
            position = end
        is_first = position == len(MAGIC)
        if is_first or any(
            _batch_end(data, later) is not None for later in range(position + 1, len(data))
        ):
            raise CorruptJournalError(
                f"{self._path} is corrupt at byte {position}. The corruption was not caused by an "
                "incomplete write. Restore the file from a backup or start with an empty directory."
            )
        if position < len(data):
            logger.warning("%s: removing an incomplete batch at byte %d", self._path, position)
            self._file.truncate(position)
            self._file.flush()
        return batches

    def _decode(self, data: bytes, position: int, end: int) -> Commit:
        start = position + _FRAME.size
        try:
            offset: int = _OFFSET.unpack_from(data, start)[0]
            records = decode_records(data[start + _OFFSET.size : end])
            return Commit(base_offset=offset, records=records)
        except UnreadableRecordError as error:
            raise CorruptJournalError(
                f"{self._path} contains a batch at byte {position} that this version of the "
                f"broker cannot read ({error}). Use the broker version that wrote the file."
            ) from error


def _framed(offset: int, encoded: Iterable[bytes]) -> bytes:
    data = _OFFSET.pack(offset) + join_records(encoded)
    summary = _SUMMARY.pack(len(data), crc32c(data))
    return _FRAME.pack(len(data), crc32c(data), crc32c(summary)) + data


def _batch_end(data: bytes, position: int) -> int | None:
    """Return the end position of the batch at `position`, or None if there is no valid batch."""
    start = position + _FRAME.size
    if start > len(data):
        return None
    length, checksum, summary_checksum = _FRAME.unpack_from(data, position)
    end: int = start + length
    if end > len(data) or crc32c(data[position : position + _SUMMARY.size]) != summary_checksum:
        return None
    if length < _OFFSET.size:
        return None
    return end if crc32c(data[start:end]) == checksum else None
