"""The columns of the source with their Spark types, and the columns that a user's schema selects.

Invariant: the types correspond to `columns.SOURCE_SCHEMA`. A test checks this invariant.
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
_NAMES: Final = ", ".join(_TYPES)


def source_schema(*, include_headers: bool) -> StructType:
    """Return the schema of Spark's Kafka connector, with or without the `headers` column."""
    return StructType(
        [
            StructField(name, data_type)
            for name, data_type in _TYPES.items()
            if name != "headers" or include_headers
        ]
    )


def projection(schema: StructType, *, include_headers: bool) -> tuple[str, ...]:
    """Return the columns that `schema` selects, in the order of the schema. Raises `SchemaError`.

    The default schema is checked too, because Spark does not report whether the user passed another
    schema to `schema()`.
    """
    names = tuple(field.name for field in schema.fields)
    if not names:
        raise SchemaError(
            "The schema has no columns.", advice=f"Use one or more of the columns {_NAMES}."
        )
    for field in schema.fields:
        _check(field, include_headers=include_headers)
        if names.count(field.name) > 1:
            raise SchemaError(
                f"The schema contains column '{field.name}' twice.",
                advice="Remove the duplicate column.",
                column=field.name,
            )
    return names


def _check(field: StructField, *, include_headers: bool) -> None:
    name, found = field.name, field.dataType.simpleString()
    expected = _TYPES.get(name)
    if expected is None:
        close = difflib.get_close_matches(name, _TYPES, n=1)
        suggestion = f"Use '{close[0]}' if you mean that column. " if close else ""
        raise SchemaError(
            f"The schema contains column '{name}' of type {found}, but the source has no such "
            f"column. The columns of the source are {_NAMES}.",
            advice=f"{suggestion}To read fields of the record value, decode the 'value' column "
            "after the read, for example with from_json(CAST(value AS STRING), ...).",
            column=name,
        )
    if name == "headers" and not include_headers:
        raise SchemaError(
            "The schema contains column 'headers', but option 'includeHeaders' is 'false'.",
            advice="Set 'includeHeaders' to 'true'.",
            column=name,
            option="includeHeaders",
        )
    if field.dataType != expected:
        raise SchemaError(
            f"The schema contains column '{name}' with type {found}, but the type of this column "
            f"is {expected.simpleString()}.",
            advice="Correct the type in the schema, and cast the column after the read.",
            column=name,
        )
    if not field.nullable:
        raise SchemaError(
            f"The schema declares column '{name}' as NOT NULL, but this column is nullable.",
            advice="Declare the column as nullable.",
            column=name,
        )
