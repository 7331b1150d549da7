"""Exactly-once batch jobs, `foreachBatch`, rejected options, and tasks that are retried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import read_all
from tests.spark import engines
from tests.spark.failpoint import run_to_end
from tests.spark.numbers import fill, numbers_in

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

TIMEOUT_S = 120
WriteJob = Callable[..., None]


@pytest.fixture
def write(bootstrap: str) -> WriteJob:
    """Return a function that appends a DataFrame: `write(frame, "topic", "transactional id")`."""

    def write(frame: DataFrame, topic: str, transactional_id: str, **options: str) -> None:
        writer = frame.write.format("pyspark_kafka").mode("append")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
        writer.option("transactionalId", transactional_id).options(**options).save()

    return write


def frame_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, numPartitions=3).selectExpr("string(id) AS value")


def test_job_without_batch_id_writes_in_every_run(
    spark: SparkSession, write: WriteJob, bootstrap: str, topic: TopicFactory
) -> None:
    target = topic(partitions=2)
    write(frame_of(spark, 0, 10_000), target, target)
    assert numbers_in(bootstrap, target, partitions=2) == list(range(10_000))
    write(frame_of(spark, 0, 10), target, target)
    again = numbers_in(bootstrap, target, partitions=2)
    assert again == sorted([*range(10_000), *range(10)])
    write(frame_of(spark, 0, 0), target, target)
    assert numbers_in(bootstrap, target, partitions=2) == again


def test_failed_job_leaves_no_visible_rows(
    spark: SparkSession, write: WriteJob, bootstrap: str, topic: TopicFactory
) -> None:
    target = topic(**{"max.message.bytes": "5000"})
    bad = spark.range(1).selectExpr("repeat('v', 100000) AS value")
    with pytest.raises(PySparkException, match=rf"DeliveryError: .*{target}"):
        write(frame_of(spark, 0, 100).union(bad), target, target)
    assert read_all(bootstrap, target) == [], "the failed job left visible rows"
    write(frame_of(spark, 0, 100), target, target)
    assert numbers_in(bootstrap, target) == list(range(100))


def test_job_with_batch_id_is_written_once(
    spark: SparkSession, write: WriteJob, bootstrap: str, topic: TopicFactory
) -> None:
    target = topic(partitions=2)
    write(frame_of(spark, 0, 100), target, target, batchId="7")
    write(frame_of(spark, 0, 100).repartition(2), target, target, batchId="7")
    with pytest.raises(PySparkException, match="ReplayMismatchError: "):
        write(frame_of(spark, 0, 99), target, target, batchId="7")
    write(frame_of(spark, 0, 99), target, target, batchId="7", onReplayMismatch="warn")
    with pytest.raises(PySparkException, match=r"StaleBatchError: .*'batchId'.* 6"):
        write(frame_of(spark, 100, 110), target, target, batchId="6")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(100))
    write(frame_of(spark, 100, 110), target, target, batchId="8")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(110))


def test_foreach_batch_is_exactly_once(
    spark: SparkSession, bootstrap: str, topic: TopicFactory, tmp_path: Path, write: WriteJob
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(100))

    crashes = [True, False]

    def save(frame: DataFrame, _batch_id: int) -> None:
        write(frame.select("value"), target, target)  # without batchId
        if crashes.pop(0):
            raise RuntimeError("after the write, and before Spark commits the micro-batch")

    def run(checkpoint: str) -> None:
        reader = engines.kafka(spark.readStream).option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(save)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    with pytest.raises(StreamingQueryException, match="before Spark commits"):
        run("checkpoint")
    run("checkpoint")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(100))

    crashes[:] = [False] * 9
    fill(bootstrap, source, range(100, 110))
    run("checkpoint")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(110))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"engine": "librdkafka"}, "OptionError: .*'engine'.*native", id="engine"),
        pytest.param(
            {"kafka.security.protocol": "SASL_SSL"}, "OptionError: .*Kerberos", id="kerberos"
        ),
        pytest.param({"transactionalId": "a/b"}, "OptionError: .*'transactionalId'", id="id"),
        pytest.param({"commitTopic": "target"}, "OptionError: .*'commitTopic'", id="topics"),
        pytest.param(
            {"kafka.transaction.timeout.ms": "1"}, "OptionError: .*'transactionTimeout'", id="java"
        ),
        pytest.param(
            {"transactionTimeout": "3h"},
            r"errors\.OptionError: .*'transactionTimeout'",
            id="brokers",
        ),
    ],
)
def test_refused_on_the_driver(
    spark: SparkSession, write: WriteJob, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(frame_of(spark, 0, 1), "target", "x", **options)


def a_job(bootstrap: str, source: str, target: str, tmp_path: Path) -> dict[str, Any]:
    """Return the arguments of `failpoint.exactly_once_job`."""
    return {
        "bootstrap": bootstrap,
        "source": source,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_failed_task_is_retried(bootstrap: str, topic: TopicFactory, tmp_path: Path) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(1_000))
    fail_once = tmp_path / "failed"
    job = a_job(bootstrap, source, target, tmp_path)
    run_to_end(**job, master="local[2,4]", fail_once=str(fail_once))
    assert fail_once.exists(), "no task failed"
    assert numbers_in(bootstrap, target, partitions=2) == list(range(1_000))
