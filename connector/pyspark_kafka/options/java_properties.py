"""Parses Java properties files according to the rules of `java.util.Properties.load`.

The existing packages for this format either break one of these rules (an escaped separator, a line
that ends in two backslashes) or are larger than this module, because they also write files.
Invariant: no error contains text from the file, because the values may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_BLANKS: Final = " \t\f"
_COMMENT: Final = ("#", "!")
_ENTRY: Final = re.compile(
    r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class JavaPropertiesError(ValueError):
    """The text is not a properties file. `line` is the 1-based number of the invalid line."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} contains a malformed \\uXXXX escape")
        self.line = line


def parse_java_properties(text: str) -> dict[str, str]:
    """Parse properties. For duplicate keys, the last value wins. Raises `JavaPropertiesError`."""
    properties = {}
    for number, line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None  # A logical line does not end in a lone backslash.
        properties[_unescape(entry["key"], number)] = _unescape(entry["value"], number)
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the logical lines with their line numbers.

    A line that ends in a backslash continues on the next line.
    """
    logical, first = "", 1
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_BLANKS)
        if not logical:
            first = number
            if line.startswith(_COMMENT):
                continue
        logical += line
        if _is_continued(line):
            logical = logical[:-1]
        elif logical:
            yield first, logical
            logical = ""
    if logical:
        yield first, logical


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped == "u":
            raise JavaPropertiesError(line)
        return chr(int(escaped[1:], 16)) if escaped[1:] else _CONTROLS.get(escaped, escaped)

    # Java's characters are UTF-16 code units: two escapes can form one character.
    units = _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")
