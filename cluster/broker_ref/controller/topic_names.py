"""Validates topic names. Source: Kafka's `Topic.validate` and `TopicCollection`."""

from __future__ import annotations

import re
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError

NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if `name` is not a valid topic name."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"it is {len(name)} characters long, but the maximum is {NAME_LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        reason = f"'{name}' contains characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise ApiError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")


def metric_name(name: str) -> str:
    """Return the topic's name in metrics, with `_` instead of `.`.

    Two topics must not have the same name in metrics.
    """
    return name.replace(".", "_")
