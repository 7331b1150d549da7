"""The Spark session of the benchmarks: `local[2]`, with both connectors.

Invariant: Spark's settings are its defaults, except those that depend on the machine, reduce its
output or are in `SETTINGS`, which the report contains. What it must not know: cases.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from integration.benchmarks.synthetic import SOURCES
from integration.clusters.coordinates import SPARK_KAFKA_CONNECTOR, resolve

MASTER: Final = "local[2]"
SETTINGS: Final = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}


def open_session(directory: Path) -> SparkSession:
    """Start Spark. Raise `ClusterUnavailableError` if the JARs of its connector cannot be
    downloaded.
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
