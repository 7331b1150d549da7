"""Hypothesis strategies for kio's entities, derived from their annotations only."""

from __future__ import annotations

import dataclasses
import datetime
import io
import uuid
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def entities(schema: Any) -> st.SearchStrategy[Any]:
    fields = {field.name: _values(field) for field in dataclasses.fields(schema)}
    return st.builds(schema, **fields)


def entity_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _values(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    hint, nullable = field.type, False
    if get_origin(hint) in (UnionType, Union):
        (hint,) = [member for member in get_args(hint) if member is not NoneType]
        nullable = True
    is_array = get_origin(hint) is tuple
    element: Any = get_args(hint)[0] if is_array else hint
    if dataclasses.is_dataclass(element):
        values = entities(element)
    else:
        values = _primitives(field.metadata["kafka_type"])
    if is_array:
        values = st.lists(values, max_size=3).map(tuple)
    # kio cannot write null arrays, and assumes that tagged fields are never null.
    can_be_null = nullable and not is_array and "tag" not in field.metadata
    return st.none() | values if can_be_null else values


def _primitives(kafka_type: str) -> st.SearchStrategy[Any]:
    if kafka_type in _INTEGERS:
        bits = _INTEGERS[kafka_type]
        return st.integers(-(2**bits), 2**bits - 1)
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "bytes": st.binary(max_size=40),
        "error_code": st.sampled_from(ErrorCode),
        "records": st.binary(max_size=40),
        "string": st.text(max_size=8),
        "timedelta_i32": st.integers(0, 2**31 - 1).map(
            lambda ms: datetime.timedelta(milliseconds=ms)
        ),
        "timedelta_i64": st.integers(0, 2**40).map(lambda ms: datetime.timedelta(milliseconds=ms)),
        "uuid": st.uuids().filter(lambda one: one != uuid.UUID(int=0)),
    }
    return strategies[kafka_type]
