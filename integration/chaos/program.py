"""The program that runs in a Spark driver: `python -m integration.chaos.program JSON NUMBER`.

Runs the query of a job, like a user's program. The program restarts a failed query from its
checkpoint. When the `stop` file exists, the program processes the remaining records of the source
and exits with status 0. If the query fails and a driver with a higher number has started, the
program exits with status 1. The program prints one line per micro-batch and per failure.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration.chaos import spark_cluster
from integration.chaos.job import Job
from integration.chaos.queries import QUERIES

_POLL_S: Final = 0.1
_PAUSE_S: Final = 0.5
"""The backoff between a failure and the next start of the query."""

_CHARACTERS_MAX: Final = 400


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
        "spark.eventLog.dir": str(job.events),
        **job.kind.conf,
    }
    master = "local[2,4]"
    if job.kind.on_two_hosts:
        master = spark_cluster.start(Path(job.directory, "executors"), settings=settings)
        settings |= spark_cluster.executor_settings()
    builder = SparkSession.builder.master(master).appName("chaos")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run(spark: SparkSession, job: Job) -> bool:
    """Run the query; return true if it stopped on request, and false if it failed."""
    last_batch = -1
    try:
        query = QUERIES[job.kind.query](spark, job)
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


def main(text: str, number: str) -> int:
    job = Job.from_json(text)
    spark = open_session(job)
    status = 0
    while not run(spark, job):
        if job.owner.read_text() != number:
            status = 1
            break
        time.sleep(_PAUSE_S)
    # Stop the session before the JVM exits, or its Spark cluster keeps restarting executors.
    spark.stop()
    return status


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
    sys.exit(main(*sys.argv[1:]))
