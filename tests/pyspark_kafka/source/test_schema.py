"""Tests of the schema of Spark's connector, and of projections by the user's schema."""

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


def test_schema_is_that_of_sparks_connector() -> None:
    assert source_schema(include_headers=True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert source_schema(include_headers=False).fieldNames() == SOURCE_SCHEMA.names[:-1]


def test_spark_schema_is_equal_to_the_arrow_schema() -> None:
    assert to_arrow_schema(source_schema(include_headers=True), timezone="UTC") == SOURCE_SCHEMA


def test_projection_keeps_the_order_of_the_schema() -> None:
    selected = schema(StructField("offset", LongType()), StructField("value", BinaryType()))
    assert projection(selected, include_headers=False) == ("offset", "value")


@pytest.mark.parametrize(
    ("field", "facts"),
    [
        (StructField("value", StringType()), "string.* binary"),
        (StructField("offset", IntegerType()), "int.* bigint"),
        (StructField("Value", BinaryType()), "'value'"),
        (StructField("amount", LongType()), "bigint"),
        (StructField("key", BinaryType(), nullable=False), "NOT NULL"),
        (source_schema(include_headers=True)["headers"], "'includeHeaders'"),
    ],
)
def test_invalid_columns(field: StructField, facts: str) -> None:
    with pytest.raises(SchemaError, match=facts) as caught:
        projection(schema(StructField("topic", StringType()), field), include_headers=False)
    assert caught.value.column == field.name


def test_invalid_schemas() -> None:
    with pytest.raises(SchemaError):
        projection(schema(), include_headers=False)
    twice = StructField("value", BinaryType())
    with pytest.raises(SchemaError) as caught:
        projection(schema(twice, twice), include_headers=False)
    assert caught.value.column == "value"
