"""Serialize requests and deserialize responses with kio's schemas.

Requests in any version are serialized from plain values. Responses are deserialized to instances of
kio's classes. This module replaces kio's own reader and writer. The reader in kio allocates memory
for every element that an array declares, and rejects unknown tagged fields (ADR 2). The writer in
kio imports asyncio, which would delay every process of a streaming query.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from kio.index import load_request_schema, load_response_schema

from pyspark_kafka.wire import writer
from pyspark_kafka.wire.reader import Reader
from pyspark_kafka.wire.versions import SUPPORTED_VERSIONS, Api

Plain = Any
"""An int, str, bool, None, uuid.UUID, sequence of `Plain`, or mapping of field names to `Plain`."""

_LONGEST_MS: Final = 100 * 365 * 86_400_000
"""A century. A longer duration could exceed the range of a timedelta."""
_HEADER_START: Final = struct.Struct(">hhi")
"""API key, API version and correlation id. Every version of the request header starts with them."""

_ReadField = Callable[[Reader, bool], Any]
"""A function that reads a field. The flag is True if the version is flexible."""
_WriteField = Callable[[Any], bytes]


def request_bytes(api: Api, version: int, fields: Mapping[str, Plain]) -> bytes:
    """Return the body of a request. Durations are in milliseconds.

    Fields that do not exist in the version of the request are ignored. Raises `TypeError` if a
    field without a default is missing.
    """
    return _struct_writer(load_request_schema(api, version))(fields)


def request_header(api: Api, version: int, *, correlation_id: int, client_id: str) -> bytes:
    """Return the header of a request."""
    return _HEADER_START.pack(api, version, correlation_id) + _header_end(api, version, client_id)


@cache
def _header_end(api: Api, version: int, client_id: str) -> bytes:
    """Return the header fields after the correlation id. They are constant for a client."""
    end = writer.string(client_id, flexible=False)  # the original encoding in all versions
    return end + writer.NO_TAGGED_FIELDS if SUPPORTED_VERSIONS[api].is_flexible(version) else end


@cache
def response_schema(api: Api, version: int) -> Any:
    """Return kio's class for the responses of this API and version."""
    return load_response_schema(api, version)


def has_flexible_header(api: Api, version: int) -> bool:
    """Return whether the header of the response contains tagged fields.

    The header of an ApiVersions response contains no tagged fields, because the client reads this
    header before it knows which versions the broker supports (KIP-511).
    """
    return api is not Api.API_VERSIONS and SUPPORTED_VERSIONS[api].is_flexible(version)


def read_entity(schema: Any, reader: Reader) -> Any:
    """Read an instance of kio's class `schema`. Raises `MalformedResponseError`."""
    return _entity_reader(schema)(reader)


@cache
def _struct_writer(schema: Any) -> Callable[[Mapping[str, Plain]], bytes]:
    flexible: bool = schema.__flexible__
    plain: list[tuple[str, Any, _WriteField]] = []
    tagged: list[tuple[int, str, _WriteField]] = []
    for field in dataclasses.fields(schema):
        write_field = _field_writer(field, f"{schema.__name__}.{field.name}", flexible)
        if "tag" in field.metadata:
            tagged.append((field.metadata["tag"], field.name, write_field))
        else:
            plain.append((field.name, field.default, write_field))
    tagged.sort(key=lambda found: found[0])

    def write(values: Mapping[str, Plain]) -> bytes:
        out = bytearray()
        for name, default, write_field in plain:
            value = values.get(name, default)
            if value is dataclasses.MISSING:
                raise TypeError(f"{schema.__name__} v{schema.__version__} requires field {name!r}")
            out += write_field(value)
        if flexible:
            given = [
                (tag, write_field(values[name]))
                for tag, name, write_field in tagged
                if name in values
            ]
            out += writer.tagged_fields(given)
        return bytes(out)

    return write


def _field_writer(field: dataclasses.Field[Any], what: str, flexible: bool) -> _WriteField:
    inner, nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    element_type = get_args(inner)[0] if is_array else inner
    if isinstance(element_type, type) and dataclasses.is_dataclass(element_type):
        element: _WriteField = _struct_writer(element_type)
        if nullable and not is_array:
            raise TypeError(f"{what}: nullable structures cannot be written")
    else:
        kind = field.metadata["kafka_type"]
        if kind not in _WRITERS:
            raise TypeError(f"{what}: type {kind!r} cannot be written")
        write_primitive = _WRITERS[kind]
        element = lambda value: write_primitive(value, flexible)  # noqa: E731
    if not is_array:
        return element

    def write_array(values: Any) -> bytes:
        if values is None:
            return writer.length(-1, flexible=flexible)
        count = writer.length(len(values), flexible=flexible)
        return count + b"".join([element(value) for value in values])

    return write_array


