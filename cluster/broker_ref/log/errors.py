"""The errors of the log and their Kafka error codes.

    Exception
    ├── LogError                    the log rejects a request; clients receive the error code
    │   ├── RecordValidationError   some records of a batch are invalid
    │   └── CorruptLogError         a file on disk is corrupt and cannot be recovered or read
    └── InvalidTopicConfigError     a topic config is invalid (defined in `config`)

Invariant: a rejected append does not change the log.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass


class LogError(Exception):
    """The log rejects a request. The client receives `error_code`."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordError:
    """The index of an invalid record in its batch, and why the record is invalid (KIP-467)."""

    batch_index: int
    message: str


class RecordValidationError(LogError):
    """Some records of a batch are invalid, so the entire batch was rejected.

    Source: `org.apache.kafka.storage.internals.log.RecordValidationException`.
    """

    def __init__(
        self, error_code: ErrorCode, message: str, *, record_errors: tuple[RecordError, ...]
    ) -> None:
        super().__init__(error_code, message)
        self.record_errors = record_errors


class CorruptLogError(LogError):
    """The log file `path` is corrupt at byte `position`, and recovery must not truncate the file.

    The error code is CORRUPT_MESSAGE, because a consumer that receives this error fails instead of
    retrying forever.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            ErrorCode.corrupt_message,
            f"{path} is corrupt at byte {position}: {reason}. The data at and "
            "after this position cannot be served. Restore the file from a replica or a backup, or "
            "remove the partition's directory to start with an empty log.",
        )
        self.path = path
        self.position = position
