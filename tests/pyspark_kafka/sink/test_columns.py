"""What cannot be written is refused on the driver, by column."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
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
    ("columns", "message"),
    [
        ({"key": TEXT}, r"column 'value' is missing.*it has 'key'"),
        ({}, r"column 'value' is missing.*it has no columns"),
        ({"value": INT}, r"column 'value' is int, but must be string or binary: cast it"),
        ({"value": TEXT, "key": INT}, r"column 'key' is int, but must be string or binary"),
        ({"value": TEXT, "topic": BINARY}, r"column 'topic' is binary, but must be string"),
        ({"value": TEXT, "partition": LongType()}, r"column 'partition' is bigint.*must be int"),
        (
            {"value": TEXT, "timestamp": TimestampNTZType()},
            r"column 'timestamp' is timestamp_ntz, but must be timestamp",
        ),
        (
            {"value": TEXT, "headers": ArrayType(TEXT)},
            r"column 'headers' is array<string>, but must be array<struct<key:string,value:",
        ),
        (
            {"value": TEXT, "headers": ArrayType(StructType().add("k", TEXT).add("v", BINARY))},
            r"column 'headers' is array<struct<k:string,v:binary>>",
        ),
        ({"value": TEXT, "amount": DoubleType()}, r"column 'amount' \(double\) cannot be written"),
        ({"Value": TEXT}, r"column 'Value' .*did you mean 'value'\?"),
        ({"value": TEXT, "offset": LongType()}, r"column 'offset' .*: drop it"),
    ],
)
def test_refused(columns: dict[str, DataType], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check("t", **columns)


def test_a_column_twice() -> None:
    schema = StructType().add("value", TEXT).add("value", TEXT)
    with pytest.raises(SchemaError, match="column 'value' is there twice"):
        check_columns(schema, "t")


def test_no_topic_at_all() -> None:
    with pytest.raises(
        OptionError, match=r"set the option 'topic', or add a string column 'topic'"
    ):
        check(None, value=TEXT)
