"""Parses the numbers in config values as Java does.

Python accepts underscores between the digits, Java does not (`Long.parseLong`,
`Double.parseDouble`).
"""

from __future__ import annotations


def parse_integer(text: str) -> int:
    """Parse an integer. Raises: ValueError."""
    return int(_without_underscores(text))


def parse_double(text: str) -> float:
    """Parse a floating-point number. Raises: ValueError."""
    return float(_without_underscores(text))


def _without_underscores(text: str) -> str:
    if "_" in text:
        raise ValueError(f"a number must not contain underscores, but it is {text!r}")
    return text
