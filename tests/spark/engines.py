"""The engine that the run uses for reads and writes: `--engine=auto|native|librdkafka`.

An environment variable contains the engine, so that the scripts in `jobs/`, which run in separate
processes, can read it.
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
    """Set the format and the engine of `spark.read`, `readStream`, `write` or `writeStream`."""
    return side.format("pyspark_kafka").option("engine", os.environ[VARIABLE])
