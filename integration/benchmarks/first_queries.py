"""The first write or read of a new Spark session, each in a process of its own.

`FirstQuery` starts this module as a program, which starts Spark, runs the query and prints its
duration. Invariant: the time to start Spark is not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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
from integration.benchmarks.synthetic import DROPPING, FABRICATING
from pyspark_kafka.commands.compile_pyspark import add_bytecode, archives

FIRST_SECONDS: Final = "seconds of the first query"
_COMPILED: Final = "spark-with-bytecode"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstQuery:
    """A side that writes one row, or reads an empty topic, in a new session.

    If `connector` is None, the query uses a Python data source that does nothing. With `is_warm`,
    `pyspark_kafka.warm_up` completes before the query starts. With `is_compiled`, Spark's archives
    contain bytecode.
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
            environment = dict(os.environ)
            if self.is_compiled:
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
            raise RuntimeError(f"the first query failed:\n{done.stderr}")
        return {FIRST_SECONDS: float(done.stdout.split()[-1])}

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


def _compiled_spark(directory: Path) -> Path:
    """Return a Spark home whose archives contain bytecode. The other files are links."""
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


if __name__ == "__main__":
    with TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as made:
        session = open_session(Path(made))
        taken_s = _seconds_of_first_query(session, json.loads(sys.argv[1]))
        session.stop()
    sys.stdout.write(f"{taken_s}\n")
