"""Streaming reads through Spark: starting offsets, checkpoints, limits, progress and errors."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.clusters.topics import grow_topic
from pyspark_kafka.__main__ import main
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from tests.conftest import TopicFactory
from tests.spark.conftest import Produce
from tests.spark.streams import StreamRunner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

KEPT = {"retention.ms": "-1"}
"""Topic config that disables retention, because the records of these topics have old timestamps."""

needs_4_2 = pytest.mark.skipif(not ADMISSION_CONTROL, reason="the reported lag requires Spark 4.2")


def await_that(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        failure = query.exception()
        assert failure is None, failure
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def test_a_new_query_starts_at_latest(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, ["before"])
    query = streams.start(subscribe=name)
    await_that(lambda: bool(query.recentProgress), query)
    produce(name, ["a"])
    produce(name, ["b"], partition=1)
    await_that(lambda: len(streams.values) >= 2, query)
    assert sorted(streams.values) == ["a", "b"]


def test_a_new_query_starts_during_writes(
    streams: StreamRunner, topic: TopicFactory, bootstrap: str
) -> None:
    name = topic()
    writer = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "linger.ms": "0"})
    stop = threading.Event()

    def write() -> None:
        written = 0
        while not stop.wait(0.002):
            writer.produce(name, str(written))
            written += 1
            writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        query = streams.start(subscribe=name)
        await_that(lambda: len(streams.values) >= 200, query)
    finally:
        stop.set()
        thread.join()
    first = streams.offsets(0)[name]["0"]
    assert streams.values == [str(row) for row in range(first, first + len(streams.values))]


def test_a_new_query_that_is_killed_in_its_first_micro_batch_loses_no_record(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["before"])
    streams.available_now(subscribe=name)
    assert streams.values == []
    streams.forget_commit(0)
    produce(name, ["a", "b"])
    streams.available_now(subscribe=name)
    if not ADMISSION_CONTROL:  # Available-now was one micro-batch, which was the replay.
        streams.available_now(subscribe=name)
    assert streams.values == ["a", "b"]


@pytest.mark.spark_version
def test_a_query_continues_from_its_checkpoint(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, ["a", "b"])
    streams.available_now(subscribe=name, startingOffsets="earliest")
    assert streams.offsets(0) == {name: {"0": 2, "1": 0}}
    produce(name, ["c"])
    produce(name, ["d"], partition=1)
    streams.available_now(subscribe=name, startingOffsets="earliest")
    assert streams.offsets(1) == {name: {"0": 3, "1": 1}}
    assert streams.values == ["a", "b", "c", "d"]


@pytest.mark.spark_version
def test_an_uncommitted_batch_is_replayed_with_the_same_rows(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a", "b"])
    streams.available_now(subscribe=name, startingOffsets="earliest")
    first = dict(streams.batches)
    streams.forget_commit(0)
    streams.batches.clear()
    produce(name, ["c"])
    streams.available_now(subscribe=name, startingOffsets="earliest")
    assert streams.batches[0] == first[0]
    if not ADMISSION_CONTROL:  # Available-now was one micro-batch, which was the replay.
        streams.available_now(subscribe=name, startingOffsets="earliest")
    assert streams.values == ["a", "b", "c"]


@pytest.mark.spark_version
@pytest.mark.parametrize("is_available_now", [True, False], ids=["available-now", "default"])
def test_a_first_micro_batch_is_replayed_after_a_partition_was_added(
    streams: StreamRunner,
    topic: TopicFactory,
    produce: Produce,
    bootstrap: str,
    is_available_now: bool,
) -> None:
    """SPARK-53560: the restarted query resolves the start offsets with the new partition."""
    name = topic()
    produce(name, ["a", "b"])

    def fail() -> None:
        raise ValueError("the first micro-batch fails")

    streams.after_batch = fail
    with pytest.raises(StreamingQueryException):
        streams.available_now(subscribe=name, startingOffsets="earliest")
    grow_topic(bootstrap, name, partitions=2)
    produce_to_new_partition(bootstrap, name, 1, ["c"])
    streams.after_batch = lambda: None
    if is_available_now:
        streams.available_now(subscribe=name, startingOffsets="earliest")
        if not ADMISSION_CONTROL:  # Available-now was one micro-batch, which was the replay.
            streams.available_now(subscribe=name, startingOffsets="earliest")
    else:
        query = streams.start(subscribe=name, startingOffsets="earliest")
        await_that(lambda: len(streams.values) == 3, query)
    assert streams.values == ["a", "b", "c"]


def test_a_planned_batch_that_cannot_succeed_is_discarded(
    streams: StreamRunner, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    """It runs without the records of the partition that is reset, and with all others."""
    name = topic(partitions=2)
    options = {"subscribe": name, "startingOffsets": "earliest"}
    produce(name, ["a", "b"])
    streams.available_now(**options)
    produce(name, ["poison", "c"])
    produce(name, ["x"], partition=1)

    def fail() -> None:
        raise ValueError("the micro-batch fails")

    streams.after_batch = fail
    with pytest.raises(StreamingQueryException):
        streams.available_now(**options)
    streams.after_batch = lambda: None
    reset = ["offsets", "--checkpoint", str(streams.checkpoint), "--bootstrap-servers", bootstrap]
    reset += ["--to-offset", "3", "--topic", f"{name}:0", "--execute"]
    assert main(reset) == 1
    assert main([*reset, "--discard-planned-batch"]) == 0
    streams.available_now(**options)
    if not ADMISSION_CONTROL:  # Available-now was one micro-batch, which was the planned one.
        streams.available_now(**options)
    values = {n: [row.value.decode() for row in rows] for n, rows in streams.batches.items()}
    assert values == {0: ["a", "b"], 1: ["x"], 2: ["c"]}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({"startingOffsets": '{"TOPIC":{"0":1,"1":-1}}'}, ["b", "c"]),
        ({"startingTimestamp": "2000"}, ["b", "c", "z"]),
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":3000,"1":2000}}'}, ["c", "z"]),
    ],
    ids=["offsets", "timestamp", "by-timestamp"],
)
def test_starting_options(
    streams: StreamRunner,
    topic: TopicFactory,
    produce: Produce,
    start: dict[str, str],
    expected: list[str],
) -> None:
    name = topic(partitions=2, **KEPT)
    produce(name, ["a", "b", "c"], timestamps_ms=[1000, 2000, 3000])
    produce(name, ["y", "z"], partition=1, timestamps_ms=[1000, 2000])
    options = {option: value.replace("TOPIC", name) for option, value in start.items()}
    streams.available_now(subscribe=name, **options)
    if not ADMISSION_CONTROL:  # Available-now was one micro-batch, which may be empty.
        streams.available_now(subscribe=name, **options)
    assert streams.values == expected


def test_discovered_partitions_start_at_earliest(
    streams: StreamRunner, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    first = topic()
    options = {"subscribePattern": f"^{first}", "startingOffsets": "latest"}
    query = streams.start(**options)
    await_that(lambda: bool(query.recentProgress), query)
    grow_topic(bootstrap, first, partitions=2)
    produce(first, ["new partition"], partition=1)
    await_that(lambda: streams.values == ["new partition"], query)


@pytest.mark.spark_version
@needs_4_2
def test_max_offsets_per_trigger_and_lag(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic(partitions=2)
    produce(name, [f"{n:02}" for n in range(20)])
    produce(name, [f"{n:02}" for n in range(20, 30)], partition=1)
    query = streams.available_now(
        subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="12"
    )
    assert streams.offsets(0) == {name: {"0": 8, "1": 4}}
    assert len(streams.values) == 30
    assert streams.sizes == [12, 12, 6]
    source = query.recentProgress[0].sources[0]
    assert json.loads(source.latestOffset) == {name: {"0": 20, "1": 10}}
    assert json.loads(source.endOffset) == {name: {"0": 8, "1": 4}}


@pytest.mark.spark_version
def test_max_offsets_per_trigger_applies_after_restarts(
    streams: StreamRunner, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    """The query restarts after a completed micro-batch, and then with an unfinished one."""
    name = topic(partitions=2)
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
    written = [f"{n:02}" for n in range(48)]
    produce(name, written[:20])
    produce(name, written[20:30], partition=1)
    query = streams.start(**options)
    query.processAllAvailable()
    assert streams.sizes == [12, 12, 6]
    query.stop()
    grow_topic(bootstrap, name, partitions=3)
    produce_to_new_partition(bootstrap, name, 2, written[30:39])
    produce(name, written[39:])

    def fail() -> None:
        raise ValueError("the micro-batch fails")

    streams.after_batch = fail
    with pytest.raises(StreamingQueryException):
        streams.start(**options).processAllAvailable()
    unfinished = streams.batches.pop(3)
    streams.after_batch = lambda: None
    streams.start(**options).processAllAvailable()
    assert streams.batches[3] == unfinished
    assert streams.sizes == [12, 12, 6, 12, 6]
    assert sorted(streams.values) == written


@pytest.mark.spark_version
@pytest.mark.skipif(ADMISSION_CONTROL, reason="Spark supports availableNow for Python sources")
def test_available_now_with_a_limit_before_spark_4_2(
    spark: SparkSession, streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name, wrapper = topic(), "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    produce(name, [f"{n:02}" for n in range(30)])
    options = {"subscribe": name, "startingOffsets": "earliest"}
    for _ in range(2):
        streams.available_now(maxOffsetsPerTrigger="12", **options)
    assert streams.sizes == [12, 12]
    spark.conf.set(wrapper, "true")
    try:
        with pytest.raises(PySparkException, match=r"OptionError: .*'maxOffsetsPerTrigger'"):
            streams.available_now(maxOffsetsPerTrigger="12", **options)
        streams.available_now(**options)
    finally:
        spark.conf.unset(wrapper)
    assert streams.sizes == [12, 12, 6]


def test_max_bytes_per_trigger(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["x" * 1_000] * 25)
    streams.start(
        subscribe=name, startingOffsets="earliest", maxBytesPerTrigger="10k"
    ).processAllAvailable()
    assert streams.sizes == [10, 10, 5]


@pytest.mark.spark_version
def test_min_offsets_per_trigger(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a"])
    query = streams.start(
        subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger="3", maxTriggerDelay="1h"
    )
    await_that(lambda: streams.values == ["a"], query)
    produce(name, ["b", "c"])
    query.processAllAvailable()
    assert streams.values == ["a"], "the query read fewer rows than the minimum"
    produce(name, ["d"])
    await_that(lambda: len(streams.values) == 4, query)
    assert streams.sizes == [1, 3]


@pytest.mark.spark_version
def test_available_now_ends_while_the_topic_grows(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a", "b"])
    streams.after_batch = lambda: produce(name, ["more"])
    streams.available_now(subscribe=name, startingOffsets="earliest")
    assert streams.values == ["a", "b"]


def test_deleted_records_are_data_loss(
    streams: StreamRunner, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    produce(name, ["a"])
    streams.available_now(subscribe=name, startingOffsets="earliest")
    produce(name, ["b", "c", "d"])
    delete_records(bootstrap, name, 3)
    with pytest.raises(PySparkException, match=rf"DataLossError: .*1 to 4\b.*{name}-0\b.*3 to 4\b"):
        streams.available_now(subscribe=name)
    streams.available_now(subscribe=name, failOnDataLoss="false")
    assert streams.values == ["a", "d"]


def test_a_deleted_topic_is_data_loss(
    streams: StreamRunner, topic: TopicFactory, produce: Produce, bootstrap: str
) -> None:
    name = topic()
    query = streams.start(subscribe=name)
    produce(name, ["a"])
    await_that(lambda: bool(query.recentProgress), query)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.delete_topics([name])[name].result(30)
    with pytest.raises(PySparkException, match=f"DataLossError: .*{name}"):
        query.awaitTermination(60)


INVALID = (
    ('{"other":{"0":1}}', "CheckpointError: .*other-0"),
    ('{"TOPIC":{"0":-1}}', r"CheckpointError: .*-0\b.* -1\b"),
    ("7", "CheckpointError: .*7"),
)


def test_a_checkpoint_with_invalid_offsets(
    streams: StreamRunner, topic: TopicFactory, produce: Produce
) -> None:
    name = topic()
    produce(name, ["a"])
    streams.available_now(subscribe=name, startingOffsets="earliest")
    produce(name, ["b"])
    log = streams.checkpoint / "offsets" / "0"
    header = log.read_text().splitlines()[:2]
    (log.parent / ".0.crc").unlink()
    for offset, message in INVALID:
        log.write_text("\n".join([*header, offset.replace("TOPIC", name)]))
        with pytest.raises(PySparkException, match=message):
            streams.available_now(subscribe=name)


def produce_to_new_partition(
    bootstrap: str, topic: str, partition: int, values: Sequence[str]
) -> None:
    """Write records with a new producer, whose metadata contains the partition."""
    writer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
    for value in values:
        writer.produce(topic, value, partition=partition)
    assert writer.flush(30) == 0


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(30)
