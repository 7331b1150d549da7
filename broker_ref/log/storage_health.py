"""The health of a log's storage: converts storage errors to errors for clients.

Purpose: answer clients when the storage fails. Invariant: after a failed write, `require` rejects
everything permanently, because the state on disk is unknown; a failed read, or a write that did not
start, changes nothing. Must not know: logs. Kafka takes the whole log directory offline.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError
from broker_ref.log.storage import RetriableStorageError, StorageError

logger = logging.getLogger(__name__)


@contextmanager
def not_retriable() -> Iterator[None]:
    """Convert RetriableStorageError to StorageError, because the block cannot be repeated."""
    try:
        yield
    except RetriableStorageError as error:
        raise StorageError(str(error)) from error


class StorageHealth:
    """The state of the storage of one log."""

    def __init__(self, directory: str) -> None:
        self.error: str | None = None
        """Why writes are rejected, or None."""
        self._directory = directory

    def require(self) -> None:
        """Raise LogError(KAFKA_STORAGE_ERROR) if a write has failed."""
        if self.error is not None:
            raise LogError(ErrorCode.kafka_storage_error, self.error)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Convert a read error to a LogError; the log does not change."""
        try:
            yield
        except StorageError as error:
            raise LogError(
                ErrorCode.kafka_storage_error,
                f"The storage of {self._directory} failed: {error}",
            ) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Take the log offline if a write fails, as Kafka does with a log directory."""
        try:
            yield
        except RetriableStorageError as error:
            raise LogError(
                ErrorCode.kafka_storage_error,
                f"{self._directory} cannot be written at the moment: {error}",
            ) from error
        except StorageError as error:
            self.error = (
                f"{self._directory} rejects writes since a storage failure: {error} Repair the "
                "storage, then restart the broker."
            )
            logger.error("%s", self.error)
            raise LogError(ErrorCode.kafka_storage_error, self.error) from error
