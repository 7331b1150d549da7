"""The columns of a DataFrame that is written, checked on the driver.

Purpose: refuse by name, before any task, what no row of could be written. Invariant: whatever
passes here is written without a further look at types. What it must not know: rows, clients.
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
_OF_A_SOURCE: Final = frozenset({"offset", "timestampType"})


def check_columns(schema: StructType, topic: str | None) -> None:
    """Whether a DataFrame can be written, where the option `topic` is so.

    Raises `SchemaError` naming a column, or `OptionError` when no topic is given at all.
    """
    seen: set[str] = set()
    for field in schema.fields:
        _check_column(field.name, field.dataType)
        if field.name in seen:
            raise SchemaError(f"column '{field.name}' is there twice: drop or rename one")
        seen.add(field.name)
    if "value" not in seen:
        raise SchemaError(
            "column 'value' is missing: a DataFrame to be written needs it, as string or "
            f"binary; it has {_listing(schema.names)}. Build it with to_json(struct(...)), say"
        )
    if topic is None and "topic" not in seen:
        raise OptionError(
            "no topic to write to: set the option 'topic', or add a string column 'topic' "
            "that names one for each row"
        )


def _check_column(name: str, data_type: DataType) -> None:
    column = _COLUMNS.get(name)
    if column is None:
        close = difflib.get_close_matches(name.lower(), _COLUMNS, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        if name in _OF_A_SOURCE:
            hint = "a read has it, and the topic written to gives its own: drop it. "
        raise SchemaError(
            f"column '{name}' ({data_type.simpleString()}) cannot be written: {hint}"
            f"The columns are {', '.join(f'{n} ({c.allowed})' for n, c in _COLUMNS.items())}"
        )
    if not column.accepts(data_type):
        raise SchemaError(
            f"column '{name}' is {data_type.simpleString()}, but must be {column.allowed}: cast it"
        )


def _listing(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "no columns"
