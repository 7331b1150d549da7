"""A Spark data source for Apache Kafka, in Python.

`spark.read.format("pyspark_kafka")` works when this package is installed, because Spark imports
every `pyspark_*` package and registers its `DefaultSource`. Spark Connect servers and Databricks do
not do this: call `pyspark_kafka.register(spark)` there. PySpark is imported on first use, so
`import pyspark_kafka` succeeds without it, but `DefaultSource` is then unavailable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafka.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the `pyspark_kafka` format with a Spark session unless it is already registered."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from pyspark_kafka.datasource import KafkaDataSource  # noqa: PLC0415

    try:
        spark.dataSource.register(KafkaDataSource)
    except AnalysisException as error:
        # Spark 4.0 rejects the registration of a data source that it has already discovered.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_kafka.datasource import KafkaDataSource  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("pyspark.") and error.name != "pyspark":
            raise
        raise AttributeError(
            "pyspark_kafka.DefaultSource requires PySpark 4.0 or later. Install it with: "
            "pip install 'pyspark-kafka[spark]'"
        ) from error
    return KafkaDataSource
