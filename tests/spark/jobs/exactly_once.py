"""Copy one topic to another exactly once, until killed or, with `until_end`, to its end.

Argument: a JSON object of `bootstrap`, `source`, `target`, `checkpoint`, `until_end`, and
optionally `master`, `conf` of Spark, `options` of the sink, `rows_per_batch` and `fail_once`, the
path of a file that the first attempt of a task creates when it fails after its first rows. Prints
one line per micro-batch.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def failing_once(records: DataFrame, path: str) -> DataFrame:
    """Return the same rows; a task that finds no file at `path` fails after its first batch."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                Path(path).touch(exist_ok=False)
            except FileExistsError:
                continue
            raise RuntimeError("a failure of the test")

    return records.mapInArrow(rows, records.schema)


def main(job: dict[str, Any]) -> None:
    builder = SparkSession.builder.master(job.get("master", "local[2]"))
    for name, value in job.get("conf", {}).items():
        builder = builder.config(name, value)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        # Before 4.2 availableNow is otherwise one micro-batch, the unfinished one.
        .config("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
        .getOrCreate()
    )
    source = (
        spark.readStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", job["bootstrap"])
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
        .option("kafka.bootstrap.servers", job["bootstrap"])
        .option("topic", job["target"])
        .option("transactionalId", job["target"])
        .option("checkpointLocation", job["checkpoint"])
        .options(**job.get("options", {}))
    )
    if job["until_end"]:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.start()
    last_batch = -1
    while not query.awaitTermination(timeout=0.05):  # type: ignore[arg-type]
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != last_batch:
            last_batch = progress["batchId"]
            print(f"batch {last_batch}: {progress['numInputRows']} rows", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
