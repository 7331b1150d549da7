"""The `partition.metadata` file, which contains the topic id of a log.

As in Kafka, a new file is flushed just before the first record is written, not when the file is
created. The broker can therefore create many partitions without waiting for the disk. Invariant: a
log with durable records has a durable topic id. Source: Kafka's `PartitionMetadataFile`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from broker_ref.log.errors import CorruptLogError
from broker_ref.log.segment import has_records
from broker_ref.log.storage import File, Storage
from broker_ref.protocol.identifiers import Uuid, uuid_from_text, uuid_text

PARTITION_METADATA_FILE: Final = "partition.metadata"


class PartitionMetadataFile:
    """The file in the directory of one log."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self.path: Final = f"{directory}/{PARTITION_METADATA_FILE}"
        self._storage = storage
        self._directory = directory
        self._file: File | None = None
        self._is_flushed = False

    def read(self) -> Uuid | None:
        """Return the topic id, or None if there is none.

        The result is None if the file is missing, or if the file is damaged and the log is empty. A
        power failure can damage an unflushed file, but only while the log is empty. Raises:
        StorageError, or CorruptLogError if the file is damaged and the log contains records.
        """
        if not self._storage.exists(self.path):
            return None
        for line in self._storage.read(self.path).decode(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name != "topic_id":
                continue
            with suppress(ValueError):
                topic_id = uuid_from_text(value.strip())
                if uuid_text(topic_id) == value.strip():
                    return topic_id
        if has_records(self._storage, self._directory):
            raise CorruptLogError(self.path, 0, "the file does not contain a topic id")
        return None

    def record(self, topic_id: Uuid) -> None:
        """Write the id of the topic to the page cache. Raises: StorageError."""
        file = self._storage.open(self.path)
        if file.size():
            file.truncate(0)
        file.append(f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode())
        file.close()
        self._file = file

    def maybe_flush(self) -> None:
        """Flush the file to disk, unless this object has already flushed it. Raises: StorageError.

        An existing file is flushed too, because an earlier process may have been killed before it
        flushed the file.
        """
        if not self._is_flushed:
            file = self._file or self._storage.open(self.path)
            file.flush()
            file.close()
            self._file, self._is_flushed = None, True
