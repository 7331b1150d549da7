"""Encode messages into any version of a request or response.

Handlers return one dataclass for all versions ("the message"). `write_message` encodes the fields
of the client's version, and ignores fields that this version does not contain. If the message does
not contain a field, kio's default is encoded; if there is no default, `write_message` raises
TypeError. kio's entities define the order, types, nullability and tags of the fields. In messages,
time fields are integers in milliseconds, and their names end in `_ms`.

`write_message` generates a function for each pair of a struct and a message class. kio's own writer
accepts only entities, so each message would first have to be converted.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.serial import entity_writer

from broker_ref.protocol.generated import Source
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.protocol.schema import FieldSchema, fields_of

StructWriter = Callable[[bytearray, Any], None]


class _StructWriters(dict[type[Any], StructWriter]):
    """The functions that append a message as one struct, keyed by message class."""

    def __init__(self, schema: type[Any]) -> None:
        super().__init__()
        self._schema = schema

    def __missing__(self, message: type[Any]) -> StructWriter:
        write = self[message] = _compile(self._schema, message)
        return write


class _Writers(dict[type[Any], _StructWriters]):
    """The functions for each struct."""

    def __missing__(self, schema: type[Any]) -> _StructWriters:
        writers = self[schema] = _StructWriters(schema)
        return writers


_writers = _Writers()


def write_message(schema: type[Any], message: object, out: bytearray) -> None:
    """Encode a message as a struct of the kio class `schema`, and append it to `out`.

    Raises: TypeError with the name of a missing field.
    """
    _writers[schema][type(message)](out, message)


def write_entities(*entities: Any) -> bytes:
    """Encode several kio entities one after another."""
    buffer = io.BytesIO()
    for entity in entities:
        entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _compile(schema: type[Any], message: type[Any]) -> StructWriter:
    """Generate the function that appends a message of this class."""
    offered = {field.name for field in dataclasses.fields(message)}
    for field in fields_of(schema):
        if field.required and field.message_name not in offered:
            raise TypeError(
                f"{message.__name__} has no field {field.message_name!r}, which version "
                f"{schema.__version__} of {schema.__name__} requires"
            )
    source = Source("write(out, message)")
    _add_untagged(source, schema, offered)
    if schema.__flexible__:
        _add_tagged(source, schema, offered)
    return source.function(f"writer of {message.__name__} as {schema.__module__}")


def _add_untagged(source: Source, schema: type[Any], offered: set[str]) -> None:
    """Encode the untagged fields. Consecutive fields of fixed size are encoded together."""
    layout, values = "", list[str]()

    def add_fixed() -> None:
        nonlocal layout
        if layout:
            source.add(f"out += {source.pack(layout)}({', '.join(values)})")
        layout = ""
        values.clear()

    for field in fields_of(schema):
        if field.tag is not None:
            continue
        value, layout_of_field = f"message.{field.message_name}", field.fixed_format
        if layout_of_field is not None and field.message_name in offered:
            layout += layout_of_field
            values.append(_fixed_value(source, field, value))
            continue
        add_fixed()
        if field.message_name in offered:
            source.add(f"value = {value}")
            source.add(*_value_lines(source, field, schema.__flexible__, field.nullable))
        else:
            default = _encoded_default(field, flexible=schema.__flexible__)
            source.add(f"out += {default!r}")
    add_fixed()


def _add_tagged(source: Source, schema: type[Any], offered: set[str]) -> None:
    """Encode the tagged fields whose values differ from their defaults."""
    fields = {
        field.tag: field
        for field in fields_of(schema)
        if field.tag is not None and field.message_name in offered
    }
    if not fields:
        source.add("out.append(0)")
        return
    varint = source.name(write_unsigned_varint)
    source.add("whole, tags = out, []")
    for tag, field in sorted(fields.items()):
        default = _encoded_default(field, flexible=True)
        source.add(f"value = message.{field.message_name}")
        lines = [
            "out = bytearray()",
            *_value_lines(source, field, flexible=True, nullable=False),
            f"if out != {default!r}: tags.append(({tag}, out))",
        ]
        if default is None:
            source.add_block("if value is not None:", lines)
        else:
            source.add(*lines)
    source.add("out = whole", f"{varint}(out, len(tags))")
    source.add_block(
        "for tag, value in tags:",
        [f"{varint}(out, tag)", f"{varint}(out, len(value))", "out += value"],
    )


def _value_lines(source: Source, field: FieldSchema, flexible: bool, nullable: bool) -> list[str]:
    """Return the lines that append `value`."""
    if field.fixed_format is not None:
        return [f"out += {source.pack(field.fixed_format)}({_fixed_value(source, field, 'value')})"]
    if field.is_array:
        lines = [*_length_lines(source, flexible, "i"), *_elements_lines(source, field, flexible)]
        return _unless_null("out.append(0)" if flexible else "out += bytes((255,)) * 4", lines)
    if field.struct is not None:
        lines = [f"{source.name(_writers[field.struct])}[type(value)](out, value)"]
        return _unless_null("out.append(255)", ["out.append(1)", *lines]) if nullable else lines
    lines = _bytes_lines(source, field, flexible)
    size = 4 if field.kafka_type != "string" else 2
    null = "out.append(0)" if flexible else f"out += bytes((255,)) * {size}"
    return _unless_null(null, lines) if nullable else lines


def _unless_null(null: str, lines: list[str]) -> list[str]:
    return [f"if value is None: {null}", "else:", *(f"    {line}" for line in lines)]


def _length_lines(source: Source, flexible: bool, layout: str) -> list[str]:
    """Return the lines that append the number of elements or bytes of `value`."""
    if not flexible:
        return [f"out += {source.pack(layout)}(len(value))"]
    return [
        "size = len(value) + 1",
        "if size <= 0x7F: out.append(size)",
        f"else: {source.name(write_unsigned_varint)}(out, size)",
    ]


def _bytes_lines(source: Source, field: FieldSchema, flexible: bool) -> list[str]:
    is_string = field.kafka_type == "string"
    lines = [*_length_lines(source, flexible, "h" if is_string else "i"), "out += value"]
    return ["value = value.encode()", *lines] if is_string else lines


def _elements_lines(source: Source, field: FieldSchema, flexible: bool) -> list[str]:
    if field.struct is not None:
        writers = source.name(_writers[field.struct])
        return [f"for item in value: {writers}[type(item)](out, item)"]
    layout = field.element_format
    if layout is None:
        lines = _bytes_lines(source, field, flexible)
    else:
        lines = [f"out += {source.pack(layout)}({_fixed_value(source, field, 'value')})"]
    return ["for value in value:", *(f"    {line}" for line in lines)]


def _fixed_value(source: Source, field: FieldSchema, value: str) -> str:
    if field.kafka_type == "uuid":
        return f"({value} or {source.name(ZERO_UUID)}).bytes"
    if field.kafka_type == "datetime_i64" and field.nullable:
        return f"-1 if {value} is None else {value}"
    return value


def _encoded_default(field: FieldSchema, *, flexible: bool) -> bytes | None:
    """Return the encoding of the default, or None if the default of a tagged field is null."""
    if field.required:
        return _encoded_zero(field)
    value = field.default
    if value is None and field.tag is not None:
        return None
    if isinstance(value, timedelta):
        value = value // timedelta(milliseconds=1)
    source = Source("write(out, value)")
    source.add(*_value_lines(source, field, flexible, nullable=field.tag is None))
    out = bytearray()
    source.function("default")(out, value)
    return bytes(out)


def _encoded_zero(field: FieldSchema) -> bytes:
    """Return the encoding of a tagged field without a default: zero, empty or false."""
    if field.fixed_format is not None:
        return bytes(struct.calcsize(f">{field.fixed_format}"))
    if field.struct is None or field.is_array:
        return b"\x01"
    return b"".join(_encoded_zero(each) for each in fields_of(field.struct)) + b"\x00"
