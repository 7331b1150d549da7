"""Queries over TLS and SASL: batch reads and writes, and exactly-once streams that are killed."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration.clusters import Cluster
from pyspark_kafka.__main__ import main
from pyspark_kafka.commands.arguments import DONE
from tests.conftest import ClusterFactory
from tests.pyspark_kafka.client.records import Record, read_all, write
from tests.pyspark_kafka.client.test_security import CASES, PASSWORD, SECURITY, client_options
from tests.spark.failpoint import exactly_once_job, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

ENCRYPTED = [case for case in CASES if "TLS" in case]
ROWS = 2_000
SHORT = "SHORT with SCRAM-SHA-512"
"""A listener whose sessions end after 5 seconds."""
QUERY_S = 120


@pytest.fixture(scope="module")
def secured(cluster_with: ClusterFactory) -> Cluster:
    return cluster_with(security=SECURITY)


def connection(secured: Cluster, case: str) -> dict[str, str]:
    """Return the options with which the data source connects in one of `CASES`."""
    kafka = client_options(secured, case).kafka
    return {f"kafka.{name}": value for name, value in kafka.items()}


@pytest.mark.parametrize("engine", ["native", pytest.param("librdkafka", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ENCRYPTED)
def test_batch_write_and_read(
    case: str, engine: str, spark: SparkSession, secured: Cluster, unique_name: Any
) -> None:
    topic = unique_name()
    secured.create_topic(topic, partitions=2)
    options = connection(secured, case) | {"engine": engine}
    rows = spark.range(ROWS).selectExpr("string(id) AS value")
    writer = rows.write.format("pyspark_kafka").options(**options)
    writer.option("topic", topic).mode("append").save()
    records = spark.read.format("pyspark_kafka").options(**options).option("subscribe", topic)
    found = records.load().selectExpr("int(string(value)) AS number").collect()
    assert Counter(row.number for row in found) == Counter(range(ROWS))


@pytest.mark.full
def test_exactly_once_streams_survive_a_killed_driver(
    secured: Cluster, unique_name: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One driver runs a query for each case. It is killed while all queries are running."""
    source = unique_name()
    secured.create_topic(source, partitions=2)
    values = [b"%d" % number for number in range(ROWS)]
    for partition in range(2):
        of_partition = [Record(value=v, partition=partition) for v in values[partition::2]]
        write(secured.bootstrap_servers, source, of_partition)
    targets = {case: re.sub(r"\W", "-", f"{source}.{case}") for case in ENCRYPTED}
    copies = []
    for case, target in targets.items():
        secured.create_topic(target, partitions=2)
        copies.append(
            {
                "target": target,
                "checkpoint": str(tmp_path / target),
                "connection": connection(secured, case),
            }
        )
    job = {
        "bootstrap": secured.bootstrap_servers,
        "source": source,
        "copies": copies,
    }
    slowly: dict[str, Any] = {"rows_per_batch": ROWS // 10, "trigger": "5 seconds"}
    with exactly_once_job(until_end=False, **slowly, **job) as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline(), "a query failed"
        running.kill()
    run_to_end(**job)
    for case, target in targets.items():
        written = read_all(secured.bootstrap_servers, target, partitions=2)
        assert Counter(record.value for record in written) == Counter(values), case
        arguments = ["transactions", "--id", target]
        for name, value in connection(secured, case).items():
            if name == "kafka.bootstrap.servers":
                arguments += ["--bootstrap-servers", value]
            else:
                arguments += ["--option", f"{name}={value}"]
        assert main(arguments) == DONE, case
    assert PASSWORD not in "".join(capsys.readouterr())


@pytest.mark.full
@pytest.mark.by_hand
@pytest.mark.timeout(600)
def test_sessions_end_during_queries_of_two_minutes(
    spark: SparkSession, secured: Cluster, unique_name: Any, tmp_path: Path
) -> None:
    """Spark does not repeat a failed task in local mode, so that no task may fail."""
    sources = unique_name(), unique_name()
    target = unique_name()
    for topic in (*sources, target):
        secured.create_topic(topic)
    options = connection(secured, SHORT) | {"startingOffsets": "earliest"}
    rows = 10_000
    padding = b"x" * 1_000
    values = [b"%05d" % number + padding for number in range(rows)]
    write(secured.bootstrap_servers, sources[0], [Record(value=value) for value in values])

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started, done = time.monotonic(), 0
        for batch in batches:
            yield batch
            done += batch.num_rows
            time.sleep(max(0.0, QUERY_S * done / rows - (time.monotonic() - started)))

    fetches = {"kafka.max.partition.fetch.bytes": "50000"}
    records = spark.read.format("pyspark_kafka").options(**options, **fetches)
    numbers = records.option("subscribe", sources[0]).load().selectExpr("int(offset) AS number")
    stream = spark.readStream.format("pyspark_kafka").options(**options)
    copied = stream.option("subscribe", sources[1]).load().select("value").writeStream
    copied = copied.format("pyspark_kafka").options(**connection(secured, SHORT))
    copied = copied.options(topic=target, transactionalId=target)
    query = copied.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    fed: list[bytes] = []
    is_read = threading.Event()

    def feed() -> None:
        while not is_read.wait(timeout=0.5):
            more = [b"%d" % number for number in range(len(fed), len(fed) + 50)]
            write(secured.bootstrap_servers, sources[1], [Record(value=value) for value in more])
            fed.extend(more)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        started = time.monotonic()
        found = numbers.mapInArrow(slowly, numbers.schema).collect()
        assert time.monotonic() - started >= QUERY_S * 0.9
    finally:
        is_read.set()
        feeding.join()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    assert Counter(row.number for row in found) == Counter(range(rows))
    written = read_all(secured.bootstrap_servers, target)
    assert Counter(record.value for record in written) == Counter(fed)
