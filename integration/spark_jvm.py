"""JVM options that make the Spark drivers of tests start quickly.

`environment` returns the options for code that starts a driver. `python -m integration.spark_jvm`
creates the CDS archive that these JVMs load. Invariant: a JVM that cannot use the archive starts
without it.

In its first half-minute, a JVM spends most of its time loading and compiling Spark's classes. With
these options, it compiles less and loads the classes from the CDS archive (application class-data
sharing, JEP 310 and JEP 350). Benchmarks do not use these options.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

_CACHE: Final = Path(__file__).resolve().parents[1] / ".cache"
_JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")
_TIMEOUT_S: Final = 300
_CHARACTERS_MAX: Final = 4_000


def environment() -> Mapping[str, str]:
    """Return environment variables for Spark's scripts, with the CDS archive if it exists."""
    shared = (f"-XX:SharedArchiveFile={_archive()}",) if _archive().exists() else ()
    return _variables(shared)


def prepare() -> None:
    """Create the CDS archive for the installed PySpark if it is missing. Print any failure."""
    if _archive().exists():
        return
    _CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as directory:
        made = Path(directory, "classes.jsa")
        variables = _variables((f"-XX:ArchiveClassesAtExit={made}",))
        output, status = _run("--warm-up", directory, variables=variables)
        if status == 0 and made.exists():
            made.replace(_archive())
        else:
            sys.stderr.write(
                f"{output[-_CHARACTERS_MAX:]}\nThe archive of Spark's classes was not created. "
                "The Spark drivers of tests will start more slowly.\n"
            )


def _run(*arguments: str, variables: Mapping[str, str]) -> tuple[str, int]:
    """Run this module as a program and return its output and exit status.

    The function returns after the JVM has exited, because the JVM writes the archive shortly before
    it exits.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "integration.spark_jvm", *arguments],
        env={"PYSPARK_PYTHON": sys.executable, **os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return output, process.returncode


def _archive() -> Path:
    return _CACHE / f"spark-{pyspark.__version__}.jsa"


def _variables(more: tuple[str, ...]) -> Mapping[str, str]:
    return {
        "SPARK_LAUNCHER_OPTS": " ".join(_JVM_OPTIONS),
        "SPARK_SUBMIT_OPTS": " ".join((*_JVM_OPTIONS, *more)),
    }


def _warm_up(directory: str) -> None:
    """Load Spark's classes for SQL, Python workers and a streaming query with a checkpoint."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(Path(directory, "warehouse")),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    numbers = spark.range(10).selectExpr("id % 3 AS k", "string(id) AS v")
    numbers.groupBy("k").count().orderBy("k").collect()
    numbers.select(udf(str.upper)("v")).collect()
    numbers.write.json(str(Path(directory, "numbers")))
    stream = spark.readStream.schema("k LONG, v STRING").json(str(Path(directory, "numbers")))
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(Path(directory, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--warm-up"]:
        _warm_up(sys.argv[2])
    else:
        prepare()
