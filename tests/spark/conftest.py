"""Fixtures: the Spark session of the run, and functions that fill topics and run streams."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from tests.spark import engines
from tests.spark.streams import StreamRunner

Reader = Callable[..., DataFrame]
Produce = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of PySpark before 4.2, which does not close the sockets of `collect()`."""
    if not ADMISSION_CONTROL:
        for item in items:
            if item.get_closest_marker("spark"):
                item.add_marker(pytest.mark.filterwarnings("ignore:.*socket:ResourceWarning"))
                item.add_marker(
                    pytest.mark.filterwarnings(
                        "ignore:.*socket:pytest.PytestUnraisableExceptionWarning"
                    )
                )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the Spark session of the test run, `local[2]` on the loopback interface."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("pyspark-kafka tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataProgressEventInterval", "100")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def read(spark: SparkSession, bootstrap: str) -> Reader:
    """Return a function for batch reads, such as `read(subscribe="t")`."""

    def read(schema: str | None = None, **options: str) -> DataFrame:
        reader = engines.kafka(spark.read).option("kafka.bootstrap.servers", bootstrap)
        reader = reader.options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return read


@pytest.fixture
def streams(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Iterator[StreamRunner]:
    """Return a runner of streaming reads with a checkpoint. It stops them after the test."""
    runner = StreamRunner(spark=spark, bootstrap_servers=bootstrap, directory=tmp_path)
    yield runner
    runner.stop()


@pytest.fixture
def produce(bootstrap: str) -> Iterator[Produce]:
    """Return a function that writes records: `produce(topic, ["a", b"b", None], partition=0)`."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "linger.ms": 0})

    def produce(
        topic: str,
        values: Sequence[str | bytes | None],
        *,
        partition: int = 0,
        key: str | bytes | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        failed: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for number, value in enumerate(values):
            producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=on_delivery,
                timestamp=timestamps_ms[number] if timestamps_ms else 0,
                headers=list(headers),
            )
        assert producer.flush(30) == 0
        assert not failed

    yield produce
    producer.flush(5)
