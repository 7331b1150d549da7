"""Batch writes through Spark: columns, partitions and errors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, read_all
from tests.spark import engines

pytestmark = [pytest.mark.spark]

Write = Callable[..., None]


@pytest.fixture
def write(bootstrap: str) -> Write:
    """Return a function that appends a DataFrame: `write(frame, topic="t")`."""

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        writer = engines.kafka(frame.write).option("kafka.bootstrap.servers", bootstrap)
        writer.options(**options).mode(mode).save()

    return write


@pytest.mark.spark_version
def test_every_column(
    spark: SparkSession, write: Write, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic(partitions=3)
    spark.sql("SET TIME ZONE 'America/New_York'")
    try:
        frame = spark.sql(
            f"""
            SELECT * FROM VALUES
            (array(named_struct('key', 'a', 'value', X'31'),
                   named_struct('key', 'a', 'value', NULL)),
             'clé', X'ff00', '{name}', 2, timestamp '2024-05-06 07:08:09.123456 UTC'),
            (NULL, NULL, NULL, '{name}', 0, timestamp '2024-05-06 07:08:10 UTC')
            AS t(headers, key, value, topic, partition, timestamp)
            """
        )
        write(frame)
    finally:
        spark.sql("SET TIME ZONE 'UTC'")
    at = int(datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp() * 1000)
    assert read_all(bootstrap, name, partitions=3) == [
        Record(value=None, key=None, partition=0, timestamp_ms=at + 1000),
        Record(
            value=b"\xff\x00",
            key="clé".encode(),
            partition=2,
            timestamp_ms=at + 123,
            headers=(("a", b"1"), ("a", None)),
        ),
    ]


def test_many_rows_of_several_tasks(
    spark: SparkSession, write: Write, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    numbers = spark.range(0, 50_000, numPartitions=5).filter("id % 5 != 3 AND id < 40000")
    write(numbers.select(col("id").cast("string").alias("value")), topic=name)
    values = [int(record.value or b"") for record in read_all(bootstrap, name, partitions=2)]
    assert sorted(values) == [n for n in range(40_000) if n % 5 != 3]


def test_the_topic_option_overrides_the_column(
    spark: SparkSession, write: Write, bootstrap: str, topic: TopicFactory
) -> None:
    name, other = topic(), topic()
    write(spark.createDataFrame([("v", other)], "value string, topic string"), topic=name)
    assert [record.value for record in read_all(bootstrap, name)] == [b"v"]
    assert read_all(bootstrap, other) == []


def test_keys_are_partitioned_as_by_the_java_client(
    spark: SparkSession, write: Write, bootstrap: str, topic: TopicFactory
) -> None:
    name = topic(partitions=17)
    hashes = {"21": -973932308, "foobar": -790332482, "abc": 479470107}
    frame = spark.createDataFrame([(key, key) for key in hashes], "key string, value string")
    write(frame, topic=name)
    partitions = {
        record.key: record.partition for record in read_all(bootstrap, name, partitions=17)
    }
    assert partitions == {key.encode(): (h & 0x7FFFFFFF) % 17 for key, h in hashes.items()}


def test_a_copied_topic_has_the_same_records(
    spark: SparkSession, write: Write, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    values = spark.range(1_000).selectExpr("cast(id AS string) key", "cast(id AS string) value")
    write(values, topic=source)
    copied = (
        engines.kafka(spark.read)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("includeHeaders", "true")
        .load()
        .drop("topic", "offset", "timestampType")
    )
    write(copied, topic=target)
    first, second = (read_all(bootstrap, name, partitions=2) for name in (source, target))
    assert len(first) == 1_000
    assert first == second


@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        pytest.param("'k' AS key", {}, "SchemaError: .*'value'", id="value"),
        pytest.param("id AS value", {}, "SchemaError: .*'value'.*bigint", id="type"),
        pytest.param("'v' AS value; id AS amount", {}, "SchemaError: .*'amount'", id="unknown"),
        pytest.param(
            "'v' AS value; 1L AS partition",
            {},
            "SchemaError: .*'partition'.*bigint",
            id="partition",
        ),
        pytest.param("'v' AS value", {"topic": ""}, "OptionError: .*'topic'", id="empty-topic"),
        pytest.param("'v' AS value", {"kafka.acks": "1"}, "OptionError: .*'kafka.acks'", id="acks"),
        pytest.param(
            "'v' AS value",
            {"kafka.compression.type": "rar"},
            "OptionError: .*compression",
            id="checked-by-librdkafka",
        ),
    ],
)
def test_invalid_columns_and_options_fail_on_the_driver(
    spark: SparkSession, write: Write, select: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(*select.split("; ")), **{"topic": "t", **options})


def test_a_write_without_a_topic(spark: SparkSession, write: Write) -> None:
    with pytest.raises(PySparkException, match=r"OptionError: .*topic"):
        write(spark.range(1).selectExpr("'v' AS value"))


def test_overwrite_is_an_error(spark: SparkSession, write: Write) -> None:
    with pytest.raises(PySparkException, match=r"OptionError: .*mode\('append'\)"):
        write(spark.range(1).selectExpr("'v' AS value"), mode="overwrite", topic="t")


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("'v' AS value; cast(NULL AS string) AS topic", "RowError: .*'topic'"),
        ("'v' AS value; '{topic}' AS topic; 7 AS partition", "RowError: .*7"),
        (
            "'v' AS value; '{topic}' AS topic; -1 AS partition",
            "RowError: .*-1",
        ),
        (
            "repeat('v', 2000000) AS value; '{topic}' AS topic",
            "RowError: .*'kafka.max.request.size",
        ),
        ("repeat('v', 9000) AS value; '{topic}' AS topic", "DeliveryError: .*'max.message.bytes'"),
        ("'v' AS value; 'no such' AS topic", "DeliveryError: .*no such"),
    ],
)
def test_invalid_rows_fail_their_task(
    spark: SparkSession, write: Write, topic: TopicFactory, select: str, message: str
) -> None:
    name = topic(**{"max.message.bytes": "5000"})
    with pytest.raises(PySparkException, match=message):
        write(spark.range(1).selectExpr(*select.format(topic=name).split("; ")))


def test_one_invalid_row_among_many_fails_the_write(
    spark: SparkSession, write: Write, topic: TopicFactory
) -> None:
    name = topic(**{"max.message.bytes": "5000"})
    frame = spark.range(0, 20_000, numPartitions=2).select(
        lit("x").alias("key"),
        col("id").cast("string").alias("value"),
    )
    bad = spark.range(1).selectExpr("'x' AS key", "repeat('v', 100000) AS value")
    with pytest.raises(PySparkException, match=f"DeliveryError: .*{name}-0"):
        write(frame.union(bad), topic=name)


def test_a_write_without_a_broker(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("'v' AS value")
    writer = engines.kafka(frame.write).option("kafka.bootstrap.servers", "127.0.0.1:1")
    writer = writer.option("kafka.delivery.timeout.ms", "1000").option("topic", "t")
    with pytest.raises(PySparkException, match=r"DeliveryError: .*127\.0\.0\.1:1"):
        writer.mode("append").save()
