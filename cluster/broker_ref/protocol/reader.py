"""Decode requests of all versions into one message class per API.

Handlers receive one dataclass per request ("the message") for all versions. If a version does not
contain a field, the message contains the field's default. Fields that the message does not contain
are skipped. kio's entities define the order, types, nullability and tags of the fields in each
version. kio converts fields in milliseconds to timedeltas; in messages, these fields are integers,
and their names end in `_ms`.

Invariants: memory use is proportional to the size of the frame, even if the frame contains
incorrect lengths. Invalid bytes raise only `MalformedRequestError`. kio's own reader is not
suitable, for two reasons. It allocates arrays according to the length in the frame, so that a
30-byte frame can abort the process. It also rejects unknown tagged fields, although the protocol
requires them to be skipped.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_type_hints

from kio.schema.errors import ErrorCode

from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.schema import MILLISECOND_TYPES, FieldSchema, fields_of, struct_of

ELEMENTS_MAX: Final = 2_000_000
"""Maximum number of array elements in a request, which limits the memory for its objects."""

STRING_BYTES_MAX: Final = 32_767
"""Maximum size of a string, as in Kafka. Only the length of a compact string can exceed it."""

_FIXED: Final = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "uint8": struct.Struct(">B"),
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "uint64": struct.Struct(">Q"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
}

MessageType = TypeVar("MessageType")


class MalformedRequestError(Exception):
    """The bytes are not a valid request for the API and version in the header."""


@dataclasses.dataclass(slots=True)
class Cursor:
    """A position in a frame, and the number of array elements that may still be read."""

    frame: bytes
    position: int = 0
    elements_left: int = ELEMENTS_MAX

    def take(self, length: int, what: str) -> bytes:
        """Return the next `length` bytes."""
        end = self.position + length
        if length < 0 or end > len(self.frame):
            raise MalformedRequestError(
                f"{what} at position {self.position} has a length of {length} bytes, but only "
                f"{len(self.frame) - self.position} bytes remain in the frame"
            )
        data = self.frame[self.position : end]
        self.position = end
        return data

    def fixed(self, layout: struct.Struct, what: str) -> Any:
        """Return the next value, which has a fixed size."""
        try:
            (value,) = layout.unpack_from(self.frame, self.position)
        except struct.error:
            raise MalformedRequestError(
                f"the frame ends at byte {len(self.frame)}, in the middle of {what}, which starts "
                f"at byte {self.position}"
            ) from None
        self.position += layout.size
        return value

    def unsigned_varint(self, what: str) -> int:
        """Return the next value, which is an unsigned varint of at most 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            if self.position >= len(self.frame):
                raise MalformedRequestError(
                    f"the frame ends within {what} at position {self.position}"
                )
            byte = self.frame[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRequestError(
            f"{what} at position {self.position} is a varint of more than five bytes"
        )

    def array_length(self, *, flexible: bool, what: str) -> int:
        """Return the length of an array, or -1 if the array is null.

        The length never exceeds the number of remaining bytes. Raises: MalformedRequestError.
        """
        length = self.unsigned_varint(what) - 1 if flexible else self.fixed(_FIXED["int32"], what)
        left = min(len(self.frame) - self.position, self.elements_left)
        if length < -1 or length > left:
            raise MalformedRequestError(
                f"{what} at position {self.position} has {length} elements, but at most {left} "
                "elements are possible"
            )
        if length > 0:
            self.elements_left -= length
        return int(length)


FieldReader = Callable[[Cursor], Any]

_compiled: dict[tuple[type[Any], type[Any] | None], FieldReader] = {}


def read_message(schema: type[Any], message: type[MessageType], cursor: Cursor) -> MessageType:
    """Decode a struct of the kio class `schema` as `message`. Raises: MalformedRequestError."""
    value: MessageType = _struct_reader(schema, message)(cursor)
    return value


def skip_tagged_fields(cursor: Cursor) -> None:
    """Skip the tagged fields at the current position."""
    for _ in range(cursor.unsigned_varint("the number of tagged fields")):
        cursor.unsigned_varint("a tag")
        cursor.take(cursor.unsigned_varint("the size of a tagged field"), "a tagged field")


def _struct_reader(schema: type[Any], message: type[Any] | None) -> FieldReader:
    """Return a function that decodes `schema` as `message`, or skips it if `message` is None."""
    reader = _compiled.get((schema, message))
    if reader is None:
        reader = _compiled[schema, message] = _compile(schema, message)
    return reader


def _compile(schema: type[Any], message: type[Any] | None) -> FieldReader:
    hints = get_type_hints(message) if message is not None else {}
    plain: list[tuple[str | None, FieldReader]] = []
    tagged: dict[int, tuple[str | None, FieldReader]] = {}
    for field in fields_of(schema):
        name = field.message_name if field.message_name in hints else None
        nested = struct_of(hints[name]) if name is not None else None
        reader = _field_reader(schema, field, nested)
        if field.tag is None:
            plain.append((name, reader))
        else:
            tagged[field.tag] = (name, reader)
    flexible = schema.__flexible__

    def read(cursor: Cursor) -> Any:
        values: dict[str, Any] = {}
        for name, read_field in plain:
            value = read_field(cursor)
            if name is not None:
                values[name] = value
        if flexible:
            _read_tagged(cursor, tagged, values)
        return message(**values) if message is not None else None

    return read


def _read_tagged(
    cursor: Cursor,
    tagged: dict[int, tuple[str | None, FieldReader]],
    values: dict[str, Any],
) -> None:
    for _ in range(cursor.unsigned_varint("the number of tagged fields")):
        tag = cursor.unsigned_varint("a tag")
        size = cursor.unsigned_varint("the size of a tagged field")
        end = cursor.position + size
        if tag not in tagged:
            cursor.take(size, f"tagged field {tag}")
            continue
        name, read_field = tagged[tag]
        value = read_field(cursor)
        if cursor.position != end:
            raise MalformedRequestError(
                f"the contents of tagged field {tag} do not match its size of {size} bytes"
            )
        if name is not None:
            values[name] = value


def _field_reader(schema: type[Any], field: FieldSchema, message: type[Any] | None) -> FieldReader:
    what = f"{schema.__name__}.{field.name}"
    flexible = schema.__flexible__
    if field.struct is not None:
        struct_reader = _struct_reader(field.struct, message)
        if field.is_array:
            return _array_reader(struct_reader, flexible, field.nullable, what)
        return _nullable_struct_reader(struct_reader, what) if field.nullable else struct_reader
    assert field.kafka_type is not None, what
    if field.is_array:
        element = _primitive_reader(field.kafka_type, flexible, False, what)
        return _array_reader(element, flexible, field.nullable, what)
    return _primitive_reader(field.kafka_type, flexible, field.nullable, what)


def _nullable_struct_reader(inner: FieldReader, what: str) -> FieldReader:
    present = _FIXED["int8"]
    return lambda cursor: inner(cursor) if cursor.fixed(present, what) > 0 else None


def _array_reader(element: FieldReader, flexible: bool, nullable: bool, what: str) -> FieldReader:
    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        length = cursor.array_length(flexible=flexible, what=what)
        if length < 0:
            if nullable:
                return None
            raise MalformedRequestError(
                f"{what} at position {cursor.position} is null, but the field is not nullable"
            )
        return tuple([element(cursor) for _ in range(length)])

    return read


def _primitive_reader(kafka_type: str, flexible: bool, nullable: bool, what: str) -> FieldReader:
    kafka_type = MILLISECOND_TYPES.get(kafka_type, kafka_type)
    if kafka_type == "error_code":
        return lambda cursor: _error_code(cursor, what)
    if kafka_type in _FIXED:
        layout = _FIXED[kafka_type]
        return lambda cursor: cursor.fixed(layout, what)
    if kafka_type == "uuid":
        return lambda cursor: Uuid(bytes=cursor.take(16, what))
    length_of = _length_reader(kafka_type, flexible, what)
    is_string = kafka_type == "string"
    decode = _utf8 if is_string else _as_is

    def read(cursor: Cursor) -> Any:
        length = length_of(cursor)
        if is_string and length > STRING_BYTES_MAX:
            raise MalformedRequestError(
                f"{what} at position {cursor.position} has a length of {length} bytes, but a "
                f"string can have at most {STRING_BYTES_MAX} bytes"
            )
        if length >= 0:
            return decode(cursor.take(length, what), what)
        if nullable and length == -1:
            return None
        raise MalformedRequestError(
            f"{what} at position {cursor.position} has an invalid length of {length}"
        )

    return read


def _length_reader(kafka_type: str, flexible: bool, what: str) -> Callable[[Cursor], int]:
    if flexible:
        return lambda cursor: cursor.unsigned_varint(what) - 1
    layout = _FIXED["int16" if kafka_type == "string" else "int32"]
    return lambda cursor: int(cursor.fixed(layout, what))


def _error_code(cursor: Cursor, what: str) -> ErrorCode:
    number = cursor.fixed(_FIXED["int16"], what)
    try:
        return ErrorCode(number)
    except ValueError:
        raise MalformedRequestError(f"{what} contains the unknown error code {number}") from None


def _utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"{what} is not valid UTF-8: {error.reason}") from None


def _as_is(data: bytes, what: str) -> bytes:  # noqa: ARG001
    return data
