"""The streaming queries for all kinds of chaos runs. Each query reads the topic `Job.source`.

Invariant: a written value contains the position of its source record (`partition:offset`), or, for
the aggregation, a key and its count (`key=count`). Therefore, the oracle can calculate the expected
values from the source records.

Spark sends the nested functions of this module to executors, which cannot import the module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.chaos.job import Job
from integration.chaos.kinds import COUNTED_KEYS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SHUFFLED_PARTITIONS: Final = 6
_TASK_PAUSE_S: Final = 0.3

Query = Callable[[SparkSession, Job], StreamingQuery]


def copy(spark: SparkSession, job: Job) -> StreamingQuery:
    """Copy the source to the target."""
    return _write(_positions(spark, job), job).start()


def count(spark: SparkSession, job: Job) -> StreamingQuery:
    """Write all counts in each micro-batch. Spark rejects output mode `update` for Python sinks."""
    keys = _source(spark, job).selectExpr(f"string(offset % {COUNTED_KEYS}) AS key")
    rows = keys.groupBy("key").count().selectExpr("key", "concat(key, '=', count) AS value")
    return _write(rows, job).outputMode("complete").start()


def copy_twice(spark: SparkSession, job: Job) -> StreamingQuery:
    """Copy the source to two targets with `foreachBatch`."""

    def save(batch: DataFrame, _batch_id: int) -> None:
        for target, sink_options in job.sinks:
            (
                batch.write.format(job.format)
                .mode("append")
                .option("kafka.bootstrap.servers", job.bootstrap_servers)
                .option("topic", target)
                .options(**job.options)
                .options(**sink_options)
                .save()
            )

    writer = _positions(spark, job).writeStream.foreachBatch(save)
    return writer.option("checkpointLocation", job.checkpoint).start()


def copy_with_slow_tasks(spark: SparkSession, job: Job) -> StreamingQuery:
    """Copy the source. One task of each micro-batch pauses in its first attempt."""

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        is_slow = context.attemptNumber() == 0 and context.partitionId() == batch_id % 3
        for number, batch in enumerate(batches):
            if number == 1 and is_slow:
                # In some micro-batches, the slow attempt ends before the other attempt.
                time.sleep(0.4 + batch_id % 4 * 0.4)
            yield batch

    rows = _positions(spark, job)
    return _write(rows.mapInArrow(slowly, rows.schema), job).start()


def copy_with_shuffle(spark: SparkSession, job: Job) -> StreamingQuery:
    """Copy the source through a shuffle. The shuffle has more tasks than the cluster has cores."""

    path, pause_s = job.shuffled, _TASK_PAUSE_S

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path.touch()
        # An executor is killed during this pause, while later tasks wait for a core.
        time.sleep(pause_s)
        yield from batches

    rows = _positions(spark, job).repartition(_SHUFFLED_PARTITIONS, "key")
    return _write(rows.mapInArrow(slowly, rows.schema), job).start()


QUERIES: Final[Mapping[str, Query]] = MappingProxyType(
    {
        query.__name__: query
        for query in (copy, count, copy_twice, copy_with_slow_tasks, copy_with_shuffle)
    }
)


def _source(spark: SparkSession, job: Job) -> DataFrame:
    return (
        spark.readStream.format(job.format)
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .options(**job.options)
        .load()
    )


def _positions(spark: SparkSession, job: Job) -> DataFrame:
    return _source(spark, job).selectExpr(
        "concat(string(partition), ':', string(offset)) AS value",
        "string(offset % 7) AS key",
    )


def _write(rows: DataFrame, job: Job) -> DataStreamWriter:
    ((target, sink_options),) = job.sinks
    return (
        rows.writeStream.format(job.format)
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("topic", target)
        .option("checkpointLocation", job.checkpoint)
        .options(**job.options)
        .options(**sink_options)
    )
