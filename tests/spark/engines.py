"""Reads and writes by the engine that the run is for: `--engine=auto|native|librdkafka`.

It stands in an environment variable, so that the scripts in `jobs/`, which run in processes of
their own, see it, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

VARIABLE = "PYSPARK_KAFKA_TESTS_ENGINE"
ENGINES = ("auto", "native", "librdkafka")

Side = TypeVar("Side", "DataFrameReader", "DataStreamReader", "DataFrameWriter", "DataStreamWriter")


def kafka(side: Side) -> Side:
    """`spark.read`, `readStream`, `write` or `writeStream` with our format and the run's engine."""
    return side.format("pyspark_kafka").option("engine", os.environ[VARIABLE])
