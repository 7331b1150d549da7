"""Errors for invalid options, which the driver raises before any task runs."""

from __future__ import annotations

import time

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration.clusters.ports import free_ports
from tests.conftest import TopicFactory
from tests.spark import engines
from tests.spark.conftest import Produce, Reader
from tests.spark.streams import StreamRunner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({}, "'subscribe'", id="missing"),
        pytest.param({"subscribe": "t", "assign": "{}"}, "'assign'.*'subscribe'", id="two"),
        pytest.param(
            {"subscribe": "t", "startingOfsets": "earliest"},
            "'startingofsets'.* 'startingOffsets'",
            id="misspelt",
        ),
        pytest.param(
            {"subscribe": "t", "startingOffsets": '{"t":{"0":'}, "'startingOffsets'", id="json"
        ),
        pytest.param(
            {"subscribe": "t", "kafka.auto.offset.reset": "earliest"},
            r"'kafka\.auto\.offset\.reset'",
            id="not-supported",
        ),
        pytest.param({"subscribe": "t", "minPartitions": "many"}, "'minPartitions'", id="number"),
    ],
)
def test_invalid_options_fail_at_load(
    read: Reader, spark: SparkSession, bootstrap: str, options: dict[str, str], message: str
) -> None:
    match = f"OptionError: .*{message}"
    with pytest.raises(PySparkException, match=match):
        read(**options)
    stream = engines.kafka(spark.readStream).options(**options)
    with pytest.raises(PySparkException, match=match):
        stream.option("kafka.bootstrap.servers", bootstrap).load()


def test_a_temporary_view_is_an_alternative_to_a_table(
    spark: SparkSession, bootstrap: str, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a", "b"])
    using = "USING pyspark_kafka"
    options = f"OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe '{name}')"
    with pytest.raises(PySparkException, match=r"OptionError: .*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE rejected {using} {options}")
    spark.sql(f"CREATE TABLE without_options (value BINARY) {using} {options}")
    with pytest.raises(PySparkException, match=r"OptionError: .*CREATE TEMPORARY VIEW"):
        spark.sql("SELECT * FROM without_options").collect()
    spark.sql("DROP TABLE without_options")
    spark.sql(f"CREATE TEMPORARY VIEW events {using} {options}")
    assert spark.sql("SELECT count(*) AS n FROM events").collect()[0].n == 2


def test_invalid_options_of_a_batch_read_fail_without_a_task(
    read: Reader, spark: SparkSession
) -> None:
    frame = read(subscribe="t", startingOffsets="latest")
    spark.sparkContext.setJobGroup("invalid", "a read with invalid options")
    try:
        with pytest.raises(PySparkException, match=r"OptionError: .*'startingOffsets'"):
            frame.collect()
        assert spark.sparkContext.statusTracker().getJobIdsForGroup("invalid") == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_invalid_options_of_a_streaming_read(streams: StreamRunner) -> None:
    with pytest.raises(PySparkException, match=r"OptionError: .*'endingOffsets'") as caught:
        streams.available_now(subscribe="t", endingOffsets="latest")
    assert "UnboundLocalError" not in str(caught.value)


def test_unknown_topic(read: Reader, streams: StreamRunner) -> None:
    message = "UnknownTopicOrPartitionError: .*'never-created'"
    with pytest.raises(PySparkException, match=message):
        read(subscribe="never-created").collect()
    with pytest.raises(PySparkException, match=message):
        streams.available_now(subscribe="never-created")


def test_unknown_partition(read: Reader, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    with pytest.raises(PySparkException, match=f"OptionError: .*'assign'.*{name}-2"):
        read(assign=f'{{"{name}":[0,2]}}').collect()
    with pytest.raises(PySparkException, match=f"OptionError: .*'startingOffsets'.*{name}-1"):
        read(subscribe=name, startingOffsets=f'{{"{name}":{{"0":0}}}}').collect()


def test_unreachable_broker(read: Reader) -> None:
    (port,) = free_ports(1)
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "kafka.default.api.timeout.ms": "2000",
    }
    started = time.monotonic()
    with pytest.raises(PySparkException, match=rf"BrokerUnreachableError: .*127\.0\.0\.1:{port}"):
        read(subscribe="t", **options).collect()
    assert time.monotonic() - started < 30


def test_data_loss(read: Reader, topic: TopicFactory, produce: Produce) -> None:
    name = topic()
    produce(name, ["a", "b"])
    past_the_end = {
        "subscribe": name,
        "endingOffsets": f'{{"{name}":{{"0":9}}}}',
        "fetchOffset.retryIntervalMs": "10",
    }
    with pytest.raises(
        PySparkException,
        match=f"DataLossError: .*0 to 9.*{name}-0.*0 to 2.*'failOnDataLoss'",
    ):
        read(**past_the_end).collect()
    assert read(**past_the_end, failOnDataLoss="false").count() == 2
