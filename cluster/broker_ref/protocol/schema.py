"""Describe the fields of kio's entity classes for `reader` and `writer`.

The description of a field contains its name, wire type, nullability, nested struct and tag. It is
derived from the annotations and the metadata of kio's classes.
"""

from __future__ import annotations

import dataclasses
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

MILLISECOND_TYPES: Final = {
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}
"""The wire types of times in milliseconds, which kio converts to timedeltas and datetimes."""

_FIXED_FORMATS: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "uuid": "16s",
}
"""The formats of fixed-size wire types, as in the `struct` module."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FieldSchema:
    """A field in one version of a message.

    `struct` is the kio entity class of the field, or None. `kafka_type` is the primitive type of
    the field, or None.
    """

    name: str
    message_name: str
    kafka_type: str | None
    struct: type[Any] | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: object
    """The default in kio's class, or `dataclasses.MISSING`."""

    @property
    def required(self) -> bool:
        """Return True if kio's class does not define a default."""
        return self.default is dataclasses.MISSING

    @property
    def element_format(self) -> str | None:
        """Return the `struct` format of a value or array element, or None if its size varies."""
        kafka_type = self.kafka_type or ""
        return _FIXED_FORMATS.get(MILLISECOND_TYPES.get(kafka_type, kafka_type))

    @property
    def fixed_format(self) -> str | None:
        """Return the `struct` format of the field, or None if its size varies."""
        return None if self.is_array else self.element_format


def fields_of(entity: type[Any]) -> tuple[FieldSchema, ...]:
    """Return the fields of a kio entity class in encoding order."""
    fields = _FIELDS.get(entity)
    if fields is None:
        fields = tuple(_describe(field) for field in dataclasses.fields(entity))
        _FIELDS[entity] = fields
    return fields


_FIELDS: Final[dict[type[Any], tuple[FieldSchema, ...]]] = {}


def struct_of(hint: Any) -> Any:
    """Return `T` for `T`, `T | None`, `tuple[T, ...]` or `tuple[T, ...] | None`."""
    inner, _ = _without_none(hint)
    return get_args(inner)[0] if get_origin(inner) is tuple else inner


def _describe(field: dataclasses.Field[Any]) -> FieldSchema:
    kafka_type = field.metadata.get("kafka_type")
    inner, nullable = _without_none(field.type)
    element = struct_of(field.type)
    unit = "_ms" if kafka_type in MILLISECOND_TYPES else ""
    tag = field.metadata.get("tag")
    return FieldSchema(
        name=field.name,
        message_name=field.name + unit,
        kafka_type=kafka_type,
        struct=element if _is_entity(element) else None,
        is_array=get_origin(inner) is tuple,
        nullable=nullable,
        tag=None if tag is None else int(tag),
        default=field.default,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without `| None`, and whether the type included None."""
    if get_origin(hint) not in (UnionType, Union):
        return hint, False
    (inner,) = [member for member in get_args(hint) if member is not NoneType]
    return inner, True


def _is_entity(element: Any) -> bool:
    return isinstance(element, type) and dataclasses.is_dataclass(element)
