"""Exactly-once writes through Spark: streams, jobs, replays, failures and rejected options."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_kafka.__main__ import main
from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.sink.exactly_once.write import ExactlyOnceWrite
from pyspark_kafka.sink.writers import StreamRowWriter
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, read_all
from tests.pyspark_kafka.client.records import write as put
from tests.spark import engines
from tests.spark.failpoint import exactly_once_job, run_to_end
from tests.spark.gate import Gate

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

TIMEOUT_S = 120
Copy = Callable[..., StreamingQuery]
WriteJob = Callable[..., None]


class Query:
    """A streaming query that copies a topic exactly once and can be restarted."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path) -> None:
        self.checkpoint = directory / "checkpoint"
        self._spark = spark
        self._bootstrap = bootstrap
        self._queries: list[StreamingQuery] = []

    def start(
        self,
        source: str,
        target: str | None,
        *,
        select: str = "key; value",
        sink: str = "pyspark_kafka",
        through: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        checkpoint: Path | None = None,
        **options: str,
    ) -> StreamingQuery:
        """Start copying new records. The `transactionalId` option is `target`."""
        reader = engines.kafka(self._spark.readStream)
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
        frame = through(reader.option("includeHeaders", "true").load())
        writer = frame.selectExpr(*select.split("; ")).writeStream.format(sink)
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap)
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        if target is not None:
            writer = writer.option("topic", target)
            writer = writer.option("transactionalId", target)
        query = writer.options(**options).trigger(availableNow=True).start()
        self._queries.append(query)
        return query

    def run(self, source: str, target: str | None, **how: str) -> StreamingQuery:
        """Copy the records as `start` does, and wait for the end of the query."""
        query = self.start(source, target, **how)  # type: ignore[arg-type]
        assert query.awaitTermination(TIMEOUT_S), "the query did not end"
        return query

    def forget_last_commit(self) -> None:
        """Remove the last commit from the checkpoint, so that Spark replays the micro-batch.

        This is the state after a crash between the sink's commit and Spark's commit.
        """
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    def stop(self) -> None:
        for query in self._queries:
            query.stop()


@pytest.fixture
def query(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Iterator[Query]:
    made = Query(spark, bootstrap, tmp_path)
    yield made
    made.stop()


def fill(bootstrap: str, topic: str, numbers: range, *, partitions: int = 2) -> None:
    put(bootstrap, topic, [Record(value=b"%d" % n, partition=n % partitions) for n in numbers])


def numbers_in(bootstrap: str, topic: str, *, partitions: int = 1) -> list[int]:
    """Return the numbers that a read_committed consumer reads, sorted."""
    records = read_all(bootstrap, topic, partitions=partitions)
    return sorted(int(record.value or b"") for record in records)


RECORDS = [
    Record(
        value=b"a", key=b"k", partition=0, timestamp_ms=1_700_000_000_001, headers=(("h", b"1"),)
    ),
    Record(value=None, key=None, partition=1, timestamp_ms=1_700_000_000_002),
]
EVERY_COLUMN = "key; value; partition; timestamp; headers"


def test_stream_writes_every_column(query: Query, bootstrap: str, topic: TopicFactory) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    put(bootstrap, source, RECORDS)
    query.run(source, target, select=EVERY_COLUMN)
    assert read_all(bootstrap, target, partitions=2) == RECORDS


def test_restart_continues_where_it_ended(
    query: Query, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(100))
    query.run(source, target)
    query.run(source, target)
    fill(bootstrap, source, range(100, 150))
    query.run(source, target)
    assert numbers_in(bootstrap, target, partitions=2) == list(range(150))


def test_committed_micro_batch_is_not_written_again(
    query: Query, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(100))
    query.run(source, target)
    query.forget_last_commit()
    query.run(source, target)
    assert numbers_in(bootstrap, target, partitions=2) == list(range(100))


def test_replayed_micro_batch_with_other_rows_is_rejected(
    query: Query, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(10))
    query.run(source, target)
    query.forget_last_commit()
    other = "key; concat(value, '0') AS value"
    with pytest.raises(StreamingQueryException, match=r"ReplayMismatchError: .*'onReplayMismatch'"):
        query.run(source, target, select=other)
    query.run(source, target, select=other, onReplayMismatch="warn")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(10))


