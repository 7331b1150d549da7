"""The query, in its own Spark driver: `python -m integration.chaos.job JSON`.

Copies one topic to another, like a user's job. Invariant: each written row contains the position of
its source record (`partition:offset`), so that lost and duplicate rows can be identified.

The job restarts a failed query from its checkpoint. When the `stop` file exists, the job processes
the rest of the source and exits with status 0. It prints one line per micro-batch and per failure.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_POLL_S: Final = 0.1
_PAUSE_S: Final = 0.5
"""The pause between a failure and the next startup."""

_CHARACTERS_MAX: Final = 400


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a driver.

    `format` is the format of source and sink; `jars` are additional JARs.
    """

    bootstrap_servers: str
    source: str
    target: str
    directory: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> str:
        return str(Path(self.directory, "checkpoint"))

    @property
    def stop(self) -> Path:
        """The path of the stop file. The job ends when this file exists."""
        return Path(self.directory, "stop")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def open_session(job: Job) -> SparkSession:
    """Create a Spark session with two cores and four attempts per task."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(Path(job.directory, "spark")),
        "spark.sql.warehouse.dir": str(Path(job.directory, "warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(job.jars),
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2,4]").appName("chaos")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def start(spark: SparkSession, job: Job) -> StreamingQuery:
    """Start the query from its checkpoint."""
    records = (
        spark.readStream.format(job.format)
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("subscribe", job.source)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .options(**job.options)
        .load()
    )
    return (
        records.selectExpr(
            "concat(string(partition), ':', string(offset)) AS value",
            "string(offset % 7) AS key",
        )
        .writeStream.format(job.format)
        .option("kafka.bootstrap.servers", job.bootstrap_servers)
        .option("topic", job.target)
        .option("checkpointLocation", job.checkpoint)
        .options(**job.options)
        .options(**job.sink_options)
        .start()
    )


def run(spark: SparkSession, job: Job) -> bool:
    """Run the query; return true if it stopped on request, and false if it failed."""
    last_batch = -1
    try:
        query = start(spark, job)
        while not query.awaitTermination(timeout=_POLL_S):  # type: ignore[arg-type]
            if job.stop.exists():
                query.processAllAvailable()
                query.stop()
                return True
            progress = query.lastProgress
            if progress is not None and progress.batchId != last_batch:
                last_batch = progress.batchId
                print_line(f"batch {last_batch}: {progress.numInputRows} rows")
    except PySparkException as error:
        print_line(f"failed: {_summary(error)}")
    return False


def main(text: str) -> int:
    given = json.loads(text)
    job = Job(**{**given, "jars": tuple(given["jars"])})
    spark = open_session(job)
    while not run(spark, job):
        time.sleep(_PAUSE_S)
    spark.stop()
    return 0


def print_line(text: str) -> None:
    """Print one line for the parent process."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _summary(error: Exception) -> str:
    """Return the most informative line of an error from Spark."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("pyspark_kafka.errors.")]
    return (ours or lines or [type(error).__name__])[-1 if ours else 0][:_CHARACTERS_MAX]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
