"""The errors of the log and their Kafka error codes.

    Exception
    ├── LogError                    a request that the log rejects, with the client's error code
    │   ├── RecordValidationError   single records of a batch are invalid, each named
    │   └── CorruptLogError         a file on disk is damaged and cannot be recovered or served
    └── InvalidTopicConfigError     a topic config that Kafka would reject (in `config`)

Purpose: assign each rejection a Kafka error code. Invariant: a rejected append has not changed
anything. Must not know: requests and responses, which the API handlers build from these errors.
"""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode


class LogError(Exception):
    """The log rejects a request; clients get `error_code`."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordError:
    """An invalid record: its index in the batch, and why (ProduceResponse version 8, KIP-467)."""

    batch_index: int
    message: str


class RecordValidationError(LogError):
    """Single records of a batch are invalid; nothing of the batch was appended.

    Source: `org.apache.kafka.storage.internals.log.RecordValidationException`.
    """

    def __init__(
        self, error_code: ErrorCode, message: str, *, record_errors: tuple[RecordError, ...]
    ) -> None:
        super().__init__(error_code, message)
        self.record_errors = record_errors


class CorruptLogError(LogError):
    """A file of the log is damaged at byte `position` of `path`, where recovery must not truncate.

    The error code is CORRUPT_MESSAGE, on which consumers fail instead of retrying forever.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            ErrorCode.corrupt_message,
            f"{path} is damaged at byte {position}: {reason}. Data from there on cannot be "
            "served. Restore the file from a replica or a backup, or remove the partition's "
            "directory to start with an empty log.",
        )
        self.path = path
        self.position = position
