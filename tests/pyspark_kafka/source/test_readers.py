"""Tests of the readers that Spark calls: JSON offsets, read limits, pickling, clients."""

from __future__ import annotations

import inspect
import io
import json
import logging
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.python_streaming_source_runner import (
    PREFETCHED_RECORDS_NOT_FOUND,
    partitions_func,
)

from pyspark_kafka.client import factory
from pyspark_kafka.datasource import KafkaDataSource
from pyspark_kafka.errors import CheckpointError, KafkaError, LeaderNotAvailableError
from pyspark_kafka.options.values import ClientOptions
from pyspark_kafka.source import task_reader
from pyspark_kafka.source.batch_reader import (
    KafkaBatchReader,
    KafkaFilterPushdownReader,
)
from pyspark_kafka.source.batch_reader import batch_reader as reader_for
from pyspark_kafka.source.prefetch import BYTES_MAX, OFFSETS_MAX
from pyspark_kafka.source.schema import source_schema
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL, FILTER_PUSHDOWN
from pyspark_kafka.source.stream_reader import KafkaStreamReader
from tests.pyspark_kafka.source.fake_client import FakeClient, FakeLog, FakeTopic, topic
from tests.pyspark_kafka.source.planning import source_options, tp

needs_4_1 = pytest.mark.skipif(not FILTER_PUSHDOWN, reason="filter pushdown needs Spark 4.1")
needs_4_2 = pytest.mark.skipif(not ADMISSION_CONTROL, reason="read limits need Spark 4.2")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    fake = FakeClient({"t": topic(10, 4)})

    def open_client(_options: ClientOptions, **_: object) -> FakeClient:
        fake.closed = False
        fake.requests.append("open")
        return fake

    monkeypatch.setattr(factory, "open_client", open_client)
    task_reader._pool.cache_clear()
    yield fake
    task_reader._pool.cache_clear()


def stream_reader(**options: str) -> KafkaStreamReader:
    parsed = source_options(streaming=True, subscribe="t", **options)
    return KafkaStreamReader(source_schema(include_headers=False), parsed)


def batch_reader(**options: str) -> KafkaBatchReader:
    parsed = source_options(streaming=False, subscribe="t", **options)
    return KafkaBatchReader(source_schema(include_headers=False), parsed)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def test_batch_reader_plans_and_its_copy_reads(client: FakeClient) -> None:
    reader = batch_reader(minPartitions="4")
    partitions = reader.partitions()
    assert client.closed, "planning closes its client"
    worker = pickled(reader)
    offsets = [
        (row["partition"], row["offset"])
        for planned in partitions
        for batch in worker.read(pickled(planned))
        for row in batch.to_pylist()
    ]
    assert sorted(offsets) == [*((0, n) for n in range(10)), *((1, n) for n in range(4))]
    assert client.requests.count("open") == 2, (
        "one client for planning, and one for all tasks of the worker"
    )


def test_an_empty_topic_has_no_records(client: FakeClient) -> None:
    client.topics["t"] = topic(0, 0)
    reader = batch_reader()
    (planned,) = reader.partitions()
    assert list(reader.read(planned)) == []


@needs_4_1
def test_pushed_filters_prune_the_plan_and_others_are_returned(client: FakeClient) -> None:
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
    exact = [
        IsNotNull(("offset",)),
        GreaterThan(("offset",), 7),
        Not(In(("partition",), (1, None, 5))),
        In(("topic",), ("t", "u")),
    ]
    others: list[Filter] = [
        EqualTo(("key",), b"k"),
        EqualTo(("offset", "nested"), 1),
        Not(StringStartsWith(("value",), "x")),
        IsNotNull(("timestamp",)),
    ]
    returned = list(reader.pushFilters([*others[:2], *exact, *others[2:]]))
    assert [id(f) for f in returned] == [id(f) for f in others], (
        "Spark compares filters by identity"
    )
    (nothing,) = reader.partitions()
    assert list(reader.read(nothing)) == [], "NOT IN with a null is never true"
    reader.pushFilters([exact[1], exact[3]])
    (planned,) = pickled(reader).partitions()
    (part,) = planned.value
    found = part.planned.fetch_range
    assert (found.start_offset, found.end_offset) == (8, 10)


@needs_4_1
def test_every_filter_of_spark_is_supported() -> None:
    from pyspark.sql.datasource import Filter, Not  # noqa: PLC0415

    from pyspark_kafka.source.spark_filters import OPERATORS  # noqa: PLC0415

    names = {filter_class.__name__ for filter_class in Filter.__subclasses__()}
    assert names == {*OPERATORS, Not.__name__}


