"""Record values that compress about as well as the lines of a log file.

Invariant: for the same value size, the values are the same on every machine.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Final

DISTINCT: Final = 1024
"""The number of values. A record batch has fewer records, so no batch repeats a value."""

_SEED: Final = 20_240_501
_WORDS: Final = (
    "accepted",
    "authentication",
    "closed",
    "daemon",
    "error",
    "for",
    "host",
    "kernel",
    "login",
    "network",
    "password",
    "preauth",
    "received",
    "root",
    "service",
    "started",
    "user",
)


@lru_cache(maxsize=8)
def values(value_bytes: int) -> tuple[bytes, ...]:
    """Return `DISTINCT` ASCII values of exactly `value_bytes` bytes, without line breaks."""
    draw = random.Random(_SEED)  # noqa: S311, nothing is secret here
    return tuple(_line(draw, value_bytes) for _ in range(DISTINCT))


def _line(draw: random.Random, value_bytes: int) -> bytes:
    parts: list[str] = []
    length = 0
    while length < value_bytes:
        is_number = draw.random() < 0.4
        parts.append(str(draw.randrange(10**8)) if is_number else draw.choice(_WORDS))
        length += len(parts[-1]) + 1
    return " ".join(parts).encode()[:value_bytes].ljust(value_bytes, b".")