def test_checkpoint_restored_from_an_older_copy_is_rejected(
    query: Query, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    for number in range(3):
        fill(bootstrap, source, range(10 * number, 10 * number + 10))
        query.run(source, target)
        if number == 0:
            shutil.copytree(query.checkpoint, query.checkpoint.with_name("old"))
    old = query.checkpoint.with_name("old")
    with pytest.raises(StreamingQueryException, match="StaleBatchError: "):
        query.run(source, target, checkpoint=old)  # type: ignore[arg-type]
    assert numbers_in(bootstrap, target, partitions=2) == list(range(30))


def reset_offsets(query: Query, bootstrap: str, *arguments: str) -> None:
    offsets = ["offsets", "--checkpoint", str(query.checkpoint), "--bootstrap-servers", bootstrap]
    assert main([*offsets, *arguments, "--execute"]) == 0


def test_offsets_of_the_source_are_reset(query: Query, bootstrap: str, topic: TopicFactory) -> None:
    """A rewind writes the rows again, because the next micro-batch has a new id.

    A micro-batch that the sink has committed cannot be discarded, and the backup restores it.
    """
    source, target = topic(partitions=2, **{"retention.ms": "-1"}), topic(partitions=2)
    records = [
        Record(value=b"%d" % n, partition=n % 2, timestamp_ms=1_700_000_000_000 + n * 60_000)
        for n in range(20)
    ]
    put(bootstrap, source, records)
    query.run(source, target)
    reset_offsets(query, bootstrap, "--to-datetime", "2023-11-14T22:23:20")
    fill(bootstrap, source, range(20, 25))
    query.run(source, target)
    expected = sorted([*range(20), *range(10, 25)])
    assert numbers_in(bootstrap, target, partitions=2) == expected
    query.forget_last_commit()
    reset_offsets(query, bootstrap, "--to-earliest", "--discard-planned-batch")
    with pytest.raises(StreamingQueryException, match="ReplayMismatchError: "):
        query.run(source, target)
    backups = list((query.checkpoint / "offsets").glob("*.backup-*"))
    times = {backup: backup.name.partition(".")[2] for backup in backups}
    for backup in backups:
        if times[backup] == max(times.values()):
            backup.rename(backup.with_name(backup.name.partition(".")[0]))
    query.run(source, target)
    assert numbers_in(bootstrap, target, partitions=2) == expected


def test_fenced_query_fails_and_its_restart_writes_rows_once(
    query: Query, bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic(), topic(partitions=2)  # One task each, as there are two task slots.
    fill(bootstrap, source, range(10), partitions=1)
    gate = Gate(tmp_path / "gate")
    waits = query.start(
        source, target, through=lambda frame: frame.mapInArrow(gate.rows(), frame.schema)
    )
    try:
        gate.await_tasks(1)
        other = tmp_path / "other"
        query.run(source, target, checkpoint=other)  # type: ignore[arg-type]
    finally:
        gate.open()
    with pytest.raises(StreamingQueryException, match=rf"SinkFencedError: .*{target}"):
        waits.awaitTermination(TIMEOUT_S)
    assert numbers_in(bootstrap, target, partitions=2) == list(range(10))
    query.run(source, target)
    assert numbers_in(bootstrap, target, partitions=2) == sorted([*range(10), *range(10)]), (
        "each of the two queries must write its rows once"
    )


class RowSink(DataSource):
    """Data source whose streaming writer gets rows instead of Arrow batches, as in Spark 4.0."""

    @classmethod
    def name(cls) -> str:
        return "rows_to_kafka_exactly_once"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = parse_sink_options(self.options, streaming=True)
        return StreamRowWriter(ExactlyOnceWrite.of(options, schema, is_streaming=True))


def test_row_writer_writes_the_same(
    spark: SparkSession, query: Query, bootstrap: str, topic: TopicFactory
) -> None:
    spark.dataSource.register(RowSink)
    source, target = topic(partitions=2), topic(partitions=2)
    put(bootstrap, source, RECORDS)
    query.run(source, target, select=EVERY_COLUMN, sink=RowSink.name())
    query.forget_last_commit()
    query.run(source, target, select=EVERY_COLUMN)
    assert read_all(bootstrap, target, partitions=2) == RECORDS


@pytest.fixture
def write(bootstrap: str) -> WriteJob:
    """Return a function that appends a DataFrame: `write(frame, "topic", "transactional id")`."""

    def write(frame: DataFrame, topic: str, transactional_id: str, **options: str) -> None:
        writer = frame.write.format("pyspark_kafka").mode("append")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
        writer.option("transactionalId", transactional_id).options(**options).save()

    return write


def frame_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, numPartitions=3).selectExpr("string(id) AS value")


def test_job_without_batch_id_writes_in_every_run(
    spark: SparkSession, write: WriteJob, bootstrap: str, topic: TopicFactory
) -> None:
    target = topic(partitions=2)
    write(frame_of(spark, 0, 10_000), target, target)
    assert numbers_in(bootstrap, target, partitions=2) == list(range(10_000))
    write(frame_of(spark, 0, 10), target, target)
    again = numbers_in(bootstrap, target, partitions=2)
    assert again == sorted([*range(10_000), *range(10)])
    write(frame_of(spark, 0, 0), target, target)
    assert numbers_in(bootstrap, target, partitions=2) == again


def test_failed_job_leaves_no_visible_rows(
    spark: SparkSession, write: WriteJob, bootstrap: str, topic: TopicFactory
) -> None:
    target = topic(**{"max.message.bytes": "5000"})
    bad = spark.range(1).selectExpr("repeat('v', 100000) AS value")
    with pytest.raises(PySparkException, match=rf"DeliveryError: .*{target}"):
        write(frame_of(spark, 0, 100).union(bad), target, target)
    assert read_all(bootstrap, target) == [], "the failed job left visible rows"
    write(frame_of(spark, 0, 100), target, target)
    assert numbers_in(bootstrap, target) == list(range(100))


def test_job_with_batch_id_is_written_once(
    spark: SparkSession, write: WriteJob, bootstrap: str, topic: TopicFactory
) -> None:
    target = topic(partitions=2)
    write(frame_of(spark, 0, 100), target, target, batchId="7")
    write(frame_of(spark, 0, 100).repartition(2), target, target, batchId="7")
    with pytest.raises(PySparkException, match="ReplayMismatchError: "):
        write(frame_of(spark, 0, 99), target, target, batchId="7")
    write(frame_of(spark, 0, 99), target, target, batchId="7", onReplayMismatch="warn")
    with pytest.raises(PySparkException, match=r"StaleBatchError: .*'batchId'.* 6"):
        write(frame_of(spark, 100, 110), target, target, batchId="6")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(100))
    write(frame_of(spark, 100, 110), target, target, batchId="8")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(110))


