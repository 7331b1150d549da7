"""The source's columns as Spark types, and a user's schema as a projection of them.

Purpose: one statement of the schema for Spark. Invariant: the types here and those of
`columns.SOURCE_SCHEMA` are the same, which a test holds.
"""

from __future__ import annotations

import difflib
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_kafka.errors import SchemaError

_TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def source_schema(*, include_headers: bool) -> StructType:
    """The seven columns of Spark's own connector, and `headers` where asked for."""
    return StructType(
        [
            StructField(name, data_type)
            for name, data_type in _TYPES.items()
            if name != "headers" or include_headers
        ]
    )


def projection(schema: StructType, *, include_headers: bool) -> tuple[str, ...]:
    """The columns that a schema selects, in its order; raises `SchemaError` naming the first bad.

    `schema` is ours or the user's; Spark does not tell which.
    """
    names = tuple(field.name for field in schema.fields)
    if not names:
        raise SchemaError(f"the schema has no column: take some of {', '.join(_TYPES)}")
    for field in schema.fields:
        _check(field, include_headers=include_headers)
        if names.count(field.name) > 1:
            raise SchemaError(f"the schema has the column '{field.name}' twice")
    return names


def _check(field: StructField, *, include_headers: bool) -> None:
    expected = _TYPES.get(field.name)
    if expected is None:
        close = difflib.get_close_matches(field.name, _TYPES, n=1)
        meant = f"; did you mean '{close[0]}'?" if close else ""
        raise SchemaError(
            f"the schema has the column '{field.name}' of type {field.dataType.simpleString()}, "
            f"which the source does not have{meant} It has {', '.join(_TYPES)}; a value is decoded "
            "after reading, e.g. by from_json(CAST(value AS STRING), ...)"
        )
    if field.name == "headers" and not include_headers:
        raise SchemaError(
            "the schema has the column 'headers': set the option 'includeHeaders' to 'true'"
        )
    if field.dataType != expected:
        raise SchemaError(
            f"the schema has the column '{field.name}' with type {field.dataType.simpleString()}, "
            f"and it can only be {expected.simpleString()}: cast it after reading"
        )
    if not field.nullable:
        raise SchemaError(
            f"the schema has the column '{field.name}' as NOT NULL, and all columns are nullable"
        )
