"""Parses and prints the numbers in config values as Java does.

Unlike Java (`Long.parseLong`, `Double.parseDouble`), Python accepts underscores between the digits.
These functions reject underscores.
"""

from __future__ import annotations

from decimal import Decimal


def parse_integer(text: str) -> int:
    """Parse an integer. Raises: ValueError."""
    return int(_without_underscores(text))


def parse_double(text: str) -> float:
    """Parse a floating-point number. Raises: ValueError."""
    return float(_without_underscores(text))


def print_double(value: float) -> str:
    """Return the text of a finite number (`Double.toString`)."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, exponent = f"{Decimal(repr(value)).normalize():E}".split("E")
    return f"{digits if '.' in digits else f'{digits}.0'}E{int(exponent)}"


def _without_underscores(text: str) -> str:
    if "_" in text:
        raise ValueError(f"the number {text!r} must not contain underscores")
    return text