def test_foreach_batch_is_exactly_once(
    spark: SparkSession, bootstrap: str, topic: TopicFactory, tmp_path: Path, write: WriteJob
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(100))

    crashes = [True, False]

    def save(frame: DataFrame, _batch_id: int) -> None:
        write(frame.select("value"), target, target)  # without batchId
        if crashes.pop(0):
            raise RuntimeError("after the write, and before Spark commits the micro-batch")

    def run(checkpoint: str) -> None:
        reader = engines.kafka(spark.readStream).option("kafka.bootstrap.servers", bootstrap)
        frame = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.foreachBatch(save)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(TIMEOUT_S)

    with pytest.raises(StreamingQueryException, match="before Spark commits"):
        run("checkpoint")
    run("checkpoint")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(100))

    crashes[:] = [False] * 9
    fill(bootstrap, source, range(100, 110))
    run("checkpoint")
    assert numbers_in(bootstrap, target, partitions=2) == list(range(110))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"engine": "librdkafka"}, "OptionError: .*'engine'.*native", id="engine"),
        pytest.param(
            {"kafka.security.protocol": "SASL_SSL"}, "OptionError: .*Kerberos", id="kerberos"
        ),
        pytest.param({"transactionalId": "a/b"}, "OptionError: .*'transactionalId'", id="id"),
        pytest.param({"commitTopic": "target"}, "OptionError: .*'commitTopic'", id="topics"),
        pytest.param(
            {"kafka.transaction.timeout.ms": "1"}, "OptionError: .*'transactionTimeout'", id="java"
        ),
        pytest.param(
            {"transactionTimeout": "3h"},
            r"errors\.OptionError: .*'transactionTimeout'",
            id="brokers",
        ),
    ],
)
def test_refused_on_the_driver(
    spark: SparkSession, write: WriteJob, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(frame_of(spark, 0, 1), "target", "x", **options)


def a_job(bootstrap: str, source: str, target: str, tmp_path: Path) -> dict[str, Any]:
    """Return the arguments of `failpoint.exactly_once_job`."""
    return {
        "bootstrap": bootstrap,
        "source": source,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("failpoint", "is_decided"),
    [
        pytest.param("task.produce.flush.after", False, marks=pytest.mark.full),
        pytest.param("commit.decide.flush.after", False, marks=pytest.mark.full),
        ("commit.decide.after", True),
    ],
)
def test_query_killed_anywhere_writes_exactly_once(
    failpoint: str, is_decided: bool, bootstrap: str, topic: TopicFactory, tmp_path: Path
) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    job = a_job(bootstrap, source, target, tmp_path)
    fill(bootstrap, source, range(100))
    with exactly_once_job(failpoint, until_end=True, **job) as running:
        running.await_failpoint()
        assert read_all(bootstrap, target, partitions=2) == [], "rows are visible too early"
        running.kill()
    fill(bootstrap, source, range(100, 150))
    run_to_end(**job)
    assert numbers_in(bootstrap, target, partitions=2) == list(range(150))
    if is_decided:
        assert written_in_all(bootstrap, target) == 150, "the decided batch was written again"


def written_in_all(bootstrap: str, topic: str) -> int:
    """Return the number of records in both partitions, including aborted records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "group.id": "counts",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    records, ended = 0, 0
    try:
        while ended < 2:
            message = consumer.poll(30)
            assert message is not None
            ended += message.error() is not None
            records += message.error() is None
    finally:
        consumer.close()
    return records


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_failed_task_is_retried(bootstrap: str, topic: TopicFactory, tmp_path: Path) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    fill(bootstrap, source, range(1_000))
    fail_once = tmp_path / "failed"
    job = a_job(bootstrap, source, target, tmp_path)
    run_to_end(**job, master="local[2,4]", fail_once=str(fail_once))
    assert fail_once.exists(), "no task failed"
    assert numbers_in(bootstrap, target, partitions=2) == list(range(1_000))
