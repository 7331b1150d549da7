"""What Spark calls: JSON offsets, read limits, pickling, and clients opened late and closed."""

from __future__ import annotations

import inspect
import logging
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_kafka.client import factory
from pyspark_kafka.errors import CheckpointError, KafkaError
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.source import partition
from pyspark_kafka.source.batch_reader import (
    KafkaBatchReader,
    KafkaFilterPushdownReader,
)
from pyspark_kafka.source.batch_reader import batch_reader as reader_for
from pyspark_kafka.source.schema import source_schema
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL, FILTER_PUSHDOWN
from pyspark_kafka.source.stream_reader import KafkaStreamReader
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, topic
from tests.pyspark_kafka.source.planning import source_options, tp

needs_4_1 = pytest.mark.skipif(not FILTER_PUSHDOWN, reason="filters came with Spark 4.1")
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


@needs_4_1
def test_filters_narrow_the_plan_and_those_left_are_returned(client: FakeClient) -> None:
    from pyspark.sql.datasource import (  # noqa: PLC0415
        EqualTo,
        Filter,
        GreaterThan,
        In,
        IsNotNull,
        Not,
        StringStartsWith,
    )

    options = source_options(streaming=False, subscribe="t", filterPushdown="single-scan")
    reader = reader_for(source_schema(include_headers=False), options)
    assert isinstance(reader, KafkaFilterPushdownReader)
    mine = [
        IsNotNull(("offset",)),
        GreaterThan(("offset",), 7),
        Not(In(("partition",), (1, None, 5))),
        In(("topic",), ("t", "u")),
    ]
    left: list[Filter] = [
        EqualTo(("key",), b"k"),
        EqualTo(("offset", "nested"), 1),
        Not(StringStartsWith(("value",), "x")),
        IsNotNull(("timestamp",)),
    ]
    returned = list(reader.pushFilters([*left[:2], *mine, *left[2:]]))
    assert [id(one) for one in returned] == [id(one) for one in left], (
        "Spark knows them by identity"
    )
    assert reader.partitions() == [], "NOT IN with a null is never true"
    reader.pushFilters([mine[1], mine[3]])
    (one,) = carried(reader).partitions()
    assert (one.plan.fetch_range.start_offset, one.plan.fetch_range.end_offset) == (8, 10)


@needs_4_1
def test_every_filter_of_spark_is_known() -> None:
    from pyspark.sql.datasource import Filter, Not  # noqa: PLC0415

    from pyspark_kafka.source.spark_filters import OPERATORS  # noqa: PLC0415

    known = {kind.__name__ for kind in Filter.__subclasses__()}
    assert known == {*OPERATORS, Not.__name__}


@pytest.mark.parametrize(
    ("option", "spark", "pushes", "warning"),
    [
        ("false", "5.0", False, ""),
        ("true", "5.0", True, ""),
        ("true", "4.1", False, r"before 5\.0.*'single-scan'"),
        ("true", "4.0", False, r"needs Spark 4\.1"),
        ("single-scan", "4.1", True, ""),
        ("single-scan", "4.0", False, r"needs Spark 4\.1"),
    ],
)
def test_what_this_spark_can_do_with_filters(
    option: str, spark: str, pushes: bool, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = source_options(streaming=False, subscribe="t", filterPushdown=option)
    schema = source_schema(include_headers=False)
    with caplog.at_level(logging.WARNING):
        reader = reader_for(
            schema, options, filter_pushdown=spark != "4.0", scans_kept_apart=spark == "5.0"
        )
    assert isinstance(reader, KafkaFilterPushdownReader) == pushes
    assert re.search(warning, caplog.text) if warning else not caplog.records


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


def test_a_group_is_told_what_spark_is_done_with(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset()
    reader.partitions(reader.initialOffset(), end)
    assert client.committed == {}, "the micro-batch is only planned"
    reader.commit(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}
    reader.stop()
    assert client.closed


def test_no_group_is_told_unasked(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest", group_id="g")
    end = reader.latestOffset(reader.initialOffset())
    reader.latestOffset(end)
    reader.commit(end)
    assert client.committed == {}


@needs_4_2
def test_a_group_is_told_as_soon_as_the_next_micro_batch_is_looked_for(client: FakeClient) -> None:
    """Which is before Spark says so, and where it finds nothing more, instead of it."""
    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset(reader.initialOffset())
    assert client.committed == {}, "nothing is read before the first micro-batch"
    reader.latestOffset(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}
    reader.commit(end)
    reader.latestOffset(end)
    assert client.asked.count("commit_offsets") == 1


def test_a_group_that_cannot_be_told_does_not_fail_the_query(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset()
    client.failures = [KafkaError("group 'g' has members")]
    reader.commit(end)
    assert "not committed to group 'g', and the query goes on" in caplog.text
    assert "group 'g' has members" in caplog.text
    reader.commit(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}


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
