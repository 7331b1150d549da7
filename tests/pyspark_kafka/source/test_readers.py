"""What Spark calls: JSON offsets, read limits, pickling, and clients opened late and closed."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_kafka.client import factory
from pyspark_kafka.errors import CheckpointError
from pyspark_kafka.options import ClientOptions
from pyspark_kafka.source import partition
from pyspark_kafka.source.batch_reader import KafkaBatchReader
from pyspark_kafka.source.schema import source_schema
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from pyspark_kafka.source.stream_reader import KafkaStreamReader
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, topic
from tests.pyspark_kafka.source.planning import source_options

needs_4_2 = pytest.mark.skipif(not ADMISSION_CONTROL, reason="read limits came with Spark 4.2")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    """The client that every reader of the test opens."""
    fake = FakeClient({"t": topic(10, 4)})

    def open_client(_options: ClientOptions, **_: object) -> FakeClient:
        fake.closed = False
        fake.asked.append("open")
        return fake

    monkeypatch.setattr(factory, "open_client", open_client)
    partition._pool.cache_clear()
    yield fake
    partition._pool.cache_clear()


def stream_reader(**options: str) -> KafkaStreamReader:
    parsed = source_options(streaming=True, subscribe="t", **options)
    return KafkaStreamReader(source_schema(include_headers=False), parsed)


def batch_reader(**options: str) -> KafkaBatchReader:
    parsed = source_options(streaming=False, subscribe="t", **options)
    return KafkaBatchReader(source_schema(include_headers=False), parsed)


def carried(value: Any) -> Any:
    """As Spark carries it to an executor."""
    return pickle.loads(pickle.dumps(value))


def test_batch_reader_plans_here_and_reads_there(client: FakeClient) -> None:
    reader = batch_reader(minPartitions="4")
    partitions = reader.partitions()
    assert client.closed, "planning leaves no connection behind"
    worker = carried(reader)
    offsets = [
        (row["partition"], row["offset"])
        for one in partitions
        for batch in worker.read(carried(one))
        for row in batch.to_pylist()
    ]
    assert sorted(offsets) == [*((0, n) for n in range(10)), *((1, n) for n in range(4))]
    assert client.asked.count("open") == 2, "one for planning, one for all tasks of the worker"


def test_the_partition_of_an_empty_plan_has_no_rows(client: FakeClient) -> None:
    assert list(batch_reader().read(InputPartition(None))) == []
    assert client.asked == []


def test_stream_reader_opens_late_and_closes(client: FakeClient) -> None:
    reader = stream_reader()
    assert client.asked == []
    assert reader.initialOffset() == {"t": {"0": 10, "1": 4}}
    reader.stop()
    assert client.closed
    reader.stop()


def test_stream_reader_from_offset_to_rows(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert (start, end) == ({"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}})
    partitions = reader.partitions(start, end)
    rows = sum(batch.num_rows for one in partitions for batch in stream_reader().read(carried(one)))
    assert rows == 14
    reader.commit(end)


def test_stream_reader_is_carried_without_its_client(client: FakeClient) -> None:
    assert carried(stream_reader()).initialOffset() == {"t": {"0": 10, "1": 4}}


def test_spark_before_4_2_asks_without_arguments(client: FakeClient) -> None:
    assert stream_reader().latestOffset() == {"t": {"0": 10, "1": 4}}


@needs_4_2
def test_spark_from_4_2_finds_admission_control() -> None:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # noqa: PLC0415

    assert len(inspect.signature(stream_reader().latestOffset).parameters) == 2
    assert isinstance(stream_reader(), SupportsTriggerAvailableNow)


@needs_4_2
def test_read_limits(client: FakeClient) -> None:
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415
        ReadAllAvailable,
        ReadMaxRows,
        ReadMinRows,
    )

    both = stream_reader(maxOffsetsPerTrigger="7", minOffsetsPerTrigger="5")
    assert stream_reader().getDefaultReadLimit() == ReadAllAvailable()
    assert stream_reader(minOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    assert both.getDefaultReadLimit() == ReadMaxRows(7)
    start = {"t": {"0": 0, "1": 0}}
    assert both.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 10, "1": 4}}
    assert both.latestOffset(start, ReadMaxRows(7)) == {"t": {"0": 5, "1": 2}}
    almost = {"t": {"0": 9, "1": 3}}
    assert both.latestOffset(almost, ReadMaxRows(7)) == almost, "2 are less than the minimum"
    assert both.latestOffset(almost, ReadAllAvailable()) == {"t": {"0": 10, "1": 4}}


@needs_4_2
def test_lag_is_reported(client: FakeClient) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows  # noqa: PLC0415

    reader = stream_reader(maxOffsetsPerTrigger="7")
    assert reader.reportLatestOffset() is None
    reader.latestOffset({"t": {"0": 0, "1": 0}}, ReadMaxRows(7))
    assert reader.reportLatestOffset() == {"t": {"0": 10, "1": 4}}


@needs_4_2
def test_available_now_stops_at_its_target(client: FakeClient) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415

    reader = stream_reader()
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset({"t": {"0": 0, "1": 0}}, ReadAllAvailable())
    client.topics["t"].partitions[0] = FakeLog(end=99)
    assert reader.latestOffset(end, ReadAllAvailable()) == end == {"t": {"0": 10, "1": 4}}


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"t": {"0": -1}}, r"has the offset \{'t': \{'0': -1\}\}.*: t-0 has -1"),
        ({"t": {"0": "x"}}, r"t-0 has 'x', which is no number"),
        ({"t": {"0": 1.5}}, r"t-0 has 1\.5"),
        ({"t": [1]}, r"must have its partitions in an object"),
        ({"t": {"zero": 1}}, r"the partition 'zero'"),
        ([], r"expected e\.g\."),
        (7, r"the offset 7, .*new checkpointLocation"),
        (None, r"the offset None"),
    ],
)
def test_damaged_checkpoint(client: FakeClient, offset: Any, message: str) -> None:
    good = {"t": {"0": 10, "1": 4}}
    reader = stream_reader()
    for start, end in ((offset, good), (good, offset)):
        with pytest.raises(CheckpointError, match=message):
            reader.partitions(start, end)
