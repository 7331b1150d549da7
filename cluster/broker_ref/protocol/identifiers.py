"""Topic ids: 128-bit ids that are generated and printed as in Kafka.

No other module of the core imports `uuid`. This module uses only the type `UUID`, and callers
provide the random bytes. Invariant: `random_uuid` never returns an id that Kafka reserves, or an id
that a command-line tool would parse as an option. Source: `org.apache.kafka.common.Uuid`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final
from uuid import UUID

Uuid = UUID

ZERO_UUID: Final = Uuid(int=0)
"""The id that means "no id" (Kafka's `Uuid.ZERO_UUID`)."""

_RESERVED_BELOW: Final = 100
"""Kafka reserves the ids from 0 to 99."""


def random_uuid(random_bytes: Callable[[int], bytes]) -> Uuid:
    """Return a random version 4 UUID that is not reserved and does not start with a dash."""
    while True:
        candidate = Uuid(bytes=random_bytes(16), version=4)
        if candidate.int >= _RESERVED_BELOW and not uuid_text(candidate).startswith("-"):
            return candidate


def uuid_text(uuid: Uuid) -> str:
    """Return the id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def uuid_from_text(text: str) -> Uuid:
    """Parse the output of `uuid_text`. Raises: ValueError."""
    try:
        return Uuid(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise ValueError(
            f"{text!r} is not a valid id. Use 22 characters of URL-safe base64."
        ) from error
