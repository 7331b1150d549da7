"""The columns of a DataFrame that is written, checked on the driver.

Purpose: refuse, before any task starts, a DataFrame whose rows cannot be written. Invariant: the
types of a DataFrame that passes need no further check. Must not know: rows, clients.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_kafka.errors import OptionError, SchemaError

_HEADERS: Final = "array<struct<key:string,value:binary>>"


def _is_text_or_binary(data_type: DataType) -> bool:
    return isinstance(data_type, StringType | BinaryType)


def _is_headers(data_type: DataType) -> bool:
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields = data_type.elementType.fields
    return (
        [f.name for f in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    allowed: str
    accepts: Callable[[DataType], bool]


_COLUMNS: Final[Mapping[str, _Column]] = MappingProxyType(
    {
        "key": _Column(allowed="string or binary", accepts=_is_text_or_binary),
        "value": _Column(allowed="string or binary", accepts=_is_text_or_binary),
        "topic": _Column(allowed="string", accepts=lambda t: isinstance(t, StringType)),
        "partition": _Column(allowed="int", accepts=lambda t: isinstance(t, IntegerType)),
        "headers": _Column(allowed=_HEADERS, accepts=_is_headers),
        "timestamp": _Column(allowed="timestamp", accepts=lambda t: isinstance(t, TimestampType)),
    }
)
_SOURCE_ONLY: Final = frozenset({"offset", "timestampType"})


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check that a DataFrame can be written. `topic` is the option, if it is set.

    Raises `SchemaError` for a column, or `OptionError` if neither option nor column names a topic.
    """
    seen: set[str] = set()
    for field in schema.fields:
        _check_column(field.name, field.dataType)
        if field.name in seen:
            raise SchemaError(
                f"The DataFrame has two columns '{field.name}'.",
                advice="Drop or rename one of them.",
                column=field.name,
            )
        seen.add(field.name)
    if "value" not in seen:
        raise SchemaError(
            f"Column 'value' is missing. The DataFrame has {_listing(schema.names)}.",
            advice="Add a string or binary column 'value', for example with to_json(struct(...)).",
            column="value",
        )
    if topic is None and "topic" not in seen:
        raise OptionError(
            "No topic is set: there is no option 'topic' and no column 'topic'.",
            advice="Set the option 'topic', or add a string column 'topic' that names the topic "
            "of each row.",
            option="topic",
        )


def _check_column(name: str, data_type: DataType) -> None:
    column = _COLUMNS.get(name)
    if column is None:
        close = difflib.get_close_matches(name.lower(), _COLUMNS, n=1)
        if name in _SOURCE_ONLY:
            advice = "Drop it: the broker assigns it when the row is written."
        elif close:
            advice = f"Rename it to '{close[0]}' if that is what you mean, or drop it."
        else:
            advice = "Drop it."
        raise SchemaError(
            f"Column '{name}' ({data_type.simpleString()}) cannot be written. "
            f"The columns are {', '.join(f'{n} ({c.allowed})' for n, c in _COLUMNS.items())}.",
            advice=advice,
            column=name,
        )
    if not column.accepts(data_type):
        raise SchemaError(
            f"Column '{name}' has the type {data_type.simpleString()} instead of {column.allowed}.",
            advice="Cast it.",
            column=name,
        )


def _listing(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "no columns"
