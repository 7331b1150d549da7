"""Encodes one message class as a kio entity, and as bytes, of any version.

Purpose: a handler returns a single dataclass; `build` converts it to the entity of the client's
version, by field names, and drops fields that the version lacks. Invariant: a field that the
message lacks keeps kio's default; without a default, `build` raises TypeError naming the field.
Milliseconds, which kio converts to timedeltas, are integers named `..._ms` in messages. Must not
know: what a response means.
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
"""The last millisecond of the year 9999, which is the latest that kio supports."""

Converter = Callable[[Any], Any]

_compiled: dict[tuple[type[Any], type[Any]], Converter] = {}


def build(schema: type[Any], message: object) -> Any:
    """Convert `message` to the kio entity `schema`. Raises: TypeError naming a missing field."""
    key = (schema, type(message))
    builder = _compiled.get(key)
    if builder is None:
        builder = _compiled[key] = _compile(*key)
    return builder(message)


def write_entities(*entities: Any) -> bytes:
    """Encode kio entities, one after the other."""
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
                f"{message.__name__} has no {field.message_name!r}, which version "
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
