"""The types of option values.

A type parses the text of an option and describes the valid values for docs/options.md and for error
messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark_kafka.kafka.offsets import INT_MAX, LONG_MAX

# Every type has three members: the method `parse`, which raises `ValueError` for invalid text, the
# name `label` for docs/options.md, and the text `expected` for the sentence "Set it to ...".


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is not blank. Leading and trailing whitespace is removed."""

    label: str = "string"
    expected: str = "a value that is not blank"

    def parse(self, text: str) -> str:
        if not text.strip():
            raise ValueError(text)
        return text.strip()


@dataclass(frozen=True, slots=True)
class Boolean:
    label: str = "boolean"
    expected: str = "true or false"

    def parse(self, text: str) -> bool:
        match text.strip().lower():
            case "true":
                return True
            case "false":
                return False
        raise ValueError(text)


@dataclass(frozen=True, slots=True)
class Integer:
    minimum: int
    maximum: int

    @property
    def label(self) -> str:
        return "integer" if self.minimum == 0 else f"integer >= {self.minimum}"

    @property
    def expected(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"

    def parse(self, text: str) -> int:
        stripped = text.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", stripped):
            raise ValueError(text)
        number = int(stripped)
        if not self.minimum <= number <= self.maximum:
            raise ValueError(text)
        return number


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several lower-case values. Case is ignored."""

    values: tuple[str, ...]

    @property
    def label(self) -> str:
        return ", ".join(f"`{value}`" for value in self.values)

    @property
    def expected(self) -> str:
        return " or ".join(f"'{value}'" for value in self.values)

    def parse(self, text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in self.values:
            raise ValueError(text)
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
    """A time string in Spark's format (`JavaUtils.timeStringAs`), for example `15m` or `500ms`.

    A number without a unit means milliseconds.
    """

    minimum_ms: int = 0
    maximum_ms: int = LONG_MAX
    label: str = "duration"

    @property
    def expected(self) -> str:
        return (
            "a number with a unit (us, ms, s, m, h or d), such as 15m, in the range from "
            f"{self.minimum_ms} ms to {self.maximum_ms} ms"
        )

    def parse(self, text: str) -> int:
        """Return the duration in milliseconds, rounded down."""
        match = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
        unit = (match[2] or "ms") if match else ""
        if match is None or unit not in _MICROSECONDS_PER:
            raise ValueError(text)
        duration_ms = int(match[1]) * _MICROSECONDS_PER[unit] // 1_000
        if not self.minimum_ms <= duration_ms <= self.maximum_ms:
            raise ValueError(text)
        return duration_ms


_UNITS: Final = "kmgtp"


@dataclass(frozen=True, slots=True)
class ByteSize:
    """A positive size in Spark's format (`JavaUtils.byteStringAs`), such as `512m` or `1gb`.

    The units are powers of 1024. A number without a unit is a number of bytes.
    """

    label: str = "size"
    expected: str = "a positive number with a unit (k, m, g, t or p), such as 512m"

    def parse(self, text: str) -> int:
        """Return the size in bytes."""
        match = re.fullmatch(rf"([0-9]{{1,19}})([{_UNITS}])?b?", text.strip().lower())
        power = _UNITS.index(match[2]) + 1 if match and match[2] else 0
        size = int(match[1]) * 1024**power if match else 0
        if not 1 <= size <= LONG_MAX:
            raise ValueError(text)
        return size


OptionType = Text | Boolean | Integer | Choice | Duration | ByteSize

POSITIVE_INT: Final = Integer(1, INT_MAX)
POSITIVE_LONG: Final = Integer(1, LONG_MAX)
NOT_NEGATIVE_LONG: Final = Integer(0, LONG_MAX)