@pytest.mark.parametrize(
    ("option", "spark", "pushes", "warning"),
    [
        ("false", "5.0", False, ""),
        ("true", "5.0", True, ""),
        ("true", "4.1", False, r"5\.0.*'single-scan'"),
        ("true", "4.0", False, r"4\.1"),
        ("single-scan", "4.1", True, ""),
        ("single-scan", "4.0", False, r"4\.1"),
    ],
)
def test_filter_pushdown_depends_on_the_version_of_spark(
    option: str, spark: str, pushes: bool, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = source_options(streaming=False, subscribe="t", filterPushdown=option)
    schema = source_schema(include_headers=False)
    with caplog.at_level(logging.WARNING):
        reader = reader_for(
            schema, options, filter_pushdown=spark != "4.0", filters_per_scan=spark == "5.0"
        )
    assert isinstance(reader, KafkaFilterPushdownReader) == pushes
    assert re.search(warning, caplog.text) if warning else not caplog.records


def test_stream_reader_opens_its_client_on_use_and_closes_it(client: FakeClient) -> None:
    reader = stream_reader()
    assert client.requests == []
    assert reader.initialOffset() == {"t": {"0": 10, "1": 4}}
    reader.stop()
    assert client.closed
    reader.stop()


def test_stream_reader_plans_and_reads(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert (start, end) == ({"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}})
    partitions = reader.partitions(start, end)
    rows = sum(
        batch.num_rows for planned in partitions for batch in stream_reader().read(pickled(planned))
    )
    assert rows == 14
    reader.commit(end)


def test_spark_gets_the_records_of_a_small_task_with_the_plan(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest", maxPartitions="1")
    start, end = {"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 4}}
    # Between the calls, Spark must not treat the reader as a simple one, which reports no lag.
    for _ in range(2):
        partitions, prefetched = plan_as_spark_does(reader, start, end)
        assert len(partitions) == 1, "Spark rejects prefetched records of several partitions"
        assert prefetched is not None
        read = [row for batch in stream_reader().read(partitions[0]) for row in batch.to_pylist()]
        assert prefetched.to_pylist() == read, "Spark reads the partition if it loses the records"
        assert [row["offset"] for row in read] == [*range(10), *range(4)]
        assert type(reader) is KafkaStreamReader


@pytest.mark.parametrize(
    ("logs", "options"),
    [
        pytest.param([FakeLog(end=10), FakeLog(end=4)], {}, id="two-tasks"),
        pytest.param([FakeLog(end=OFFSETS_MAX + 1)], {}, id="too-many-offsets"),
        pytest.param([FakeLog(end=4, value_bytes=BYTES_MAX // 2)], {}, id="too-many-bytes"),
        pytest.param([FakeLog()], {}, id="nothing"),
    ],
)
def test_other_micro_batches_are_read_by_tasks(
    client: FakeClient, logs: list[FakeLog], options: dict[str, str]
) -> None:
    client.topics["t"] = FakeTopic(dict(enumerate(logs)))
    reader = stream_reader(startingOffsets="earliest", **options)
    end = reader.latestOffset(reader.initialOffset())
    partitions, prefetched = plan_as_spark_does(reader, reader.initialOffset(), end)
    assert prefetched is None
    rows = [b.num_rows for each in partitions for b in stream_reader().read(pickled(each))]
    assert sum(rows) == sum(log.end for log in logs)
    fetched = len(client.fetched)
    plan_as_spark_does(reader, reader.initialOffset(), end)
    assert len(client.fetched) == fetched, "the driver fetches large records only once"


def test_a_task_reads_what_the_driver_cannot_fetch(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark retries a task, but not a plan that fails."""

    def fetch(*_: Any, **__: Any) -> Any:
        raise LeaderNotAvailableError("t-0 has no leader", topic="t", partition=0)

    reader = stream_reader(startingOffsets="earliest", maxPartitions="1")
    with monkeypatch.context() as patched:
        patched.setattr(FakeClient, "fetch", fetch)
        partitions, prefetched = plan_as_spark_does(reader, {"t": {"0": 0}}, {"t": {"0": 10}})
    assert prefetched is None
    assert sum(b.num_rows for each in partitions for b in reader.read(pickled(each))) == 10


def plan_as_spark_does(
    reader: KafkaStreamReader, start: Any, end: Any
) -> tuple[list[InputPartition], pa.Table | None]:
    """Call the function that Spark calls to plan. Return the partitions and the prefetched rows."""
    infile, outfile = io.BytesIO(), io.BytesIO()
    for offsets in (start, end):
        text = json.dumps(offsets).encode()
        infile.write(len(text).to_bytes(4) + text)
    infile.seek(0)
    schema = source_schema(include_headers=False)
    partitions_func(reader, KafkaDataSource({}), schema, 1_000, infile, outfile)
    outfile.seek(0)
    count = int.from_bytes(outfile.read(4))
    partitions = [pickle.loads(outfile.read(int.from_bytes(outfile.read(4)))) for _ in range(count)]
    if int.from_bytes(outfile.read(4), signed=True) == PREFETCHED_RECORDS_NOT_FOUND:
        return partitions, None
    assert int.from_bytes(outfile.read(4), signed=True) == SpecialLengths.START_ARROW_STREAM
    return partitions, pa.ipc.open_stream(outfile).read_all()


def test_stream_reader_can_be_pickled(client: FakeClient) -> None:
    assert pickled(stream_reader()).initialOffset() == {"t": {"0": 10, "1": 4}}


def test_latest_offset_without_arguments_before_spark_4_2(client: FakeClient) -> None:
    assert stream_reader().latestOffset() == {"t": {"0": 10, "1": 4}}


def test_commit_commits_offsets_to_the_group(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset()
    reader.partitions(reader.initialOffset(), end)
    assert client.committed == {}, "the micro-batch is only planned"
    reader.commit(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}
    reader.stop()
    assert client.closed


def test_no_offsets_are_committed_without_commit_offsets(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="earliest", group_id="g")
    end = reader.latestOffset(reader.initialOffset())
    reader.latestOffset(end)
    reader.commit(end)
    assert client.committed == {}


@needs_4_2
def test_latest_offset_commits_offsets_to_the_group(client: FakeClient) -> None:
    """Spark calls `commit` later, and not at all if there is no next micro-batch."""
    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset(reader.initialOffset())
    assert client.committed == {}, "nothing is read before the first micro-batch"
    reader.latestOffset(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}
    reader.commit(end)
    reader.latestOffset(end)
    assert client.requests.count("commit_offsets") == 1


@needs_4_2
def test_the_offsets_of_an_empty_first_micro_batch_are_committed(client: FakeClient) -> None:
    reader = stream_reader(startingOffsets="latest", commitOffsets="true", group_id="g")
    end = reader.latestOffset(reader.initialOffset())
    assert client.committed == {}
    assert reader.latestOffset(end) == end, "the topic is idle"
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}

    client.committed.clear()
    restarted = stream_reader(startingOffsets="latest", commitOffsets="true", group_id="g")
    restarted.partitions(restarted.initialOffset(), end)
    assert restarted.latestOffset(end) == end
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}


def test_a_failed_commit_does_not_fail_the_query(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset()
    client.failures = [KafkaError("Group 'g' has members.")]
    reader.commit(end)
    assert "Group 'g' has members" in caplog.text
    assert client.closed
    reader.commit(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}


def test_a_commit_whose_client_cannot_be_opened_does_not_fail_the_query(
    client: FakeClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> FakeClient:
        raise KafkaError("The token file is missing.")

    reader = stream_reader(startingOffsets="earliest", commitOffsets="true", group_id="g")
    end = reader.latestOffset()
    with monkeypatch.context() as failing:
        failing.setattr(factory, "open_client", refuse)
        reader.commit(end)
    assert "The token file is missing" in caplog.text
    reader.commit(end)
    assert client.committed == {("g", tp("t", 0)): 10, ("g", tp("t", 1)): 4}


@needs_4_2
def test_admission_control_of_spark_4_2() -> None:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # noqa: PLC0415

    assert len(inspect.signature(stream_reader().latestOffset).parameters) == 2
    assert isinstance(stream_reader(), SupportsTriggerAvailableNow)


@needs_4_2
def test_read_limits(client: FakeClient) -> None:
    from pyspark.sql.streaming.datasource import (  # noqa: PLC0415
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
    )

    both = stream_reader(maxOffsetsPerTrigger="7", minOffsetsPerTrigger="5")
    assert stream_reader().getDefaultReadLimit() == ReadAllAvailable()
    assert stream_reader(minOffsetsPerTrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    assert stream_reader(maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    assert both.getDefaultReadLimit() == ReadMaxRows(7)
    start = {"t": {"0": 0, "1": 0}}
    assert both.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 10, "1": 4}}
    assert both.latestOffset(start, ReadMaxRows(7)) == {"t": {"0": 5, "1": 2}}
    near_end = {"t": {"0": 9, "1": 3}}
    assert both.latestOffset(near_end, ReadMaxRows(7)) == near_end, (
        "2 offsets are less than the minimum"
    )
    assert both.latestOffset(near_end, ReadAllAvailable()) == {"t": {"0": 10, "1": 4}}


@needs_4_2
def test_latest_offsets_are_reported(client: FakeClient) -> None:
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
    ("offset", "topic", "partition"),
    [
        ({"t": {"0": -1}}, "t", 0),
        ({"t": {"0": "x"}}, "t", 0),
        ({"t": {"0": 1.5}}, "t", 0),
        ({"t": [1]}, "t", None),
        ({"t": {"zero": 1}}, "t", None),
        ([], None, None),
        (7, None, None),
        (None, None, None),
    ],
)
def test_invalid_offsets_in_a_checkpoint(
    client: FakeClient, offset: Any, topic: str | None, partition: int | None
) -> None:
    good = {"t": {"0": 10, "1": 4}}
    reader = stream_reader()
    for start, end in ((offset, good), (good, offset)):
        with pytest.raises(CheckpointError, match=re.escape(repr(offset))) as caught:
            reader.partitions(start, end)
        assert (caught.value.topic, caught.value.partition) == (topic, partition)
