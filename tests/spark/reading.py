"""Reads by the engine that the run is for: `--engine=auto|native|librdkafka`.

It stands in an environment variable, so that the scripts in `jobs/`, which run in processes of
their own, see it, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

VARIABLE = "PYSPARK_KAFKA_TESTS_ENGINE"
ENGINES = ("auto", "native", "librdkafka")

Reader = TypeVar("Reader", "DataFrameReader", "DataStreamReader")


def kafka(reader: Reader) -> Reader:
    """`spark.read` or `spark.readStream` with our format and the engine of the run."""
    return reader.format("pyspark_kafka").option("engine", os.environ[VARIABLE])
