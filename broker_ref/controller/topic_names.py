"""Which names a topic may have. Source: Kafka's `Topic.validate`, `TopicCollection`."""

from __future__ import annotations

import re
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError

NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """INVALID_TOPIC_EXCEPTION where no topic may be called `name`."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"it has {len(name)} characters, where {NAME_LENGTH_MAX} are allowed"
    elif _LEGAL.fullmatch(name) is None:
        reason = f"'{name}' contains characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise ApiError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")


def metric_name(name: str) -> str:
    """How metrics write a topic's name, with `.` as `_`: no two topics may share it."""
    return name.replace(".", "_")
