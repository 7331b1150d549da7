"""Batch reads through Spark: columns, ranges, schemas and tasks."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from integration.clusters.topics import grow_topic
from pyspark_kafka import register
from tests.conftest import TopicFactory
from tests.spark.conftest import Produce, Reader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

T0_MS = 1_700_000_000_000
KEPT = {"retention.ms": "-1"}
"""Topic config that disables retention, because the records of these topics have old timestamps."""


def values(frame: DataFrame) -> list[str | None]:
    rows = sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))
    return [None if row.value is None else row.value.decode() for row in rows]


@pytest.mark.spark_version
def test_the_format_is_discovered_without_registration(spark: SparkSession, read: Reader) -> None:
    frame = read(subscribe="no-matter")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )


@pytest.mark.spark_version
def test_a_discovered_format_can_be_registered_again(spark: SparkSession, read: Reader) -> None:
    register(spark)
    register(spark)
    assert read(subscribe="no-matter").columns[0] == "key"


@pytest.mark.spark_version
def test_every_column(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic(partitions=2, **KEPT)
    headers = [("a", b"\x00\xff"), ("a", None), ("b", b"")]
    produce(name, ["wert\u00e4"], key=b"\x01k", timestamps_ms=[T0_MS + 123], headers=headers)
    produce(name, [None], partition=1, timestamps_ms=[T0_MS])
    frame = read(subscribe=name, includeHeaders="true").withColumn(
        "timestamp", functions.unix_micros("timestamp")
    )
    first, second = sorted(frame.collect(), key=lambda row: row.partition)
    assert first.asDict(recursive=True) == {
        "key": bytearray(b"\x01k"),
        "value": bytearray("wert\u00e4".encode()),
        "topic": name,
        "partition": 0,
        "offset": 0,
        "timestamp": (T0_MS + 123) * 1000,
        "timestampType": 0,
        "headers": [
            {"key": "a", "value": bytearray(b"\x00\xff")},
            {"key": "a", "value": None},
            {"key": "b", "value": bytearray()},
        ],
    }
    assert (second.key, second.value, second.partition, second.headers) == (None, None, 1, None)


def test_log_append_time(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    now_ms = time.time() * 1000
    produce(name, ["x"], timestamps_ms=[T0_MS])
    (row,) = (
        read(subscribe=name).selectExpr("timestampType", "unix_millis(timestamp) AS ms").collect()
    )
    assert row.timestampType == 1
    assert abs(row.ms - now_ms) < 60_000


def test_a_user_schema_is_a_projection(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic()
    produce(name, ["a", "b"])
    frame = read(schema="offset BIGINT, value BINARY", subscribe=name)
    assert frame.columns == ["offset", "value"]
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect()) == [
        (0, b"a"),
        (1, b"b"),
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("value STRING", "'value'"),
        ("value BINARY, amount INT", "'amount'"),
        ("headers ARRAY<STRUCT<key: STRING, value: BINARY>>", "'includeHeaders'"),
    ],
)
def test_an_invalid_user_schema(
    read: Reader, topic: TopicFactory, schema: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=f"SchemaError: .*{message}"):
        read(schema=schema, subscribe=topic()).collect()


def test_ranges_of_every_kind(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic(partitions=2, **KEPT)
    for partition in (0, 1):
        texts = [f"{partition}{letter}" for letter in "abcd"]
        produce(name, texts, partition=partition, timestamps_ms=[T0_MS + 10 * n for n in range(4)])
    assert values(
        read(
            subscribe=name,
            startingOffsets=f'{{"{name}":{{"0":1,"1":-2}}}}',
            endingOffsets=f'{{"{name}":{{"0":3,"1":-1}}}}',
        )
    ) == ["0b", "0c", "1a", "1b", "1c", "1d"]
    assert values(
        read(
            assign=f'{{"{name}":[1]}}',
            startingTimestamp=str(T0_MS + 5),
            endingTimestamp=str(T0_MS + 25),
        )
    ) == ["1b", "1c"]
    assert values(
        read(
            subscribePattern=name.replace(".", "[.]") + "$",
            startingOffsetsByTimestamp=f'{{"{name}":{{"0":{T0_MS + 30},"1":{T0_MS + 20}}}}}',
            endingOffsetsByTimestamp=f'{{"{name}":{{"0":{T0_MS + 99},"1":{T0_MS + 30}}}}}',
        )
    ) == ["0d", "1c"]


def test_ranges_are_split_into_tasks(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic(partitions=2)
    produce(name, [f"{n:02}" for n in range(20)])
    assert read(subscribe=name).rdd.getNumPartitions() == 1
    for options, tasks in (({"minPartitions": "5"}, 5), ({"maxRecordsPerPartition": "4"}, 5)):
        frame = read(subscribe=name, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert values(frame) == [f"{n:02}" for n in range(20)]


def test_a_dataframe_reads_the_current_records_each_time(
    spark: SparkSession, read: Reader, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    name = topic(partitions=2)
    produce(name, ["0a", "0b", "0c", "0d"])
    frame = read(subscribe=name, minPartitions="2")
    frame.createOrReplaceTempView("records")
    assert spark.table("records").count() == frame.count() == 4

    produce(name, ["0e"])
    produce(name, ["1a"], partition=1)
    grow_topic(bootstrap, name, partitions=3)
    added = spark.sql("SELECT binary('2a') AS value, 2 AS partition").write.format("pyspark_kafka")
    added.mode("append").option("kafka.bootstrap.servers", bootstrap).option("topic", name).save()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_records([TopicPartition(name, 0, 3)]).values()
    deleted.result(timeout=30)
    assert values(frame) == ["0d", "0e", "1a", "2a"]
    assert spark.table("records").count() == 4
    assert frame.rdd.count() == 4
    fixed = read(
        subscribe=name,
        startingOffsets=f'{{"{name}":{{"0":3,"1":0,"2":0}}}}',
        endingOffsets=f'{{"{name}":{{"0":4,"1":1,"2":1}}}}',
    )
    assert values(fixed) == ["0d", "1a", "2a"]
    produce(name, ["0f"])
    assert frame.count() == 5
    assert fixed.count() == 3


def test_empty_topic(read: Reader, topic: TopicFactory) -> None:
    frame = read(subscribe=topic())
    assert frame.collect() == []
    assert frame.count() == 0


def test_a_read_with_several_fetches(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic(partitions=3)
    size, count = 100_000, 40
    for partition in range(3):
        produce(
            name,
            [b"%d-%d:" % (partition, n) + b"x" * size for n in range(count)],
            partition=partition,
        )
    rows = (
        read(subscribe=name, **{"kafka.max.partition.fetch.bytes": "1000000"})
        .selectExpr(
            "partition",
            "offset",
            "length(value) AS size",
            "CAST(substring_index(CAST(value AS STRING), ':', 1) AS STRING) AS id",
        )
        .collect()
    )
    assert sorted((row.partition, row.offset, row.id) for row in rows) == [
        (p, n, f"{p}-{n}") for p in range(3) for n in range(count)
    ]
    assert {row["size"] - len(row.id) - 1 for row in rows} == {size}


def test_limit_ends_the_read_early(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic(partitions=2)
    for partition in (0, 1):
        produce(name, ["x"] * 5000, partition=partition)
    assert len(read(subscribe=name).limit(3).collect()) == 3
    assert read(subscribe=name).count() == 10_000


def test_added_partitions_are_read(
    read: Reader, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    grow_topic(bootstrap, name, partitions=2)
    produce(name, ["new"], partition=1)
    assert values(read(subscribe=name)) == ["new"]


def test_committed_offsets_of_a_group(
    read: Reader, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    name = topic(partitions=2)
    produce(name, ["a", "b", "c"])
    produce(name, ["d"], partition=1)
    group = f"group-of-{name}"
    options = {"subscribe": name, "startingOffsets": "committed", "kafka.group.id": group}
    with pytest.raises(PySparkException, match=f"OffsetError: .*'{group}'"):
        read(**options).collect()
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    offsets = [TopicPartition(name, 0, 2), TopicPartition(name, 1, 0)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    assert values(read(**options)) == ["c", "d"]
