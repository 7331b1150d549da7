"""The lag, rows and bytes of a query, compared with the offsets of the cluster."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql.streaming.listener import QueryTerminatedEvent

import pyspark_kafka
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from tests.conftest import TopicFactory
from tests.spark import engines
from tests.spark.conftest import Produce
from tests.spark.streams import StreamRunner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


class Listener(pyspark_kafka.KafkaMetricsListener):
    """A listener that keeps the metrics of a query until it terminates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry=registry)
        self.registry = registry
        self.last = ""
        self.terminated = threading.Event()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.last = generate_latest(self.registry).decode()
        super().onQueryTerminated(event)
        self.terminated.set()


@pytest.mark.spark_version
def test_lag_rows_and_bytes(
    streams: StreamRunner,
    topic: TopicFactory,
    produce: Produce,
    caplog: pytest.LogCaptureFixture,
) -> None:
    spark, source, target = streams.spark, topic(partitions=2), topic()
    first, second = TopicPartition(source, 0), TopicPartition(source, 1)
    produce(source, [f"{n:02}" for n in range(20)], key="k")
    produce(source, [f"{n:02}" for n in range(10)], partition=1)
    options = {"kafka.bootstrap.servers": streams.bootstrap_servers, "subscribe": source}
    limits = {"maxOffsetsPerTrigger": "12"} if ADMISSION_CONTROL else {}
    caplog.set_level(logging.INFO, "pyspark_kafka.metrics")
    listener = Listener(CollectorRegistry())
    spark.streams.addListener(listener)
    try:
        stream = engines.kafka(spark.readStream).options(startingOffsets="earliest", **options)
        read = pyspark_kafka.count_bytes(stream.options(**limits).load(), "read")
        written = pyspark_kafka.count_bytes(read.selectExpr("value || '!' AS value"), "write")
        query = (
            engines.kafka(written.writeStream)
            .option("kafka.bootstrap.servers", streams.bootstrap_servers)
            .option("topic", target)
            .option("checkpointLocation", str(streams.checkpoint))
            .queryName("copy")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120), "the query did not end"
        assert listener.terminated.wait(30), "Spark did not report the end of the query"
    finally:
        spark.streams.removeListener(listener)

    behind = [(12, 6), (4, 2), (0, 0)] if ADMISSION_CONTROL else [(0, 0)]
    expected = [{first: one, second: other} for one, other in behind]
    # A report of an idle query can follow the reports of the micro-batches.
    reports = [progress for progress in query.recentProgress if progress.numInputRows]
    lags = [pyspark_kafka.lag(progress) for progress in reports]
    assert [lag.partitions for lag in lags if lag is not None] == expected
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name.endswith(".metrics")]
    assert [line["offsetsBehindLatest"] for line in lines] == [
        {source: {"0": one, "1": other}} for one, other in behind
    ]
    assert sum(line["rowsRead"] for line in lines) == 30
    assert set(listener.last.splitlines()) >= {
        f'pyspark_kafka_lag_offsets{{partition="0",query="copy",topic="{source}"}} 0.0',
        'pyspark_kafka_read_rows_total{query="copy"} 30.0',
        'pyspark_kafka_read_bytes_total{query="copy"} 80.0',
        'pyspark_kafka_written_rows_total{query="copy"} 30.0',
        'pyspark_kafka_written_bytes_total{query="copy"} 90.0',
    }
    assert 'query="copy"' not in generate_latest(listener.registry).decode()

    produce(source, ["a", "b", "c"])
    now = pyspark_kafka.lag(query.lastProgress, options)
    assert now is not None
    assert now.partitions == {first: 3, second: 0}
    assert (now.min, now.max, now.avg) == (0, 3, 1.5)
