"""Writes Kafka's primitive types.

Strings and lengths can be written in the original encoding or in the flexible encoding (KIP-482).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

NO_TAGGED_FIELDS: Final = b"\0"


def int8(value: int) -> bytes:
    return _INT8.pack(value)


def int16(value: int) -> bytes:
    return _INT16.pack(value)


def int32(value: int) -> bytes:
    return _INT32.pack(value)


def int64(value: int) -> bytes:
    return _INT64.pack(value)


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length(count: int, *, flexible: bool) -> bytes:
    """Encode the length of an array or of a bytes field."""
    return unsigned_varint(count + 1) if flexible else _INT32.pack(count)


def string(text: str, *, flexible: bool) -> bytes:
    data = text.encode()
    return (unsigned_varint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data


def nullable_string(text: str | None, *, flexible: bool) -> bytes:
    if text is not None:
        return string(text, flexible=flexible)
    return unsigned_varint(0) if flexible else _INT16.pack(-1)


def tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a section of tagged fields. The fields must be sorted by tag."""
    out = bytearray(unsigned_varint(len(fields)))
    for tag, data in fields:
        out += unsigned_varint(tag) + unsigned_varint(len(data)) + data
    return bytes(out)
