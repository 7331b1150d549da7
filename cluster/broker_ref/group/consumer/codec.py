"""Encodes and decodes structs in Kafka's flexible format.

    string, bytes   varint length + 1, then the bytes; null has length 0
    array           varint count + 1, then the elements
    struct          its fields, then the tagged fields: varint count, then for each field: varint
                    tag, varint size, value
    numbers         big-endian

A `StructCodec` is a table that describes the fields of a record value. Invariant: `read` is the
inverse of `write`. Source: KIP-482.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.reader import Cursor

Write = Callable[[Any], bytes]
Read = Callable[[Cursor], Any]


@dataclass(frozen=True, slots=True)
class Codec:
    """A pair of functions that encode and decode values of one type."""

    write: Write
    read: Read


def _number(layout: str) -> Codec:
    packer = struct.Struct(layout)
    return Codec(packer.pack, lambda cursor: cursor.fixed(packer, "a number"))


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _write_bytes(data: bytes) -> bytes:
    return varint(len(data) + 1) + data


def _read_bytes(cursor: Cursor) -> bytes:
    return cursor.take(cursor.unsigned_varint("a length") - 1, "a value")


def _read_nullable_string(cursor: Cursor) -> str | None:
    length = cursor.unsigned_varint("a length") - 1
    return None if length == -1 else cursor.take(length, "a string").decode()


INT8: Final = _number(">b")
INT32: Final = _number(">i")
INT64: Final = _number(">q")
UUID: Final = Codec(
    lambda value: bytes(value.bytes), lambda cursor: Uuid(bytes=cursor.take(16, "a uuid"))
)
BYTES: Final = Codec(_write_bytes, _read_bytes)
STRING: Final = Codec(
    lambda text: _write_bytes(text.encode()), lambda cursor: _read_bytes(cursor).decode()
)
NULLABLE_STRING: Final = Codec(
    lambda text: b"\x00" if text is None else _write_bytes(text.encode()), _read_nullable_string
)


def array(element: Codec) -> Codec:
    """Return the codec of an array. Arrays are decoded as tuples."""

    def read(cursor: Cursor) -> tuple[Any, ...]:
        count = cursor.array_length(flexible=True, what="an array")
        return tuple([element.read(cursor) for _ in range(count)])

    return Codec(
        lambda items: varint(len(items) + 1) + b"".join([element.write(one) for one in items]), read
    )


def nullable(codec: Codec) -> Codec:
    """Return the codec of a nullable struct: the byte 1 and the struct, or the byte 0 for null."""
    return Codec(
        lambda value: b"\x00" if value is None else b"\x01" + codec.write(value),
        lambda cursor: codec.read(cursor) if cursor.take(1, "a presence byte") != b"\x00" else None,
    )


@dataclass(frozen=True, slots=True)
class StructCodec:
    """The codec of a dataclass: its fields in order, and its tagged fields by tag.

    `omitted` maps the name of a tagged field to a value. If the field has this value, it is not
    encoded. The class must define a default for each field in `omitted`.
    """

    type: type[Any]
    fields: Mapping[str, Codec]
    tagged: Mapping[int, tuple[str, Codec]] = field(default_factory=dict)
    omitted: Mapping[str, Any] = field(default_factory=dict)

    def write(self, value: Any) -> bytes:
        """Encode an instance of the class."""
        parts = [codec.write(getattr(value, name)) for name, codec in self.fields.items()]
        present = [
            (tag, codec.write(getattr(value, name)))
            for tag, (name, codec) in self.tagged.items()
            if name not in self.omitted or getattr(value, name) != self.omitted[name]
        ]
        parts.append(varint(len(present)))
        for tag, data in present:
            parts += (varint(tag), varint(len(data)), data)
        return b"".join(parts)

    def read(self, cursor: Cursor) -> Any:
        """Decode an instance of the class. Unknown tagged fields are skipped."""
        values = {name: codec.read(cursor) for name, codec in self.fields.items()}
        for _ in range(cursor.unsigned_varint("the number of tagged fields")):
            tag = cursor.unsigned_varint("a tag")
            data = cursor.take(cursor.unsigned_varint("the size of a tagged field"), "its value")
            if tag in self.tagged:
                name, codec = self.tagged[tag]
                values[name] = codec.read(Cursor(data))
        return self.type(**values)

    @property
    def codec(self) -> Codec:
        """The codec for this struct as a field of another struct."""
        return Codec(self.write, self.read)
