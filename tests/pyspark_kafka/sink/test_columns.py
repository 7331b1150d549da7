"""Tests of columns: the driver rejects columns that cannot be written, and names them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_kafka.errors import OptionError, SchemaError
from pyspark_kafka.sink.columns import check_columns

TEXT, BINARY, INT, TIME = StringType(), BinaryType(), IntegerType(), TimestampType()
HEADERS = ArrayType(StructType().add("key", TEXT).add("value", BINARY))


def check(option: str | None, /, **columns: DataType) -> None:
    schema = StructType()
    for name, data_type in columns.items():
        schema = schema.add(name, data_type)
    check_columns(schema, option)


@pytest.mark.parametrize("value", [TEXT, BINARY])
@pytest.mark.parametrize("key", [TEXT, BINARY])
def test_every_column(key: DataType, value: DataType) -> None:
    check(None, headers=HEADERS, key=key, topic=TEXT, value=value, partition=INT, timestamp=TIME)


def test_the_value_alone_with_the_option() -> None:
    check("t", value=TEXT)


def test_the_option_beside_the_column() -> None:
    check("t", value=TEXT, topic=TEXT)


@pytest.mark.parametrize(
    ("columns", "column", "facts"),
    [
        ({"key": TEXT}, "value", ["'key'"]),
        ({}, "value", []),
        ({"value": INT}, "value", ["int", "string", "binary"]),
        ({"value": TEXT, "key": INT}, "key", ["int", "string", "binary"]),
        ({"value": TEXT, "topic": BINARY}, "topic", ["binary", "string"]),
        ({"value": TEXT, "partition": LongType()}, "partition", ["bigint", "int"]),
        ({"value": TEXT, "timestamp": TimestampNTZType()}, "timestamp", ["timestamp_ntz"]),
        ({"value": TEXT, "headers": ArrayType(TEXT)}, "headers", ["array<string>"]),
        (
            {"value": TEXT, "headers": ArrayType(StructType().add("k", TEXT).add("v", BINARY))},
            "headers",
            ["array<struct<k:string,v:binary>>", "array<struct<key:string,value:binary>>"],
        ),
        ({"value": TEXT, "headers": MapType(TEXT, TEXT)}, "headers", ["map_entries(headers)"]),
        ({"value": TEXT, "amount": DoubleType()}, "amount", ["double"]),
        ({"Value": TEXT}, "Value", ["'value'"]),
        ({"value": TEXT, "offset": LongType()}, "offset", []),
    ],
)
def test_invalid_column_is_refused(
    columns: dict[str, DataType], column: str, facts: list[str]
) -> None:
    with pytest.raises(SchemaError) as caught:
        check("t", **columns)
    assert caught.value.column == column
    assert [fact for fact in facts if fact not in str(caught.value)] == []


def test_duplicate_column_is_refused() -> None:
    schema = StructType().add("value", TEXT).add("value", TEXT)
    with pytest.raises(SchemaError) as caught:
        check_columns(schema, "t")
    assert caught.value.column == "value"


def test_write_without_any_topic_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        check(None, value=TEXT)
    assert caught.value.option == "topic"
