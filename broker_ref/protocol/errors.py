"""The error that an API answers with.

Purpose: a refusal that has a Kafka error code and a message for the client. The log has its own
twin, `broker_ref.log.errors.LogError`, so that it needs nothing of the protocol.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

MESSAGE_LENGTH_MAX: Final = 1000
"""A name in a request may be longer than a message in a response may be."""


class ApiError(Exception):
    """Refused with `error_code`; the message says what and why."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        if len(message) > MESSAGE_LENGTH_MAX:
            message = message[:MESSAGE_LENGTH_MAX] + "..."
        super().__init__(message)
        self.error_code = error_code
        self.message = message


def unknown_partition(topic: str, partition: int) -> ApiError:
    """No such topic, or no such partition of it, on this broker."""
    return ApiError(
        ErrorCode.unknown_topic_or_partition,
        f"This broker does not host partition {partition} of a topic {topic!r}.",
    )
