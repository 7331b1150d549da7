"""The environment of all runs: Spark with both connectors, and a cluster with the shared topics."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from integration import spark_jvm
from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve
from integration.parity.filling import TopicFiller
from integration.parity.topics import COMMITTED_OFFSETS, COMPACTED, GROUP, PLAIN, SHARED

INPUT: Final = """
    SELECT * FROM VALUES
        ('a', '1', 0, TIMESTAMP '2024-01-02 03:04:05.678'),
        ('b', '2', 1, NULL),
        (NULL, '3', NULL, TIMESTAMP '2024-01-02 03:04:06'),
        ('c', NULL, 2, NULL),
        ('', '', 0, NULL)
    AS records(k, v, n, t)
"""
"""The rows to write. `n` is a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Spark session, a cluster with the shared topics, and a directory with the rows to write."""

    spark: SparkSession
    bootstrap_servers: str
    filler: TopicFiller
    input_directory: str


@contextmanager
def open_environment(bootstrap_servers: str) -> Iterator[Environment]:
    """Start Spark and, at the same time, create and fill the shared topics.

    The cluster must not contain these topics yet. Raises `ClusterUnavailableError` if the JARs of
    Spark's connector cannot be downloaded.
    """
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as pool:
        filled = pool.submit(_fill, bootstrap_servers)
        spark = _session(Path(directory))
        try:
            input_directory = str(Path(directory, "input"))
            spark.sql(INPUT).coalesce(1).write.parquet(input_directory)
            yield Environment(
                spark=spark,
                bootstrap_servers=bootstrap_servers,
                filler=filled.result(),
                input_directory=input_directory,
            )
        finally:
            spark.stop()


def _fill(bootstrap_servers: str) -> TopicFiller:
    filler = TopicFiller(bootstrap_servers)
    for topic in SHARED:
        filler.create(topic, topic.name)
    filler.commit_offsets(GROUP, PLAIN.name, COMMITTED_OFFSETS)
    filler.await_compaction(COMPACTED)
    return filler


def _session(directory: Path) -> SparkSession:
    jars = resolve(SPARK_KAFKA_CONNECTOR)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for name, value in spark_jvm.environment().items():
        os.environ.setdefault(name, value)
    builder = SparkSession.builder.master("local[2]").appName("pyspark-kafka parity")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(map(str, jars)),
        "spark.local.dir": str(directory / "spark"),
        "spark.log.level": "FATAL",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
