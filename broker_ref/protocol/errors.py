"""The error that an API handler raises.

Purpose: a rejection with a Kafka error code and a message for the client. The log has its own
counterpart, `broker_ref.log.errors.LogError`, so that it does not depend on the protocol.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

MESSAGE_LENGTH_MAX: Final = 1000
"""Length limit of a message; a name in a request can be longer than a response allows."""


class ApiError(Exception):
    """A request, or a part of it, is rejected with `error_code`."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        if len(message) > MESSAGE_LENGTH_MAX:
            message = message[:MESSAGE_LENGTH_MAX] + "..."
        super().__init__(message)
        self.error_code = error_code
        self.message = message


def unknown_partition(topic: str, partition: int) -> ApiError:
    """Return the error for a topic or partition that this broker does not host."""
    return ApiError(
        ErrorCode.unknown_topic_or_partition,
        f"This broker does not host partition {partition} of topic {topic!r}.",
    )
