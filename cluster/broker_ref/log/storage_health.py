"""The health of a log's storage, and the conversion of storage errors into client errors.

Invariants: after a failed write, `require` raises an error until the log is reopened, because
the state on disk is unknown. A failed read does not affect later operations, and a write that
could not be started does not affect them either. In Kafka, a failed write takes the entire log
directory offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from kio.schema.errors import ErrorCode

from broker_ref.log.errors import LogError
from broker_ref.log.storage import RetriableStorageError, StorageError

logger = logging.getLogger(__name__)


@contextmanager
def not_retriable() -> Iterator[None]:
    """Convert RetriableStorageError to StorageError for operations that cannot be retried."""
    try:
        yield
    except RetriableStorageError as error:
        raise StorageError(str(error)) from error


class ErrorConversion:
    """A reusable context manager that converts each StorageError to another error.

    `convert` is called with the StorageError, and raises the new error.
    """

    def __init__(self, convert: Callable[[StorageError], None]) -> None:
        self._convert = convert

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, StorageError):
            self._convert(exc)


class StorageHealth:
    """The state of the storage of one log."""

    def __init__(self, directory: str) -> None:
        self.error: str | None = None
        """The reason why writes are rejected, or None."""
        self._directory = directory
        self._reading = ErrorConversion(self._read_failed)
        self._writing = ErrorConversion(self._write_failed)

    def require(self) -> None:
        """Raise LogError(KAFKA_STORAGE_ERROR) if a previous write has failed."""
        if self.error is not None:
            raise LogError(ErrorCode.kafka_storage_error, self.error)

    def reading(self) -> ErrorConversion:
        """Convert StorageError to LogError(KAFKA_STORAGE_ERROR). The log remains usable."""
        return self._reading

    def writing(self) -> ErrorConversion:
        """Reject all further writes to the log if a write in the `with` block fails.

        Kafka does the same for an entire log directory.
        """
        return self._writing

    def _read_failed(self, error: StorageError) -> None:
        raise LogError(
            ErrorCode.kafka_storage_error, f"The storage of {self._directory} failed: {error}"
        ) from error

    def _write_failed(self, error: StorageError) -> None:
        if isinstance(error, RetriableStorageError):
            raise LogError(
                ErrorCode.kafka_storage_error,
                f"A write to {self._directory} was not started and can be retried: {error}",
            ) from error
        self.error = (
            f"{self._directory} rejects writes because of a storage failure: {error} Repair the "
            "storage, then restart the broker."
        )
        logger.error("%s", self.error)
        raise LogError(ErrorCode.kafka_storage_error, self.error) from error
