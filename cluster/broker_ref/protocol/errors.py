"""The error that API handlers raise.

The error contains a Kafka error code and a message for the client. The `log` package must not
depend on the protocol, so it raises `broker_ref.log.errors.LogError` instead.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

MESSAGE_LENGTH_MAX: Final = 1000
"""Maximum length of a message, which may contain a long name from the request."""


class ApiError(Exception):
    """A request, or a part of a request, is rejected with `error_code`."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        if len(message) > MESSAGE_LENGTH_MAX:
            message = message[:MESSAGE_LENGTH_MAX] + "..."
        super().__init__(message)
        self.error_code = error_code
        self.message = message


def unknown_partition(topic: str, partition: int) -> ApiError:
    """Return the error for a topic or partition that does not exist on this broker."""
    return ApiError(
        ErrorCode.unknown_topic_or_partition,
        f"This broker does not host partition {partition} of topic {topic!r}.",
    )
