"""Which names a topic may have. Source: Kafka's `Topic.validate`, `TopicCollection`."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def check_collision(name: str, existing: Iterable[str]) -> None:
    """INVALID_TOPIC_EXCEPTION where `name` differs from a topic's in '.' against '_' alone.

    Metric names write both as '_', which is why Kafka keeps such topics apart.
    """
    key = name.replace(".", "_")
    if "_" not in key:  # as most names: it then differs from every other elsewhere
        return
    for other in existing:
        if other != name and other.replace(".", "_") == key:
            raise ApiError(
                ErrorCode.invalid_topic_exception,
                f"Topic '{name}' collides with existing topic: {other}",
            )
