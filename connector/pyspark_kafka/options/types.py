"""The types of option values: each parses a text, or explains what it must be.

Purpose: `parse` of each type raises `ValueError` whose text completes "option ... has the value
...: it ...". What it must not know: which option the text belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark_kafka.kafka.offsets import INT_MAX, LONG_MAX


@dataclass(frozen=True, slots=True)
class Text:
    """Any text that is not blank."""

    label: str = "text"

    def parse(self, text: str) -> str:
        if not text.strip():
            raise ValueError("it is blank")
        return text.strip()


@dataclass(frozen=True, slots=True)
class Boolean:
    label: str = "boolean"

    def parse(self, text: str) -> bool:
        match text.strip().lower():
            case "true":
                return True
            case "false":
                return False
        raise ValueError("it must be true or false")


@dataclass(frozen=True, slots=True)
class Integer:
    minimum: int
    maximum: int
    label: str = "integer"

    def parse(self, text: str) -> int:
        stripped = text.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", stripped):
            raise ValueError("it must be a whole number")
        number = int(stripped)
        if not self.minimum <= number <= self.maximum:
            raise ValueError(f"it must be a number from {self.minimum} to {self.maximum}")
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    values: tuple[str, ...]
    label: str = "one of"

    def parse(self, text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in self.values:
            raise ValueError(f"it must be {' or '.join(self.values)}")
        return lowered


_MICROSECONDS_PER: Final = MappingProxyType(
    {
        "us": 1,
        "ms": 1_000,
        "s": 1_000_000,
        "m": 60_000_000,
        "min": 60_000_000,
        "h": 3_600_000_000,
        "d": 86_400_000_000,
    }
)


@dataclass(frozen=True, slots=True)
class Duration:
    """Spark's time strings (JavaUtils.timeStringAs): `15m`, `500ms`, `2h`; bare is milliseconds."""

    minimum_ms: int = 0
    maximum_ms: int = LONG_MAX
    label: str = "duration"

    def parse(self, text: str) -> int:
        """Milliseconds, rounded down."""
        match = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
        unit = (match[2] or "ms") if match else ""
        if match is None or unit not in _MICROSECONDS_PER:
            raise ValueError("it must be a number and a unit (us, ms, s, m, h, d), such as 15m")
        duration_ms = int(match[1]) * _MICROSECONDS_PER[unit] // 1_000
        if not self.minimum_ms <= duration_ms <= self.maximum_ms:
            raise ValueError(f"it must be from {self.minimum_ms} ms to {self.maximum_ms} ms")
        return duration_ms


OptionType = Text | Boolean | Integer | Choice | Duration

POSITIVE_INT: Final = Integer(1, INT_MAX)
POSITIVE_LONG: Final = Integer(1, LONG_MAX)
NOT_NEGATIVE_LONG: Final = Integer(0, LONG_MAX)
