"""Streaming writes through Spark: columns, restarts and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.sink.at_least_once.write import AtLeastOnceWrite
from pyspark_kafka.sink.writers import StreamRowWriter
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import Record, read_all
from tests.pyspark_kafka.client.records import write as put
from tests.spark import engines

pytestmark = [pytest.mark.spark]

TIMEOUT_S = 90
Copy = Callable[..., StreamingQuery]


@pytest.fixture
def copy(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Iterator[Copy]:
    """Return a function that copies all new records: `copy("source", "target")`."""
    queries: list[StreamingQuery] = []

    def copy(
        source: str, target: str | None, select: str = "key; value", sink: str = "pyspark_kafka"
    ) -> StreamingQuery:
        records = (
            engines.kafka(spark.readStream)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
        )
        writer = (
            engines.kafka(records.selectExpr(*select.split("; ")).writeStream)
            .format(sink)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        queries.append((writer if target is None else writer.option("topic", target)).start())
        assert queries[-1].awaitTermination(TIMEOUT_S), "the query did not end"
        return queries[-1]

    yield copy
    for query in queries:
        query.stop()


RECORDS = [
    Record(
        value=b"a", key=b"k", partition=0, timestamp_ms=1_700_000_000_001, headers=(("h", b"1"),)
    ),
    Record(value=None, key=None, partition=1, timestamp_ms=1_700_000_000_002),
]


@pytest.mark.spark_version
def test_every_column(copy: Copy, bootstrap: str, topic: TopicFactory) -> None:
    source, target = topic(partitions=2), topic(partitions=2)
    put(bootstrap, source, RECORDS)
    copy(source, None, f"key; value; partition; timestamp; headers; '{target}' AS topic")
    assert read_all(bootstrap, target, partitions=2) == RECORDS


def test_a_restart_continues_at_the_checkpoint(
    copy: Copy, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(partitions=2), topic()
    put(bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in range(100)])
    copy(source, target)
    put(bootstrap, source, [Record(value=b"%d" % n, partition=n % 2) for n in range(100, 150)])
    copy(source, target)
    values = [int(record.value or b"") for record in read_all(bootstrap, target)]
    assert sorted(values) == list(range(150))


def test_a_row_that_is_too_large_fails_the_query_and_a_restart_writes_it(
    copy: Copy, bootstrap: str, topic: TopicFactory
) -> None:
    source, target = topic(), topic(**{"max.message.bytes": "5000"})
    put(bootstrap, source, [Record(value=b"x" * 9_000)])
    with pytest.raises(StreamingQueryException, match=f"DeliveryError: .*{target}-0"):
        copy(source, target)
    fits = "substring(value, 1, 10) AS value"
    copy(source, target, fits)
    assert [record.value for record in read_all(bootstrap, target)] == [b"x" * 10]


def test_invalid_columns_fail_the_query(copy: Copy, bootstrap: str, topic: TopicFactory) -> None:
    source = topic()
    put(bootstrap, source, [Record(value=b"v")])
    with pytest.raises(StreamingQueryException, match=r"SchemaError: .*'offset'"):
        copy(source, source, "value; offset")


class RowSink(DataSource):
    """Data source whose streaming writer gets rows instead of Arrow batches, as in Spark 4.0."""

    @classmethod
    def name(cls) -> str:
        return "rows_to_kafka"

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        options = parse_sink_options(self.options, streaming=True)
        return StreamRowWriter(AtLeastOnceWrite.of(options, schema))


def test_every_column_with_a_row_writer(
    spark: SparkSession, copy: Copy, bootstrap: str, topic: TopicFactory
) -> None:
    spark.dataSource.register(RowSink)
    source, target = topic(partitions=2), topic(partitions=2)
    put(bootstrap, source, RECORDS)
    columns = f"key; value; partition; timestamp; headers; '{target}' AS topic"
    copy(source, None, columns, sink="rows_to_kafka")
    assert read_all(bootstrap, target, partitions=2) == RECORDS
