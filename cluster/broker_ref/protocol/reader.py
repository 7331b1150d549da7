"""Decode requests of all versions into one message class per API.

Handlers receive one dataclass per request ("the message") for all versions. If a version does not
contain a field, the message contains the field's default. Fields that the message does not contain
are skipped. kio's entities define the order, types, nullability and tags of the fields in each
version. kio converts fields in milliseconds to timedeltas; in messages, these fields are integers,
and their names end in `_ms`.

Invariants: memory use is proportional to the size of the frame, even if the frame contains
incorrect lengths. Invalid bytes raise only `MalformedRequestError`. kio's own reader is not
suitable, for two reasons. It allocates arrays according to the length in the frame, so a 30-byte
frame can abort the process. It also rejects unknown tagged fields, although the protocol requires
readers to skip such fields.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeVar, get_type_hints

from kio.schema.errors import ErrorCode

from broker_ref.protocol.generated import Source
from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.schema import FieldSchema, fields_of, struct_of

ELEMENTS_MAX: Final = 2_000_000
"""Maximum number of array elements in a request, which limits the memory for its objects."""

STRING_BYTES_MAX: Final = 32_767
"""Maximum size of a string, as in Kafka. Only compact strings can encode a larger size."""

_INT32: Final = struct.Struct(">i")

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
        length = self.unsigned_varint(what) - 1 if flexible else self.fixed(_INT32, what)
        left = min(len(self.frame) - self.position, self.elements_left)
        if length < -1 or length > left:
            raise MalformedRequestError(
                f"{what} at position {self.position} declares {length} elements, but the "
                f"request can contain at most {left} more elements"
            )
        if length > 0:
            self.elements_left -= length
        return int(length)

    def tagged_fields_length(self) -> int:
        """Decode the number of tagged fields.

        The limit on array elements also includes tagged fields. Raises: MalformedRequestError.
        """
        length = self.unsigned_varint("the number of tagged fields")
        if length > self.elements_left:
            raise MalformedRequestError(
                f"the request declares {length} tagged fields at position {self.position}, but at "
                f"most {self.elements_left} more fields are allowed"
            )
        self.elements_left -= length
        return length


StructReader = Callable[[Cursor], Any]

_compiled: dict[tuple[type[Any], type[Any] | None], StructReader] = {}


def read_message(schema: type[Any], message: type[MessageType], cursor: Cursor) -> MessageType:
    """Decode a struct of the kio class `schema` as `message`. Raises: MalformedRequestError."""
    value: MessageType = _struct_reader(schema, message)(cursor)
    return value


def skip_tagged_fields(cursor: Cursor) -> None:
    """Skip the tagged fields at the current position."""
    if cursor.position < len(cursor.frame) and cursor.frame[cursor.position] == 0:
        cursor.position += 1
    else:
        _read_tagged(cursor, {})


def _struct_reader(schema: type[Any], message: type[Any] | None) -> StructReader:
    """Return a function that decodes a struct of the kio class `schema` as `message`.

    If `message` is None, the function skips the struct.
    """
    reader = _compiled.get((schema, message))
    if reader is None:
        reader = _compiled[schema, message] = _compile(schema, message)
    return reader


def _compile(schema: type[Any], message: type[Any] | None) -> StructReader:
    """Generate the function that decodes a struct.

    The generated code keeps the read position in the local variable `at`. It updates
    `cursor.position` only before it calls another function and before it returns.
    """
    hints = get_type_hints(message) if message is not None else {}
    source = Source("read(cursor)")
    source.add("frame, at = cursor.frame, cursor.position", "end = len(frame)")
    fixed: list[FieldSchema] = []
    values: dict[str, str] = {}
    tagged: dict[int, tuple[str | None, StructReader]] = {}
    for field in fields_of(schema):
        name = field.message_name if field.message_name in hints else None
        nested = struct_of(hints[name]) if name is not None else None
        what = f"{schema.__name__}.{field.name}"
        if field.tag is not None:
            tagged[field.tag] = (name, _value_reader(field, nested, what))
            continue
        if name is not None:
            values[name] = f"value_{field.name}"
        if field.fixed_format is not None:
            fixed.append(field)
            continue
        _add_fixed(source, schema, fixed)
        source.add(*_value_lines(source, field, nested, what, schema.__flexible__))
        source.add(f"value_{field.name} = value")
    _add_fixed(source, schema, fixed)
    source.add("tags = {}")
    if schema.__flexible__:
        source.add("if at < end and frame[at] == 0: at += 1")
        source.add_block(
            "else:",
            [
                "cursor.position = at",
                f"tags = {source.name(_read_tagged)}(cursor, {source.name(tagged)})",
                "at = cursor.position",
            ],
        )
    source.add("cursor.position = at")
    if message is None:
        return source.function(f"reader of {schema.__module__}")
    arguments = [f"{name}={value}" for name, value in values.items()]
    source.add(f"return {source.name(message)}({', '.join([*arguments, '**tags'])})")
    return source.function(f"reader of {schema.__module__} as {message.__name__}")


def _add_fixed(source: Source, schema: type[Any], fields: list[FieldSchema]) -> None:
    """Decode consecutive fields of fixed size together."""
    if not fields:
        return
    layout = struct.Struct(">" + "".join(field.fixed_format or "" for field in fields))
    whats = [(f"{schema.__name__}.{field.name}", field.fixed_format) for field in fields]
    names = [f"value_{field.name}" for field in fields]
    source.add(f"if at + {layout.size} > end: {source.name(_raise_short)}(frame, at, {whats!r})")
    source.add(f"{', '.join(names)}, = {source.name(layout.unpack_from)}(frame, at)")
    source.add(f"at += {layout.size}")
    for field, name in zip(fields, names, strict=True):
        source.add(*_conversion_lines(source, field, name, f"{schema.__name__}.{field.name}"))
    fields.clear()


def _conversion_lines(source: Source, field: FieldSchema, value: str, what: str) -> list[str]:
    """Return the lines that convert a decoded value of fixed size."""
    convert = {"error_code": _error_code, "uuid": _uuid}.get(field.kafka_type or "")
    return [] if convert is None else [f"{value} = {source.name(convert)}({value}, {what!r})"]


def _value_reader(field: FieldSchema, message: type[Any] | None, what: str) -> StructReader:
    """Return a function that decodes the value of a tagged field."""
    source = Source("read(cursor)")
    source.add("frame, at = cursor.frame, cursor.position", "end = len(frame)")
    if field.fixed_format is not None:
        source.add(*_element_lines(source, field, message, what, flexible=True))
    else:
        source.add(*_value_lines(source, field, message, what, flexible=True))
    source.add("cursor.position = at", "return value")
    return source.function(f"reader of {what}")


def _value_lines(
    source: Source, field: FieldSchema, message: type[Any] | None, what: str, flexible: bool
) -> list[str]:
    """Return the lines that decode `value`, whose encoding has no fixed size."""
    if not field.is_array:
        return _element_lines(source, field, message, what, flexible=flexible)
    null = f"if size < 0: {source.name(_raise_null)}(at, {what!r})"
    length_lines = [
        "cursor.position = at",
        f"size = cursor.array_length(flexible={flexible}, what={what!r})",
        "at = cursor.position",
    ]
    if flexible:
        length_lines = [
            "if at < end and 0 < frame[at] <= min(0x7F, end - at, cursor.elements_left):",
            "    size = frame[at] - 1",
            "    at += 1",
            "    cursor.position = at",
            "    cursor.elements_left -= size",
            "else:",
            *(f"    {line}" for line in length_lines),
        ]
    return [
        *length_lines,
        "if size < 0: value = None" if field.nullable else null,
        "else:",
        *(f"    {line}" for line in _elements_lines(source, field, message, what, flexible)),
    ]


def _elements_lines(
    source: Source, field: FieldSchema, message: type[Any] | None, what: str, flexible: bool
) -> list[str]:
    """Return the lines that decode the `size` elements of an array as `value`."""
    if field.struct is not None:
        read = source.name(_struct_reader(field.struct, message))
        return [f"value = tuple([{read}(cursor) for _ in range(size)])", "at = cursor.position"]
    return [
        "elements = []",
        "for _ in range(size):",
        *(f"    {line}" for line in _element_lines(source, field, None, what, flexible)),
        "    elements.append(value)",
        "value = tuple(elements)",
    ]


def _element_lines(
    source: Source, field: FieldSchema, message: type[Any] | None, what: str, flexible: bool
) -> list[str]:
    """Return the lines that decode one `value`."""
    if field.struct is not None:
        read = source.name(_struct_reader(field.struct, message))
        lines = ["cursor.position = at", f"value = {read}(cursor)", "at = cursor.position"]
        if not field.nullable or field.is_array or field.tag is not None:
            return lines
        present = [*_fixed_lines(source, "b", what), "if value <= 0: value = None", "else:"]
        return [*present, *(f"    {line}" for line in lines)]
    layout = field.element_format
    if layout is not None:
        conversion = _conversion_lines(source, field, "value", what)
        return [*_fixed_lines(source, layout, what), *conversion]
    return _bytes_lines(source, field, what, flexible)


def _fixed_lines(source: Source, layout: str, what: str, value: str = "value") -> list[str]:
    codec = struct.Struct(f">{layout}")
    short = source.name(_raise_short)
    return [
        f"if at + {codec.size} > end: {short}(frame, at, {[(what, layout)]!r})",
        f"{value}, = {source.name(codec.unpack_from)}(frame, at)",
        f"at += {codec.size}",
    ]


def _bytes_lines(source: Source, field: FieldSchema, what: str, flexible: bool) -> list[str]:
    is_string = field.kafka_type == "string"
    if flexible:
        size_lines = [
            "if at < end and (size := frame[at] - 1) < 127: at += 1",
            "else:",
            "    cursor.position = at",
            f"    size = cursor.unsigned_varint({what!r}) - 1",
            "    at = cursor.position",
        ]
    else:
        size_lines = _fixed_lines(source, "h" if is_string else "i", what, "size")
    null = ["elif size == -1: value = None"] if field.nullable and not field.is_array else []
    decode = [
        "    try: value = value.decode()",
        f"    except UnicodeDecodeError as error: {source.name(_raise_not_utf8)}(error, {what!r})",
    ]
    return [
        *size_lines,
        "stop = at + size",
        f"if 0 <= size{f' <= {STRING_BYTES_MAX}' if is_string else ''} and stop <= end:",
        "    value = frame[at:stop]",
        "    at = stop",
        *(decode if is_string else ()),
        *null,
        f"else: {source.name(_raise_length)}(frame, at, size, {what!r}, {is_string})",
    ]


def _read_tagged(
    cursor: Cursor, tagged: Mapping[int, tuple[str | None, StructReader]]
) -> dict[str, Any]:
    """Return the values of known tagged fields by name, and skip the other fields."""
    values: dict[str, Any] = {}
    for _ in range(cursor.tagged_fields_length()):
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
    return values


_ERROR_CODES: Final[Mapping[int, ErrorCode]] = {code.value: code for code in ErrorCode}


def _error_code(number: int, what: str) -> ErrorCode:
    code = _ERROR_CODES.get(number)
    if code is None:
        raise MalformedRequestError(f"{what} contains the unknown error code {number}")
    return code


@lru_cache(maxsize=4096)
def _uuid(data: bytes, what: str) -> Uuid:  # noqa: ARG001
    return Uuid(bytes=data)


def _raise_short(frame: bytes, position: int, fields: Sequence[tuple[str, str]]) -> NoReturn:
    """Raise the error for the first field that is not complete."""
    for what, layout in fields:
        end = position + struct.calcsize(f">{layout}")
        if end > len(frame):
            raise MalformedRequestError(
                f"the frame ends at byte {len(frame)}, in the middle of {what}, which starts at "
                f"byte {position}"
            )
        position = end
    raise AssertionError("All fields are complete.")


def _raise_null(position: int, what: str) -> NoReturn:
    raise MalformedRequestError(
        f"{what} at position {position} is null, but the field is not nullable"
    )


def _raise_length(frame: bytes, position: int, size: int, what: str, is_string: bool) -> NoReturn:
    name = f"{what} at position {position}"
    if is_string and size > STRING_BYTES_MAX:
        raise MalformedRequestError(
            f"{name} has a length of {size} bytes, but a string can have at most "
            f"{STRING_BYTES_MAX} bytes"
        )
    if size < 0:
        raise MalformedRequestError(f"{name} has an invalid length of {size}")
    raise MalformedRequestError(
        f"{name} has a length of {size} bytes, but only {len(frame) - position} bytes remain in "
        "the frame"
    )


def _raise_not_utf8(error: UnicodeDecodeError, what: str) -> NoReturn:
    raise MalformedRequestError(f"{what} is not valid UTF-8: {error.reason}") from None
