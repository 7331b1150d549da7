"""The schema is that of Spark's connector; a user's schema is a projection of it or refused."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_kafka.columns import SOURCE_SCHEMA
from pyspark_kafka.errors import SchemaError
from pyspark_kafka.source.schema import projection, source_schema


def schema(*fields: StructField) -> StructType:
    return StructType(list(fields))


def test_columns_are_those_of_sparks_connector() -> None:
    assert source_schema(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert source_schema(include_headers=False).fieldNames() == SOURCE_SCHEMA.names[:-1]


def test_spark_and_arrow_say_the_same() -> None:
    assert to_arrow_schema(source_schema(include_headers=True), timezone="UTC") == SOURCE_SCHEMA


def test_projection_keeps_the_order_asked_for() -> None:
    wanted = schema(StructField("offset", LongType()), StructField("value", BinaryType()))
    assert projection(wanted, include_headers=False) == ("offset", "value")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("value", StringType()), r"'value' with type string, .* only be binary"),
        (StructField("offset", IntegerType()), r"'offset' with type int, .* only be bigint"),
        (StructField("Value", BinaryType()), r"'Value' .* did you mean 'value'\?"),
        (StructField("amount", LongType()), r"'amount' of type bigint, which .* does not have"),
        (StructField("key", BinaryType(), nullable=False), r"'key' as NOT NULL"),
        (source_schema(include_headers=True)["headers"], r"'headers': set .* 'includeHeaders'"),
    ],
)
def test_refused(field: StructField, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        projection(schema(StructField("topic", StringType()), field), include_headers=False)


def test_refused_as_a_whole() -> None:
    with pytest.raises(SchemaError, match="has no column"):
        projection(schema(), include_headers=False)
    twice = StructField("value", BinaryType())
    with pytest.raises(SchemaError, match="'value' twice"):
        projection(schema(twice, twice), include_headers=False)
