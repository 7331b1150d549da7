"""Counts the rows and bytes that a streaming query reads or writes.

Spark's progress reports contain no byte counts, and Python sources and sinks cannot add metrics to
the reports. A DataFrame, however, can define observed metrics (`DataFrame.observe`). Spark
calculates these metrics for each micro-batch and adds them to the progress report.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Final, get_args
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from pyspark_kafka.errors import SchemaError
from pyspark_kafka.monitoring.progress import Side, metric_prefix

_COLUMNS: Final = ("key", "value")


def count_bytes(frame: DataFrame, side: Side) -> DataFrame:
    """Return `frame` with observed metrics: the row count, and the byte count of `key` and `value`.

    `side` is `read` for a DataFrame that `load()` returns, and `write` for a DataFrame that is
    written. Bytes are counted before compression. Headers and the overhead of Kafka's record
    batches are not counted. `KafkaMetricsListener` reports the results.

    Raises `SchemaError` if the DataFrame has neither a `key` nor a `value` column, and `ValueError`
    if `side` is neither `read` nor `write`.
    """
    if side not in get_args(Side):
        raise ValueError(f"The side is {side!r}. Use 'read' or 'write'.")
    columns = [name for name in _COLUMNS if name in frame.columns]
    if not columns:
        raise SchemaError(
            "The bytes cannot be counted, because the DataFrame has no column 'key' or 'value'.",
            advice="Call count_bytes with the DataFrame that load() returns, or with the DataFrame "
            "that you write.",
            column="value",
        )
    lengths = [F.coalesce(F.octet_length(name), F.lit(0)) for name in columns]
    size = reduce(add, lengths)
    return frame.observe(
        f"{metric_prefix(side)}{uuid4().hex[:8]}",  # metric names must be unique in a query
        F.count(F.lit(1)).alias("rows"),
        F.sum(size).alias("bytes"),
    )
