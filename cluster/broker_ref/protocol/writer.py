"""Convert messages to kio entities of any version, and to bytes.

Handlers return one dataclass for all versions. `build` converts it by field name to the entity of
the client's version, and ignores fields that this version does not contain. If the message does not
contain a field, kio's default is used; if there is no default, `build` raises TypeError. kio
converts times in milliseconds to timedeltas; in messages, they are integers, and their names end in
`_ms`.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from broker_ref.protocol.schema import FieldSchema, fields_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, which is the latest time that kio supports."""

Converter = Callable[[Any], Any]

_compiled: dict[tuple[type[Any], type[Any]], Converter] = {}


def build(schema: type[Any], message: object) -> Any:
    """Convert a message to the kio entity class `schema`.

    Raises: TypeError with the name of a missing field.
    """
    key = (schema, type(message))
    builder = _compiled.get(key)
    if builder is None:
        builder = _compiled[key] = _compile(*key)
    return builder(message)


def write_entities(*entities: Any) -> bytes:
    """Encode several kio entities one after another."""
    buffer = io.BytesIO()
    for entity in entities:
        entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _compile(schema: type[Any], message: type[Any]) -> Converter:
    offered = {field.name for field in dataclasses.fields(message)}
    taken: list[tuple[str, str, Converter | None]] = []
    for field in fields_of(schema):
        if field.message_name in offered:
            taken.append((field.name, field.message_name, _converter(field)))
        elif field.required:
            raise TypeError(
                f"{message.__name__} has no field {field.message_name!r}, which version "
                f"{schema.__version__} of {schema.__name__} requires"
            )

    def build_struct(source: Any) -> Any:
        values = {}
        for target, name, convert in taken:
            value = getattr(source, name)
            values[target] = convert(value) if convert is not None else value
        return schema(**values)

    return build_struct


def _converter(field: FieldSchema) -> Converter | None:
    if field.kafka_type == "datetime_i64" and not field.nullable:
        return _required_timestamp
    if field.struct is None:
        return None if field.is_array else _PRIMITIVES.get(field.kafka_type or "")
    struct = field.struct
    if field.is_array:
        return lambda value: (
            None if value is None else tuple([build(struct, item) for item in value])
        )
    return lambda value: None if value is None else build(struct, value)


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _timestamp(value: int) -> datetime | None:
    return None if value < 0 else _required_timestamp(value)


def _required_timestamp(value: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=min(value, _LATEST_MS))


_PRIMITIVES: Final[dict[str, Converter]] = {
    "error_code": ErrorCode,
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _timestamp,
}
