"""Reads and writes with the engine of the run: `--engine=auto|native|librdkafka`.

The engine is in an environment variable, for the scripts in `jobs/`, which are processes of their
own.
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
    """Set format and engine of `spark.read`, `readStream`, `write` or `writeStream`."""
    return side.format("pyspark_kafka").option("engine", os.environ[VARIABLE])
