"""The main job, start to end, on real logs: `make demo`.

Starts the reference broker, writes three log files into topics with a batch job, runs a streaming
query that counts failed SSH logins per address and writes alerts to a second topic, kills it
half-way (SIGKILL, driver and JVM), resumes it from its checkpoint, and holds what came out against
what the log file says.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from broker_ref import Cluster
from examples.top_attackers import newest_alerts
from examples.write_logs import DATA, LOGS

EXAMPLES = Path(__file__).parent
KILL_AFTER_BATCHES = 5
STEP_TIMEOUT_S = 300
FAILED_LOGIN = re.compile(r"Failed password for (?:invalid user )?.* from (\S+) port")
REPEATED = re.compile(r"message repeated (\d+) times")


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


@contextmanager
def example(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run an example as a user does, in a process group of its own, which is killed at the end."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        watchdog = signal.signal(signal.SIGALRM, lambda *_: kill(process))
        signal.alarm(STEP_TIMEOUT_S)
        try:
            yield process
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, watchdog)
            kill(process)
            process.communicate()
            if process.returncode not in (0, -signal.SIGKILL):
                errors.seek(0)
                sys.stderr.write(errors.read())


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL the driver and its JVM at once; nothing of theirs gets to clean up."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended by itself


def run(script: str, *arguments: str, kill_after_batches: int | None = None) -> int:
    """Run an example and show its lines; returns the rows its micro-batches read."""
    rows = 0
    with example(script, *arguments) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"    {line}", end="", flush=True)
            batch = re.match(r"batch (\d+): (\d+) lines read", line)
            if batch:
                rows += int(batch[2])
                if kill_after_batches is not None and int(batch[1]) + 1 >= kill_after_batches:
                    kill(process)
                    return rows
        if process.wait() != 0 or kill_after_batches is not None:
            sys.exit(f"{script} ended with status {process.returncode} before it was done")
    return rows


def failed_logins_of(log_file: Path) -> Counter[str]:
    """What the query should find, counted without Spark and without Kafka."""
    failures: Counter[str] = Counter()
    for line in log_file.read_text().splitlines():
        match = FAILED_LOGIN.search(line)
        if match:
            repeated = REPEATED.search(line)
            failures[match[1]] += int(repeated[1]) if repeated else 1
    return failures


def show_topics(spark: SparkSession, bootstrap_servers: str) -> int:
    """Print rows and offsets of every topic's partitions; returns the rows of the log topics."""
    records = (
        spark.read.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", ",".join([*LOGS, "alerts"]))
        .load()
    )
    partitions = records.groupBy("topic", "partition").agg(
        F.count("*").alias("rows"),
        F.min("offset").alias("first offset"),
        F.max("offset").alias("last offset"),
    )
    partitions.orderBy("topic", "partition").show(50, truncate=False)
    return records.where("topic != 'alerts'").count()


def main() -> None:
    started = time.monotonic()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers: this Python
    with (
        tempfile.TemporaryDirectory(prefix="pyspark-kafka-demo-") as directory,
        Cluster(configs={"num.partitions": "3"}) as cluster,
    ):
        bootstrap_servers = cluster.bootstrap_servers
        checkpoint = f"{directory}/checkpoint"
        say(f"A reference broker serves {bootstrap_servers}")
        say("A batch job writes three log files into topics")
        run("write_logs.py", bootstrap_servers)

        say("A streaming query counts failed SSH logins; it is killed (SIGKILL) half-way")
        rows_before = run(
            "failed_logins.py", bootstrap_servers, checkpoint, kill_after_batches=KILL_AFTER_BATCHES
        )
        say(f"Killed after {rows_before} lines. Started again from its checkpoint, it goes on")
        rows_after = run("failed_logins.py", bootstrap_servers, checkpoint)

        say("What is in Kafka now, and the top attackers")
        spark = (
            SparkSession.builder.appName("demo")
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        rows_written = show_topics(spark, bootstrap_servers)
        alerts = newest_alerts(spark, bootstrap_servers)
        alerts.orderBy(alerts.failed_logins.desc(), "address").show(10, truncate=False)
        found = {row["address"]: row["failed_logins"] for row in alerts.collect()}
        spark.stop()

    lines_in_files = sum(len((DATA / name).read_text().splitlines()) for name, _ in LOGS.values())
    expected = failed_logins_of(DATA / LOGS["ssh-log"][0])
    say("The result")
    print(f"    lines in the files        {lines_in_files}")
    print(f"    rows in the log topics    {rows_written}")
    print(f"    rows read by the query    {rows_before} before the kill, {rows_after} after it")
    print(f"    failed logins in the file {expected.total()} from {len(expected)} addresses")
    print(f"    failed logins in alerts   {sum(found.values())} from {len(found)} addresses")
    print(f"    time                      {time.monotonic() - started:.0f} s")
    if rows_written != lines_in_files or found != expected:
        sys.exit("Lines are missing, or were counted twice: this is a bug, please report it")
    print("    No line is missing, none was counted twice.")


if __name__ == "__main__":
    main()
