"""Checks on the driver whether the columns of a DataFrame can be written to Kafka.

A DataFrame that cannot be written is rejected before any task starts. Invariant: the column types
of an accepted DataFrame need no further checks.
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
    MapType,
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
    """Check that a DataFrame can be written. `topic` is the value of the `topic` option, or None.

    Raises `SchemaError` for an invalid column, and `OptionError` if neither the option nor a column
    specifies a topic.
    """
    seen: set[str] = set()
    for field in schema.fields:
        _check_column(field.name, field.dataType)
        if field.name in seen:
            raise SchemaError(
                f"The DataFrame has two columns named '{field.name}'.",
                advice="Drop or rename one of the two columns.",
                column=field.name,
            )
        seen.add(field.name)
    if "value" not in seen:
        raise SchemaError(
            f"The DataFrame has no column 'value'. It contains {_listing(schema.names)}.",
            advice="Add a string or binary column 'value', for example with to_json(struct(...)).",
            column="value",
        )
    if topic is None and "topic" not in seen:
        raise OptionError(
            "No topic is specified: the option 'topic' is not set, and the DataFrame has no column "
            "'topic'.",
            advice="Set the option 'topic', or add a string column 'topic' that contains the topic "
            "of each row.",
            option="topic",
        )


def _check_column(name: str, data_type: DataType) -> None:
    column = _COLUMNS.get(name)
    if column is None:
        close = difflib.get_close_matches(name.lower(), _COLUMNS, n=1)
        if name in _SOURCE_ONLY:
            advice = "Drop the column. The broker sets this value when it appends the record."
        elif close:
            advice = f"If you meant '{close[0]}', rename the column. Otherwise drop it."
        else:
            advice = "Drop the column."
        raise SchemaError(
            f"Column '{name}' ({data_type.simpleString()}) cannot be written. The sink accepts the "
            f"columns {', '.join(f'{n} ({c.allowed})' for n, c in _COLUMNS.items())}.",
            advice=advice,
            column=name,
        )
    if not column.accepts(data_type):
        advice = "Cast the column to the required type."
        if name == "headers" and isinstance(data_type, MapType):
            advice = f"Convert the map with CAST(map_entries(headers) AS {_HEADERS})."
        raise SchemaError(
            f"Column '{name}' has type {data_type.simpleString()} instead of {column.allowed}.",
            advice=advice,
            column=name,
        )


def _listing(names: list[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names)
    return f"the columns {listed}" if names else "no columns"
