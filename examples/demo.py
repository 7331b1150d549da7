"""A streaming job that processes real logs and is killed during a commit.

Run it with `make demo`. Outside of the environment that `make` creates, it cannot import its
modules.

The demo starts the reference broker, writes three log files to topics with a batch job, and runs a
streaming query. The query counts failed SSH logins per address and writes alerts to another topic
exactly once. During a commit, the demo kills the query (SIGKILL to the driver and its JVM) and
restarts it from its checkpoint. Finally, it compares the alerts with the log file: the topic must
contain every alert of every micro-batch once, including the micro-batch whose commit was
interrupted.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from broker_ref import Cluster
from examples import crash
from examples.top_attackers import newest_alerts
from examples.write_logs import DATA, LOGS

EXAMPLES = Path(__file__).parent
STEP_TIMEOUT_S = 900
FAILED_LOGIN = re.compile(r"Failed password for (?:invalid user )?.* from (\S+) port")
REPEATED = re.compile(r"message repeated (\d+) times")

Alerts = Counter[tuple[str, int]]
"""The number of alerts for each (address, count) pair."""


def announce(text: str) -> None:
    print(f"\n=== {text}", flush=True)


@contextmanager
def example(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run an example script in its own process group, and kill the group at the end."""
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
    """Kill the driver and its JVM with SIGKILL, so that they cannot clean up."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # the process has already ended


def run(script: str, *arguments: str, kill_in_commit: bool = False) -> int:
    """Run an example script and print its output; return the number of rows that it read."""
    rows = 0
    with blocking_in_commit(kill_in_commit) as blocked, example(script, *arguments) as process:
        threading.Thread(target=kill_when, args=(blocked, process), daemon=True).start()
        assert process.stdout is not None
        for line in process.stdout:
            print(f"    {line}", end="", flush=True)
            batch = re.match(r"batch \d+: (\d+) lines read", line)
            rows += int(batch[1]) if batch else 0
        if process.wait() != (-signal.SIGKILL if kill_in_commit else 0):
            sys.exit(f"{script} exited with the unexpected status {process.returncode}.")
    return rows


@contextmanager
def blocking_in_commit(enabled: bool) -> Iterator[Path]:
    """Make queries block during a commit. Yield the path of the file that such a query creates."""
    with tempfile.TemporaryDirectory(prefix="pyspark-kafka-demo-") as directory:
        if enabled:
            os.environ["PYSPARK_KAFKA_FAILPOINTS"] = "examples.crash:in_commit"
            os.environ[crash.DIRECTORY] = directory
        yield Path(directory, str(crash.COMMIT))
        os.environ.pop("PYSPARK_KAFKA_FAILPOINTS", None)


def kill_when(blocked: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        if blocked.exists():
            kill(process)
        time.sleep(0.05)


def failed_logins_of(lines: Iterable[str]) -> Counter[str]:
    """Count failed logins per address without Spark."""
    failures: Counter[str] = Counter()
    for line in lines:
        match = FAILED_LOGIN.search(line)
        if match:
            repeated = REPEATED.search(line)
            failures[match[1]] += int(repeated[1]) if repeated else 1
    return failures


def expected_alerts(lines: list[Row], checkpoint: Path) -> Alerts:
    """Return the alerts that the query should have written.

    Each micro-batch writes all counts. The checkpoint contains the end offsets of each micro-batch,
    because Spark writes them before it runs the batch.
    """
    alerts, failures, remaining = Alerts(), Counter[str](), lines
    for file in sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name)):
        ends = json.loads(file.read_text().splitlines()[2])["ssh-log"]
        read = [line for line in remaining if line.offset < ends[str(line.partition)]]
        remaining = [line for line in remaining if line.offset >= ends[str(line.partition)]]
        failures += failed_logins_of(line.text for line in read)
        alerts.update(failures.items())
    return alerts


def rows_of(
    spark: SparkSession, bootstrap_servers: str, topic: str, isolation_level: str = "read_committed"
) -> list[Row]:
    """Return the records of a topic with the columns partition, offset and text."""
    records = (
        spark.read.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("kafka.isolation.level", isolation_level)
        .option("subscribe", topic)
        .load()
    )
    return records.selectExpr("partition", "offset", "string(value) AS text").collect()


def alerts_of(rows: list[Row]) -> Alerts:
    alerts = (json.loads(row.text) for row in rows)
    return Counter((alert["address"], alert["failed_logins"]) for alert in alerts)


def show_topics(spark: SparkSession, bootstrap_servers: str) -> int:
    """Print row counts and offsets of all partitions; return the number of log rows."""
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
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for Spark's workers
    python_path = [str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, python_path)
    )  # workers import `crash` from this path
    with (
        tempfile.TemporaryDirectory(prefix="pyspark-kafka-demo-") as directory,
        Cluster(configs={"num.partitions": "3"}) as cluster,
    ):
        bootstrap_servers = cluster.bootstrap_servers
        checkpoint = Path(directory, "checkpoint")
        announce(f"A reference broker is running at {bootstrap_servers}")
        announce("A batch job writes three log files to topics")
        run("write_logs.py", bootstrap_servers)

        announce("A streaming query counts failed SSH logins and writes alerts exactly once")
        arguments = ("failed_logins.py", bootstrap_servers, str(checkpoint))
        rows_before = run(*arguments, kill_in_commit=True)

        announce(f"The query was killed (SIGKILL) during a commit, after {rows_before} lines")
        spark = (
            SparkSession.builder.appName("demo")
            .config("spark.log.level", "ERROR")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        in_topic = len(rows_of(spark, bootstrap_servers, "alerts", "read_uncommitted"))
        visible = len(rows_of(spark, bootstrap_servers, "alerts"))
        print(f"    alerts in the topic: {in_topic}, visible with read_committed: {visible}")
        if visible == in_topic:
            sys.exit("The killed query had no uncommitted alerts.")

        announce("The query restarts from its checkpoint, completes the commit and continues")
        rows_after = run(*arguments)

        announce("The topics, and the top attackers")
        rows_written = show_topics(spark, bootstrap_servers)
        newest = newest_alerts(spark, bootstrap_servers)
        newest.orderBy(newest.failed_logins.desc(), "address").show(10, truncate=False)
        found = {row["address"]: row["failed_logins"] for row in newest.collect()}
        alerts = alerts_of(rows_of(spark, bootstrap_servers, "alerts"))
        expected_of_all = expected_alerts(rows_of(spark, bootstrap_servers, "ssh-log"), checkpoint)
        spark.stop()

    lines_in_files = sum(len((DATA / name).read_text().splitlines()) for name, _ in LOGS.values())
    expected = failed_logins_of((DATA / LOGS["ssh-log"][0]).read_text().splitlines())
    announce("The result")
    print(f"    lines in the files        {lines_in_files}")
    print(f"    rows in the log topics    {rows_written}")
    print(f"    rows read by the query    {rows_before} before the kill, {rows_after} after it")
    print(f"    failed logins in the file: {expected.total()} from {len(expected)} addresses")
    print(f"    failed logins in alerts   {sum(found.values())} from {len(found)} addresses")
    print(f"    alerts expected           {expected_of_all.total()}")
    print(f"    alerts written            {alerts.total()}")
    print(f"    time                      {time.monotonic() - started:.0f} s")
    if rows_written != lines_in_files or found != expected or alerts != expected_of_all:
        sys.exit("A line or an alert is missing or duplicated. This is a bug. Please report it.")
    print("    No line is missing or counted twice, and every alert was written exactly once.")


if __name__ == "__main__":
    main()
