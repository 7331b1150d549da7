"""Topic ids: the 128-bit ids of topics, made and spelt as Kafka does.

Purpose: the one place of the core that imports `uuid`, for the type alone (nothing here draws a
random one: the bytes are an argument). Invariant: `random_uuid` never returns an id that
Kafka reserves or that a command line would take for an option. Source: Kafka's `Uuid`.
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
    """A version 4 id that Kafka would hand out: not reserved, not beginning with a dash."""
    while True:
        candidate = Uuid(bytes=random_bytes(16), version=4)
        if candidate.int >= _RESERVED_BELOW and not uuid_text(candidate).startswith("-"):
            return candidate


def uuid_text(uuid: Uuid) -> str:
    """The 22 characters of URL-safe base64 in which Kafka prints ids."""
    return base64.urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def uuid_from_text(text: str) -> Uuid:
    """The inverse of `uuid_text`; ValueError where the text is none."""
    try:
        return Uuid(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise ValueError(f"not one of Kafka's base64 ids: {text!r}") from error
