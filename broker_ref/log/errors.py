"""What the log refuses, and with which Kafka error code.

    Exception
    ├── LogError                   a request the log refuses; carries the code a client gets
    │   ├── RecordValidationError        single records of a batch are at fault, each named
    │   └── CorruptLogError             a file on disk is damaged and cannot be recovered or served
    └── InvalidTopicConfigError              a topic config that Kafka would refuse (in `config`)

Purpose: one place that ties a refusal of the log to a Kafka error code. Invariant: a refused
append has changed nothing that a reader or a later append can see. What it must not know:
requests and responses, which are built from these by the API handlers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode


class LogError(Exception):
    """The log refuses a request; `error_code` is what the client is answered."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordError:
    """One record at fault: its index in the batch, and why (ProduceResponse v8, KIP-467)."""

    batch_index: int
    message: str


class RecordValidationError(LogError):
    """Records of an otherwise sound batch are invalid; nothing of the batch was appended."""

    def __init__(
        self, error_code: ErrorCode, message: str, *, record_errors: tuple[RecordError, ...]
    ) -> None:
        super().__init__(error_code, message)
        self.record_errors = record_errors


class CorruptLogError(LogError):
    """A file of the log is damaged where recovery may not cut: `path` and `position` say where.

    Its code is CORRUPT_MESSAGE, which makes consumers fail loudly instead of retrying for ever.
    """

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(
            ErrorCode.corrupt_message,
            f"{path} is damaged at byte {position}: {reason}. Nothing from there on is served; "
            "restore the file from a replica or a backup, or remove the partition's directory "
            "to start it empty.",
        )
        self.path = path
        self.position = position
