"""Whether a log's storage still does what it is told, and who hears of it when it does not.

Purpose: turn errors of the storage into errors that a client is answered. Invariant: after a write
that failed, `require` refuses everything for good, for what is on disk is unknown then; a read that
failed, or a write that never began, changes nothing. What it must not know: logs. Kafka takes the
whole log directory offline.
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
    """What is in here cannot be left half done: an error in it is no `RetriableStorageError` any more."""
    try:
        yield
    except RetriableStorageError as error:
        raise StorageError(str(error)) from error


class StorageHealth:
    """The state of the storage of one log."""

    def __init__(self, directory: str) -> None:
        self.error: str | None = None
        """Why nothing may be written any more, None while it may."""
        self._directory = directory

    def require(self) -> None:
        """Raises: LogError(KAFKA_STORAGE_ERROR) where a write has failed before."""
        if self.error is not None:
            raise LogError(ErrorCode.kafka_storage_error, self.error)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """An error is the client's to hear; in reading it does the log no harm."""
        try:
            yield
        except StorageError as error:
            raise LogError(
                ErrorCode.kafka_storage_error,
                f"An error of the storage of {self._directory}: {error}",
            ) from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A write that fails takes the log offline, as it does a log directory of Kafka's."""
        try:
            yield
        except RetriableStorageError as error:
            raise LogError(
                ErrorCode.kafka_storage_error, f"{self._directory} cannot be written now: {error}"
            ) from error
        except StorageError as error:
            self.error = (
                f"{self._directory} takes no more writes since an error of its storage: {error} "
                "Mend that, then restart the broker."
            )
            logger.error("%s", self.error)
            raise LogError(ErrorCode.kafka_storage_error, self.error) from error
