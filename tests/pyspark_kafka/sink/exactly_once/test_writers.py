"""Tests of the writers with `transactionalId`, used as Spark does, on a fake cluster."""

from __future__ import annotations

import logging
import pickle
import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceArrowWriter
from pyspark.sql.types import StructType

from pyspark_kafka.client import factory
from pyspark_kafka.datasource import KafkaDataSource
from pyspark_kafka.errors import OptionError, ReplayMismatchError, SchemaError, StaleBatchError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.sink.at_least_once.write import AtLeastOnceWrite
from pyspark_kafka.sink.exactly_once import write
from pyspark_kafka.sink.writers import BatchWriter, StreamRowWriter, stream_writer
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster

SCHEMA = StructType().add("value", "string")
OPTIONS = {"kafka.bootstrap.servers": "a:1", "topic": "t", "transactionalId": "x"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Return the fake cluster that all writers of the test use, with a topic `t`."""
    made = FakeCluster()
    made.now_ms = time.time_ns() // 1_000_000
    made.create_topic("t")
    monkeypatch.setattr(factory, "open_transactional_client", lambda _options: made.client())
    monkeypatch.setattr(write, "freeze_garbage_collector", lambda: None)
    write._pool.cache_clear()
    yield made
    write._pool.cache_clear()


class Spark:
    """A caller that uses a writer as Spark does; each commit of a stream has its own writer.

    The tasks of a micro-batch have its properties, and those of a job have none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self._monkeypatch = monkeypatch
        self._source = KafkaDataSource(CaseInsensitiveDict({**OPTIONS, **options}))

    def stream_writer(self) -> Any:
        return self._source.streamWriter(SCHEMA, overwrite=False)

    def job_writer(self) -> Any:
        return self._source.writer(SCHEMA, overwrite=False)

    def micro_batch(self, batch_id: int, *tasks: list[str], fails: bool = False) -> None:
        pickled = self._pickled(self.stream_writer())
        messages = [self._task(pickled, n, rows, batch_id) for n, rows in enumerate(tasks)]
        if fails:
            self.stream_writer().abort([None, *messages], batch_id)
        else:
            self.stream_writer().commit(messages, batch_id)

    def job(self, *tasks: list[str], fails: bool = False) -> None:
        pickled = self._pickled(self.job_writer())
        messages = [self._task(pickled, n, rows) for n, rows in enumerate(tasks)]
        if fails:
            pickle.loads(pickled).abort([None, *messages])
        else:
            pickle.loads(pickled).commit(messages)

    def _pickled(self, writer: Any) -> bytes:
        first: bytes = cloudpickle.dumps(writer)  # type: ignore[no-untyped-call]
        second: bytes = cloudpickle.dumps(writer)  # type: ignore[no-untyped-call]
        assert first == second
        return first

    def _task(
        self, pickled: bytes, partition: int, rows: list[str], batch_id: int | None = None
    ) -> Any:
        self._monkeypatch.setattr(TaskContext, "_taskContext", None)  # instead of the process's own
        context = TaskContext()
        context._partitionId, context._attemptNumber, context._taskAttemptId = partition, 0, 40
        context._localProperties = {
            "sql.streaming.queryId": "query",
            "streaming.sql.batchId": str(batch_id),
            "spark.jobGroup.id": "run",
        }
        if batch_id is None:
            context._localProperties = {}
        self._monkeypatch.setattr(TaskContext, "get", lambda: context)
        batch = pa.record_batch([pa.array(rows, pa.string())], names=["value"])
        message = pickle.loads(pickled).write(iter([batch]))
        return pickle.loads(pickle.dumps(message))


def values(cluster: FakeCluster) -> list[bytes]:
    return sorted(value or b"" for _, value in cluster.committed("t"))


def test_transactional_id_selects_the_exactly_once_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = Spark(monkeypatch)
    assert isinstance(spark.job_writer(), BatchWriter)
    assert isinstance(spark.job_writer(), DataSourceArrowWriter)
    arrow = getattr(datasource, "DataSourceStreamArrowWriter", StreamRowWriter)
    assert isinstance(spark.stream_writer(), arrow)
    without = CaseInsensitiveDict({"kafka.bootstrap.servers": "a:1", "topic": "t"})
    other: Any = KafkaDataSource(without).writer(SCHEMA, overwrite=False)
    assert isinstance(other._write, AtLeastOnceWrite)


def test_older_spark_gets_the_row_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.sql.datasource.DataSourceStreamArrowWriter", raising=False)
    assert isinstance(Spark(monkeypatch).stream_writer(), StreamRowWriter)


def test_schema_and_options_are_checked_when_a_writer_is_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for wrong, message in (
        ({"transactionalId": "a/b"}, "'transactionalId'"),
        ({"engine": "librdkafka"}, "'native'"),
        ({"kafka.compression.type": "rar"}, "compression"),
    ):
        for make in (
            Spark(monkeypatch, **wrong).stream_writer,
            Spark(monkeypatch, **wrong).job_writer,
        ):
            with pytest.raises(OptionError, match=message):
                make()
    with pytest.raises(SchemaError, match="'value'"):
        stream_writer(
            parse_sink_options(OPTIONS, streaming=True), StructType().add("key", "string")
        )


def test_micro_batches_are_visible_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spark = Spark(monkeypatch)
    with caplog.at_level(logging.INFO, logger="pyspark_kafka.sink.writers"):
        spark.micro_batch(0, ["a", "b"], [], ["c"])
        spark.micro_batch(0, ["a", "b"], [], ["c"])
        spark.micro_batch(1, ["d"])
    assert values(cluster) == [b"a", b"b", b"c", b"d"]
    logged = [r.getMessage() for r in caplog.records if r.name == "pyspark_kafka.sink.writers"]
    facts = [re.findall(r"\d+|\bt\b", text) for text in logged]
    assert facts == [["0", "3", "t"], ["0"], ["1", "1", "t"]]
    with pytest.raises(StaleBatchError):
        spark.micro_batch(0, ["a"])
    with pytest.raises(ReplayMismatchError):
        spark.micro_batch(1, ["e"])


def test_failed_micro_batch_is_not_visible(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = Spark(monkeypatch)
    spark.micro_batch(0, ["a"], ["b"], fails=True)
    assert cluster.is_stable("t"), "open transactions block consumers"
    spark.micro_batch(0, ["a"], ["b"])
    assert values(cluster) == [b"a", b"b"]


def test_jobs(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(monkeypatch)
    spark.job(["a"], ["b"], fails=True)
    spark.job(["a"], ["b"])
    spark.job(["a"], [])
    assert values(cluster) == [b"a", b"a", b"b"]
    again = Spark(monkeypatch, batchId="3")
    again.job(["c"], ["d"])
    again.job(["d"], ["c"])
    assert values(cluster) == [b"a", b"a", b"b", b"c", b"d"]
    with pytest.raises(StaleBatchError, match=r"\b2\b"):
        Spark(monkeypatch, batchId="2").job(["e"])


def test_row_writer_writes_the_same_rows(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = Spark(monkeypatch)
    spark.micro_batch(0, ["a", "b"])
    rows = StreamRowWriter(spark.stream_writer()._write)
    pickled = spark._pickled(rows)
    replayed = pickle.loads(pickled).write(iter([Row(value="b"), Row(value="a")]))
    spark.stream_writer().commit([replayed], 0)
    assert values(cluster) == [b"a", b"b"]


def test_offsets_are_committed_with_the_rows(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"s":{"0":7}}')
    spark = Spark(
        monkeypatch,
        commitOffsets="true",
        checkpointLocation=str(tmp_path),
        **{"kafka.group.id": "g"},
    )
    spark.micro_batch(0, ["a"])
    assert cluster.groups == {("g", TopicPartition("s", 0)): 7}
    assert values(cluster) == [b"a"]
