"""Principals: the identities of clients, from their certificates or SASL logins.

If a client has a certificate, `ssl.principal.mapping.rules` maps the distinguished name of the
certificate's subject to the principal name. The rules expect distinguished names as Java prints
them (RFC 2253). Sources: `DefaultKafkaPrincipalBuilder`, `SslPrincipalMapper` and
`DefaultPrincipalData` in Apache Kafka.
"""

from __future__ import annotations

import re
import string
from typing import Any, Final

from asn1crypto import core, x509

from broker_ref.frozen import dataclass

USER: Final = "User"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, printed as in ACLs, for example `User:alice`."""

    name: str
    type: str = USER

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")

# Principals in Envelope requests --------------------------------------------------------------

_PRINCIPAL_VERSION: Final = b"\x00\x00"
_END: Final = b"\x00\x00"  # The client did not use a delegation token. There are no tagged fields.


def encode_principal(principal: Principal) -> bytes:
    """Encode a principal as `DefaultPrincipalData` version 0."""
    return _PRINCIPAL_VERSION + _compact(principal.type) + _compact(principal.name) + _END


def decode_principal(data: bytes) -> Principal | None:
    """Decode the result of `encode_principal`, or return None if the data is not valid."""
    texts: list[str] = []
    rest = data.removeprefix(_PRINCIPAL_VERSION)
    try:
        while len(texts) < 2:
            length, shift = 0, 0
            while True:
                byte, rest = rest[0], rest[1:]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            if not 0 < length <= len(rest) + 1:
                return None
            texts.append(rest[: length - 1].decode())
            rest = rest[length - 1 :]
    except (IndexError, UnicodeDecodeError):
        return None
    if not data.startswith(_PRINCIPAL_VERSION) or len(rest) < len(_END):
        return None
    return Principal(name=texts[1], type=texts[0])


def _compact(text: str) -> bytes:
    encoded = text.encode()
    length, prefix = len(encoded) + 1, bytearray()
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + encoded


# Distinguished names --------------------------------------------------------------------------

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""The attribute types that RFC 2253 names. For other types, Java prints the object identifier."""

_ESCAPED: Final = frozenset(',=+<>#;"\\')
_PRINTABLE: Final = frozenset(string.ascii_letters + string.digits + " '()+,-./:=?")


def distinguished_name(certificate: bytes) -> str:
    """Return a DER-encoded certificate's subject as Java's `X500Principal.getName` prints it.

    Raises: ValueError if the certificate cannot be decoded.
    """
    subject = x509.Certificate.load(certificate).subject.chosen
    return ",".join("+".join(_attribute(each) for each in part) for part in reversed(subject))


def _attribute(attribute: Any) -> str:
    oid = attribute["type"].dotted
    value = attribute["value"]
    value = value.chosen if isinstance(value, core.Choice) else value
    if oid not in _KEYWORDS or not isinstance(value, core.AbstractString):
        return f"{oid}=#{value.dump().hex()}"
    return f"{_KEYWORDS[oid]}={_escaped(value.native)}"


def _escaped(text: str) -> str:
    inner = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    end = len(text) - start - len(inner)
    escaped = "".join(
        f"\\{character}" if character in _ESCAPED else "\\00" if character == "\0" else character
        for character in inner
    )
    return "\\ " * start + escaped + "\\ " * end


# Mapping rules --------------------------------------------------------------------------------

_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_RULE_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_RULE_PARSER: Final = re.compile(_RULE)
_BACK_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)")


class InvalidMappingRuleError(ValueError):
    """A rule in `ssl.principal.mapping.rules` cannot be parsed."""


class NoMatchingRuleError(ValueError):
    """No rule in `ssl.principal.mapping.rules` matches a distinguished name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingRule:
    """A mapping rule. If `pattern` is None, the rule is DEFAULT. `case` is `L`, `U` or empty."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the principal name, or None if the rule does not match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        mapped = self.pattern.sub(self._replacement, name)
        return {"L": mapped.lower, "U": mapped.upper}.get(self.case, lambda: mapped)()

    def _replacement(self, match: re.Match[str]) -> str:
        def group(found: re.Match[str]) -> str:
            if found.group(1) is not None:
                return found.group(1)
            # As in Java, the longest valid group number is used. The other digits are literal.
            digits = found.group(2)
            for length in range(len(digits), 0, -1):
                if int(digits[:length]) <= match.re.groups:
                    return (match.group(int(digits[:length])) or "") + digits[length:]
            return found.group()

        return _BACK_REFERENCE.sub(group, self.replacement)


@dataclass(frozen=True, slots=True)
class SslPrincipalMapper:
    """The mapping rules for a listener. The first matching rule is used."""

    rules: tuple[MappingRule, ...]

    def name(self, distinguished: str) -> str:
        """Return the principal name for a distinguished name. Raises: NoMatchingRuleError."""
        for rule in self.rules:
            mapped = rule.apply(distinguished)
            if mapped is not None:
                return mapped
        raise NoMatchingRuleError(
            f"no rule in ssl.principal.mapping.rules matches the certificate of {distinguished!r}"
        )


def parse_mapping_rules(text: str) -> SslPrincipalMapper:
    """Parse `ssl.principal.mapping.rules`. Raises: InvalidMappingRuleError."""
    rules = []
    for split in _RULE_SPLITTER.finditer(text.strip()):
        rule = split.group(1)
        match = _RULE_PARSER.match(rule)
        if match is None or match.end() != len(rule):
            raise InvalidMappingRuleError(f"Invalid rule in ssl.principal.mapping.rules: {rule!r}")
        if match.group(1):
            rules.append(MappingRule())
        elif match.group(2) is not None:
            try:
                pattern = re.compile(match.group(2))
            except re.error as error:
                raise InvalidMappingRuleError(
                    f"Invalid rule in ssl.principal.mapping.rules: {rule!r}: {error}"
                ) from error
            rules.append(
                MappingRule(pattern=pattern, replacement=match.group(4), case=match.group(6))
            )
    return SslPrincipalMapper(tuple(rules))
