"""Topic ids: 128-bit ids, generated and printed as in Kafka.

Purpose: the only module of the core that imports `uuid`, for the type only (random bytes are an
argument). Invariant: `random_uuid` never returns an id that Kafka reserves or that a command line
would parse as an option. Source: `org.apache.kafka.common.Uuid`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final
from uuid import UUID

Uuid = UUID

ZERO_UUID: Final = Uuid(int=0)
"""Kafka's "no id"."""

_RESERVED_BELOW: Final = 100
"""Kafka reserves the first hundred ids."""


def random_uuid(random_bytes: Callable[[int], bytes]) -> Uuid:
    """Return a version 4 id that is not reserved and does not start with a dash."""
    while True:
        candidate = Uuid(bytes=random_bytes(16), version=4)
        if candidate.int >= _RESERVED_BELOW and not uuid_text(candidate).startswith("-"):
            return candidate


def uuid_text(uuid: Uuid) -> str:
    """Return the 22 characters of URL-safe base64 that Kafka prints."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def uuid_from_text(text: str) -> Uuid:
    """Parse the output of `uuid_text`. Raises: ValueError."""
    try:
        return Uuid(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise ValueError(f"Not a base64 id as Kafka prints it: {text!r}.") from error
