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
from pyspark_kafka.sink.columns import SinkColumns

TEXT, BINARY, INT, TIME = StringType(), BinaryType(), IntegerType(), TimestampType()
HEADERS = ArrayType(StructType().add("key", TEXT).add("value", BINARY))


def of(option: str | None, /, **columns: DataType) -> SinkColumns:
    schema = StructType()
    for name, data_type in columns.items():
        schema = schema.add(name, data_type)
    return SinkColumns.of(schema, option)


@pytest.mark.parametrize("value", [TEXT, BINARY])
@pytest.mark.parametrize("key", [TEXT, BINARY])
def test_every_column(key: DataType, value: DataType) -> None:
    columns = of(
        None, headers=HEADERS, key=key, topic=TEXT, value=value, partition=INT, timestamp=TIME
    )
    assert columns.names == ("headers", "key", "topic", "value", "partition", "timestamp")
    assert columns.topic is None


def test_the_value_alone_with_the_option() -> None:
    assert of("t", value=TEXT) == SinkColumns(names=("value",), topic="t")


def test_the_option_overrides_the_column() -> None:
    assert of("t", value=TEXT, topic=TEXT).topic == "t"


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
        of("t", **columns)


def test_a_column_twice() -> None:
    schema = StructType().add("value", TEXT).add("value", TEXT)
    with pytest.raises(SchemaError, match="column 'value' is there twice"):
        SinkColumns.of(schema, "t")


def test_no_topic_at_all() -> None:
    with pytest.raises(
        OptionError, match=r"set the option 'topic', or add a string column 'topic'"
    ):
        of(None, value=TEXT)
