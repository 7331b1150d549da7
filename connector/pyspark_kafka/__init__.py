"""A Spark data source for Apache Kafka, in Python.

`spark.read.format("pyspark_kafka")` works if this package is installed: Spark imports every
`pyspark_*` package and registers its `DefaultSource`. Where Spark does not do that (Spark Connect
servers, Databricks), call `pyspark_kafka.register(spark)`. This module imports nothing else, so
that the import succeeds without PySpark; `DefaultSource` is then missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafka.datasource import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the format `pyspark_kafka` with a session, if it is not registered yet."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415

    from pyspark_kafka.datasource import KafkaDataSource  # noqa: PLC0415

    try:
        spark.dataSource.register(KafkaDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register a data source that it has discovered itself.
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
            "pyspark_kafka.DefaultSource needs PySpark 4.0 or later: "
            "pip install 'pyspark-kafka[spark]'"
        ) from error
    return KafkaDataSource
