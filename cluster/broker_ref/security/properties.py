"""The Java properties format, which Kafka's tools and brokers use for their config files.

Invariant: `parse_properties(format_properties(values)) == values`. Source: `java.util.Properties`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_LINE: Final = re.compile(
    r"(?P<key>(?:\\.|[^\\\s=:])*)(?:\s*[=:]\s*|\s+|$)(?P<value>.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def format_properties(values: Mapping[str, str]) -> str:
    """Return properties as ASCII text, one per line."""
    return "".join(
        f"{_escaped(name, ' =:#!')}={_escaped(value, '')}\n" for name, value in values.items()
    )


def parse_properties(text: str) -> dict[str, str]:
    """Parse text in the properties format. Comments begin with `#` or `!`."""
    values = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None, "The pattern matches every line."
        values[_unescaped(match["key"])] = _unescaped(match["value"])
    return values


def _logical_lines(text: str) -> list[str]:
    """Return the logical lines of a properties file, without comments.

    If a line ends with a backslash, the next line continues it.
    """
    lines: list[str] = []
    continued: str | None = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if continued is None and (not line or line[0] in "#!"):
            continue
        line = (continued or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            continued = line[:-1]
        else:
            continued = None
            lines.append(line)
    return lines if continued is None else [*lines, continued]


def _escaped(text: str, special: str) -> str:
    escaped = []
    for position, character in enumerate(text):
        if character in _ESCAPED.values():
            escaped.append(next(f"\\{key}" for key, one in _ESCAPED.items() if one == character))
        elif character == "\\" or character in special or (character == " " and position == 0):
            escaped.append(f"\\{character}")
        elif " " <= character <= "~":
            escaped.append(character)
        else:
            units = character.encode("utf-16-be")
            escaped += [f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
    return "".join(escaped)


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _ESCAPED.get(escape, escape)

    # Characters outside the BMP are written as two escapes.
    return _ESCAPE.sub(replaced, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
