"""The `local[2]` Spark session of the benchmarks, with our connector and Spark's own connector.

Invariant: all settings have Spark's default values, except settings that depend on the machine,
settings that reduce log output, and `SETTINGS`, which the report lists.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from integration.benchmarks.synthetic import SOURCES
from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve

MASTER: Final = "local[2]"
SETTINGS: Final = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}


def open_session(directory: Path) -> SparkSession:
    """Start Spark and return its session.

    Raises `ClusterUnavailableError` if the JARs of Spark's connector cannot be downloaded.
    """
    jars = resolve(SPARK_KAFKA_CONNECTOR)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(MASTER).appName("pyspark-kafka benchmarks")
    settings = {
        **SETTINGS,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.jars": ",".join(map(str, jars)),
        "spark.log.level": "FATAL",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for source in SOURCES:
        session.dataSource.register(source)
    return session
