"""Queries in new Spark sessions, each session in its own process.

`FirstQuery` and `ShortStream` start this module as a program, which starts Spark, runs a query and
prints its duration. Invariant: the time to start Spark is not measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyspark
from pyspark.sql import SparkSession

import pyspark_kafka
from integration.benchmarks.connectors import Connector
from integration.benchmarks.measure import Sample
from integration.benchmarks.resources import WORK_TIMEOUT_S, Resources
from integration.benchmarks.session import open_session
from integration.benchmarks.synthetic import DROPPING, FABRICATING, TRIVIAL
from integration.benchmarks.topics import Contents
from pyspark_kafka.commands.compile_pyspark import add_bytecode, archives

FIRST_SECONDS: Final = "seconds of the first query"
STREAM_SECONDS: Final = "seconds of a streaming query in a warm session"
_STREAMS: Final = 3
"""The number of streaming queries to measure in a session, after a query that is not measured."""

_COMPILED: Final = "spark-with-bytecode"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstQuery:
    """A benchmark workload that writes one row, or reads an empty topic, in a new session.

    If `connector` is None, the query uses a Python data source that does nothing. With `is_warm`,
    `pyspark_kafka.warm_up` completes before the query starts. With `is_compiled`, the archives of
    PySpark contain bytecode.
    """

    connector: Connector | None
    writes: bool
    is_warm: bool = False
    is_compiled: bool = False

    def run(self, resources: Resources, records: int) -> Sample:  # noqa: ARG002
        with resources.empty_topic(1) as topic:
            job = {
                "format": self._format,
                "options": self._options(resources, topic),
                "writes": self.writes,
                "is_warm": self.is_warm,
            }
            seconds = _run_in_new_session(job, resources, is_compiled=self.is_compiled)
        return {FIRST_SECONDS: seconds}

    @property
    def _format(self) -> str:
        if self.connector is not None:
            return self.connector.format
        return DROPPING if self.writes else FABRICATING

    def _options(self, resources: Resources, topic: str) -> dict[str, str]:
        if self.connector is None:
            return {"rows": "0", "partitions": "1", "valueBytes": "1"}
        name = "topic" if self.writes else "subscribe"
        return {**resources.options_of(self.connector), name: topic}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortStream:
    """A benchmark workload that reads a topic with `Trigger.AvailableNow` in a warm session.

    The session runs several such queries, and the result is the median duration of all queries but
    the first one. If `connector` is None, the query uses a Python data source that yields rows
    without reading them from Kafka. With `is_compiled`, the archives of PySpark contain bytecode.
    """

    connector: Connector | None
    contents: Contents
    is_compiled: bool = False

    def run(self, resources: Resources, records: int) -> Sample:
        if self.connector is None:
            name = TRIVIAL
            options = {"rows": str(records), "partitions": str(self.contents.partitions)}
        else:
            name = self.connector.format
            options = resources.options_of(self.connector)
            options["subscribe"] = resources.topic(self.contents, records)
        job = {"format": name, "options": options, "records": records}
        seconds = _run_in_new_session(job, resources, is_compiled=self.is_compiled)
        return {STREAM_SECONDS: seconds}


def _run_in_new_session(
    job: Mapping[str, Any], resources: Resources, *, is_compiled: bool
) -> float:
    environment = dict(os.environ)
    if is_compiled:
        environment["SPARK_HOME"] = str(_compiled_spark(resources.directory))
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(job)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=WORK_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the query in a new session failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def _compiled_spark(directory: Path) -> Path:
    """Return a Spark home whose archives contain bytecode. The other files are symbolic links."""
    home = directory / _COMPILED
    if not home.exists():
        library = home / "python" / "lib"
        library.mkdir(parents=True)
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "python":
                (home / path.name).symlink_to(path)
        for archive in archives():
            copy = library / archive.name
            copy.write_bytes(archive.read_bytes())
            add_bytecode(copy)
    return home


def _seconds_of_first_query(spark: SparkSession, job: dict[str, Any]) -> float:
    if job["is_warm"]:
        pyspark_kafka.warm_up(spark).join()
    since_s = time.perf_counter()
    if job["writes"]:
        rows = spark.createDataFrame([("key", "value")], "key string, value string")
        rows.write.format(job["format"]).options(**job["options"]).mode("append").save()
    else:
        spark.read.format(job["format"]).options(**job["options"]).load().count()
    return time.perf_counter() - since_s


def _seconds_of_stream(spark: SparkSession, job: dict[str, Any], directory: Path) -> float:
    reader = spark.readStream.format(job["format"]).options(**job["options"])
    rows = reader.option("startingOffsets", "earliest").load()
    taken_s = []
    for number in range(1 + _STREAMS):
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(directory / f"checkpoint-{number}"))
        since_s = time.perf_counter()
        query = writer.start()
        if not query.awaitTermination(int(WORK_TIMEOUT_S)):
            raise TimeoutError(f"the query did not end within {WORK_TIMEOUT_S:g} s")
        taken_s.append(time.perf_counter() - since_s)
        found = sum(progress.numInputRows for progress in query.recentProgress)
        if found != job["records"]:
            raise ValueError(f"{found} rows were read, expected {job['records']}")
    return statistics.median(taken_s[1:])


def _main(job: dict[str, Any]) -> None:
    with TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as made:
        session = open_session(Path(made))
        if "records" in job:
            taken_s = _seconds_of_stream(session, job, Path(made))
        else:
            taken_s = _seconds_of_first_query(session, job)
        session.stop()
    sys.stdout.write(f"{taken_s}\n")


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
