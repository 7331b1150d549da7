"""Exactly-once streaming writes through Spark: restarts, replays and fenced queries."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
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
from tests.spark.gate import Gate
from tests.spark.numbers import fill, numbers_in

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

TIMEOUT_S = 120
Copy = Callable[..., StreamingQuery]


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


@pytest.mark.spark_version
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