_WRITERS: Final[Mapping[str, Callable[[Any, bool], bytes]]] = {
    "bool": lambda value, _: writer.int8(value),
    "bytes": lambda value, flexible: writer.length(len(value), flexible=flexible) + value,
    "int8": lambda value, _: writer.int8(value),
    "int16": lambda value, _: writer.int16(value),
    "int32": lambda value, _: writer.int32(value),
    "int64": lambda value, _: writer.int64(value),
    "string": lambda value, flexible: writer.nullable_string(value, flexible=flexible),
    "timedelta_i32": lambda value, _: writer.int32(_whole_milliseconds(value)),
    "timedelta_i64": lambda value, _: writer.int64(_whole_milliseconds(value)),
    "uuid": lambda value, _: bytes(16) if value is None else value.bytes,
}


def _whole_milliseconds(value: int | datetime.timedelta) -> int:
    """Convert a duration to milliseconds. Default values in kio's schemas are timedeltas."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return value


@cache
def _entity_reader(schema: Any) -> Callable[[Reader], Any]:
    flexible: bool = schema.__flexible__
    name = schema.__name__
    plain: list[tuple[str, _ReadField]] = []
    tagged: dict[int, tuple[str, _ReadField]] = {}
    for field in dataclasses.fields(schema):
        read_field = _field_reader(field, f"{name}.{field.name}")
        if "tag" in field.metadata:
            assert field.default is not dataclasses.MISSING, (schema, field.name)
            tagged[field.metadata["tag"]] = (field.name, read_field)
        else:
            plain.append((field.name, read_field))

    def read(reader: Reader) -> Any:
        values = {field_name: read_field(reader, flexible) for field_name, read_field in plain}

        def read_tagged(tag: int) -> bool:
            if tag not in tagged:
                return False
            field_name, read_field = tagged[tag]
            values[field_name] = read_field(reader, flexible)
            return True

        if flexible:
            reader.tagged_fields(read_tagged, name)
        return schema(**values)

    return read


def _field_reader(field: dataclasses.Field[Any], what: str) -> _ReadField:
    inner, nullable = _without_none(field.type)
    is_array = get_origin(inner) is tuple
    element_type = get_args(inner)[0] if is_array else inner
    if isinstance(element_type, type) and dataclasses.is_dataclass(element_type):
        read_struct = _entity_reader(element_type)
        element: _ReadField = lambda reader, _flexible: read_struct(reader)  # noqa: E731
        if nullable and not is_array:
            return lambda reader, _: read_struct(reader) if reader.int8(what) > 0 else None
    else:
        kind = field.metadata["kafka_type"]
        primitives = _NULLABLE_PRIMITIVES if nullable and not is_array else _PRIMITIVES
        read_primitive = primitives.get(kind, _PRIMITIVES.get(kind))
        if read_primitive is None:
            raise TypeError(f"{what}: type {kind!r} cannot be read")
        found = read_primitive
        element = lambda reader, flexible: found(reader, flexible, what)  # noqa: E731
    if not is_array:
        return element
    read_array = Reader.nullable_array if nullable else Reader.array
    return lambda reader, flexible: read_array(
        reader, lambda: element(reader, flexible), what, flexible=flexible
    )


def _milliseconds(reader: Reader, _flexible: bool, what: str) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=reader.int32(what))


def _long_milliseconds(reader: Reader, _flexible: bool, what: str) -> datetime.timedelta:
    milliseconds = reader.int64(what)
    return datetime.timedelta(milliseconds=min(max(milliseconds, 0), _LONGEST_MS))


_PRIMITIVES: Final[Mapping[str, Callable[[Reader, bool, str], Any]]] = {
    "bool": lambda reader, _, what: reader.boolean(what),
    "bytes": lambda reader, flexible, what: bytes(reader.data(what, flexible=flexible)),
    "error_code": lambda reader, _, what: reader.error_code(what),
    "int8": lambda reader, _, what: reader.int8(what),
    "int16": lambda reader, _, what: reader.int16(what),
    "int32": lambda reader, _, what: reader.int32(what),
    "int64": lambda reader, _, what: reader.int64(what),
    "string": lambda reader, flexible, what: reader.string(what, flexible=flexible),
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _long_milliseconds,
    "uuid": lambda reader, _, what: reader.uuid(what),
}
_NULLABLE_PRIMITIVES: Final[Mapping[str, Callable[[Reader, bool, str], Any]]] = {
    "string": lambda reader, flexible, what: reader.nullable_string(what, flexible=flexible),
}


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without `| None`, and whether it contained `| None`."""
    if get_origin(hint) not in (UnionType, Union):
        return hint, False
    (inner,) = [member for member in get_args(hint) if member is not NoneType]
    return inner, True
