"""Parse JAAS login modules: `<class> <control flag> (<option>=<value>)*;`.

Error messages never contain option values, because a value may be a password. Sources: `JaasConfig`
and `JaasContext` in Apache Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from broker_ref.frozen import dataclass

_CONTROL_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")

_TOKEN: Final = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/                          # skipped
      | (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<sign>[=;])
      | (?P<word>[^\s=;"']+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class InvalidJaasError(ValueError):
    """The text is not a JAAS login module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JaasEntry:
    """A login module and its options, which may be secrets."""

    login_module: str
    options: Mapping[str, str] = field(repr=False)


def parse_jaas(text: str) -> JaasEntry:
    """Parse a config with exactly one login module. Raises: InvalidJaasError."""
    tokens = _tokens(text)
    entries = []
    while tokens:
        entries.append(_entry(tokens))
    if not entries:
        raise InvalidJaasError("Login module not specified in JAAS config")
    if len(entries) != 1:
        raise InvalidJaasError(
            f"JAAS config property contains {len(entries)} login modules, should be 1 module"
        )
    return entries[0]


def _entry(tokens: list[tuple[str, str]]) -> JaasEntry:
    login_module = tokens.pop(0)[1]
    if not tokens:
        raise InvalidJaasError("Login module control flag not specified in JAAS config")
    _, flag = tokens.pop(0)
    if flag.upper() not in _CONTROL_FLAGS:
        raise InvalidJaasError("Invalid login module control flag in JAAS config")
    options: dict[str, str] = {}
    while tokens and tokens[0] != ("sign", ";"):
        _, key = tokens.pop(0)
        if len(tokens) < 2 or tokens[0] != ("sign", "=") or tokens[1][0] == "sign":
            raise InvalidJaasError("Value not specified for an option in JAAS config")
        options[key] = tokens[1][1]
        del tokens[:2]
    if not tokens:
        raise InvalidJaasError("JAAS config entry not terminated by semi-colon")
    tokens.pop(0)
    return JaasEntry(login_module=login_module, options=options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidJaasError(f"Unterminated quote at position {position} in JAAS config")
        position = match.end()
        kind = match.lastgroup
        if kind == "quoted":
            tokens.append((kind, _ESCAPE.sub(_unescaped, match.group()[1:-1])))
        elif kind is not None:
            tokens.append((kind, match.group()))
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPED.get(match.group(1), match.group(1))
