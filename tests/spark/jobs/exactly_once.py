"""Copy a topic to another topic exactly once with a streaming query.

The argument is a JSON object with `bootstrap`, `source`, `target`, `checkpoint` and `until_end`. If
`until_end` is true, the query ends at the end of the source topic. Optional fields are `master`,
`conf` (Spark configuration), `options` (options of the sink), `rows_per_batch` and `fail_once`.
`fail_once` is the path of a file: the first task attempt that can create it fails after its first
rows. `trigger` is an interval. `connection` contains options of source and sink, and `copies` the
fields of several queries, which run together or, with `until_end`, in turn. Prints one line per
micro-batch after all queries have completed their first one.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def failing_once(records: DataFrame, path: str) -> DataFrame:
    """Return the same rows, and fail one task after its first batch.

    The task that fails is the first one that creates the file `path`.
    """

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                Path(path).touch(exist_ok=False)
            except FileExistsError:
                continue
            raise RuntimeError("a failure that the test injects")

    return records.mapInArrow(rows, records.schema)


def start(spark: SparkSession, job: dict[str, Any]) -> StreamingQuery:
    """Start the query that copies a topic."""
    connection = {"kafka.bootstrap.servers": job["bootstrap"], **job.get("connection", {})}
    source = (
        spark.readStream.format("pyspark_kafka")
        .options(**connection)
        .option("subscribe", job["source"])
        .option("engine", os.environ.get("PYSPARK_KAFKA_TESTS_ENGINE", "auto"))
        .option("startingOffsets", "earliest")
    )
    if "rows_per_batch" in job:
        source = source.option("maxOffsetsPerTrigger", job["rows_per_batch"])
    records = source.load().select("key", "value", "partition")
    if "fail_once" in job:
        records = failing_once(records, job["fail_once"])
    writer = (
        records.writeStream.format("pyspark_kafka")
        .options(**connection)
        .option("topic", job["target"])
        .option("transactionalId", job["target"])
        .option("checkpointLocation", job["checkpoint"])
        .options(**job.get("options", {}))
    )
    if "trigger" in job:
        writer = writer.trigger(processingTime=job["trigger"])
    return (writer.trigger(availableNow=True) if job["until_end"] else writer).start()


def main(job: dict[str, Any]) -> None:
    builder = SparkSession.builder.master(job.get("master", "local[2]"))
    for name, value in job.get("conf", {}).items():
        builder = builder.config(name, value)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        # Before Spark 4.2, availableNow would otherwise only run the unfinished micro-batch.
        .config("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
        .getOrCreate()
    )
    copies = [job | copy for copy in job.get("copies", [{}])]
    if job["until_end"]:
        for each in copies:
            start(spark, each).awaitTermination()
        return
    queries = []
    for each in copies:  # Each query starts after the first batch of the previous one.
        queries.append(start(spark, each))
        while len(copies) > 1 and queries[-1].lastProgress is None:
            if queries[-1].awaitTermination(timeout=0.05):  # type: ignore[arg-type]
                return
    last_batches = dict.fromkeys(queries, -1)
    while not any(query.awaitTermination(timeout=0.05) for query in queries):  # type: ignore[arg-type]
        for query in queries:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] != last_batches[query]:
                last_batches[query] = progress["batchId"]
                print(f"batch {progress['batchId']}: {progress['numInputRows']} rows", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
