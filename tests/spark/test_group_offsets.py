"""Offsets that streaming queries commit to a group, and reads that start at these offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from integration.kafka_tools import KafkaTools
from pyspark_kafka.source.spark_features import ADMISSION_CONTROL
from tests.conformance.eventually import eventually
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import read_all
from tests.spark import engines
from tests.spark.conftest import Produce, Reader
from tests.spark.failpoint import exactly_once_job, run_to_end
from tests.spark.streams import StreamRunner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def committed(bootstrap: str, group: str, topic: str, *, partitions: int = 2) -> list[int | None]:
    """Return the group's committed offsets by partition, as librdkafka returns them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    try:
        requested = [TopicPartition(topic, partition) for partition in range(partitions)]
        found = consumer.committed(requested, timeout=30)
    finally:
        consumer.close()
    return [None if result.offset < 0 else result.offset for result in found]


@pytest.mark.parametrize("engine", ["native", "librdkafka"])
def test_a_stream_commits_its_offsets_to_the_group(
    engine: str,
    streams: StreamRunner,
    bootstrap: str,
    topic: TopicFactory,
    produce: Produce,
) -> None:
    source = topic(partitions=2)
    group = f"group-of-{source}"
    options = {"subscribe": source, "startingOffsets": "earliest", "commitOffsets": "true"}
    options |= {"kafka.group.id": group, "engine": engine}
    produce(source, ["a", "b", "c"])
    streams.available_now(**options)
    if ADMISSION_CONTROL:
        assert committed(bootstrap, group, source) == [3, 0]
    produce(source, ["d"], partition=1)
    streams.available_now(**options)
    one_batch_behind = [3, 0]
    expected = [3, 1] if ADMISSION_CONTROL else one_batch_behind
    assert committed(bootstrap, group, source) == expected


def test_a_group_with_members_does_not_fail_the_stream(
    streams: StreamRunner,
    bootstrap: str,
    topic: TopicFactory,
    produce: Produce,
) -> None:
    source = topic(partitions=2)
    group = f"group-of-{source}"
    produce(source, ["a", "b", "c"])
    member = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    member.subscribe([source])

    def has_joined() -> bool:
        member.poll(0.1)
        return bool(member.assignment())

    try:
        eventually(has_joined)
        streams.available_now(
            subscribe=source,
            startingOffsets="earliest",
            commitOffsets="true",
            **{"kafka.group.id": group},
        )
    finally:
        member.close()
    assert streams.values == ["a", "b", "c"]
    assert committed(bootstrap, group, source) == [None, None]


def test_reads_start_at_the_committed_offsets_of_the_group(
    streams: StreamRunner,
    read: Reader,
    bootstrap: str,
    topic: TopicFactory,
    produce: Produce,
) -> None:
    source = topic(partitions=2)
    group = f"group-of-{source}"
    options = {"subscribe": source, "startingOffsets": "committed", "kafka.group.id": group}
    produce(source, ["a", "b", "c"])
    with pytest.raises(StreamingQueryException, match=f"OffsetError: .*'{group}'"):
        streams.available_now(**options)
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 2, "group.id": group})
    offsets = [TopicPartition(source, 0, 2), TopicPartition(source, 1, 0)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    assert [row.value for row in read(**options).collect()] == [b"c"]
    produce(source, ["d"], partition=1)
    streams.available_now(**options)
    if not ADMISSION_CONTROL:  # Available-now was one micro-batch, which was empty.
        streams.available_now(**options)
    assert sorted(streams.values) == ["c", "d"]


@pytest.fixture
def tools(bootstrap: str) -> Iterator[KafkaTools]:
    with KafkaTools(bootstrap) as opened:
        yield opened


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_killed_query_writes_rows_and_offsets_once(
    bootstrap: str,
    topic: TopicFactory,
    produce: Produce,
    tmp_path: Path,
    tools: KafkaTools,
) -> None:
    """The test kills the job immediately before the decision and immediately after it."""
    source, target = topic(partitions=2), topic(partitions=2)
    group = f"group-of-{source}"
    job = {
        "bootstrap": bootstrap,
        "source": source,
        "target": target,
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": {"commitOffsets": "true", "kafka.group.id": group},
    }
    produce(source, ["a", "b", "c"])
    with exactly_once_job("commit.verify.after", until_end=True, **job) as running:
        running.await_failpoint()
        assert read_all(bootstrap, target, partitions=2) == [], "rows are visible too early"
        running.kill()
    assert committed(bootstrap, group, source) == [None, None]
    with exactly_once_job("commit.decide.after", until_end=True, **job) as running:
        running.await_failpoint()
        running.kill()
    assert committed(bootstrap, group, source) == [3, 0], "the decision must include the offsets"
    produce(source, ["d"], partition=1)
    run_to_end(**job)
    values = [record.value or b"" for record in read_all(bootstrap, target, partitions=2)]
    assert sorted(values) == [b"a", b"b", b"c", b"d"]
    aborted = 3
    assert written_in_all(bootstrap, target) == aborted + 4, "the decided batch was written again"
    described = tools.run("consumer-groups", "--describe", "--group", group).rows
    (header,) = [row for row in described if "CURRENT-OFFSET" in row]
    columns = [header.index(name) for name in ("PARTITION", "CURRENT-OFFSET", "LAG")]
    found = [[row[column] for column in columns] for row in described if source in row]
    assert sorted(found) == [["0", "3", "0"], ["1", "1", "0"]]


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


def test_commit_offsets_of_a_sink_requires_the_checkpoint(
    spark: SparkSession, bootstrap: str, topic: TopicFactory, produce: Produce, tmp_path: Path
) -> None:
    source = topic()
    produce(source, ["a"])
    reader = engines.kafka(spark.readStream).option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", source).option("startingOffsets", "earliest").load()
    writer = (
        records.select("value")
        .writeStream.format("pyspark_kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic())
        .option("transactionalId", source)
        .option("commitOffsets", "true")
        .option("kafka.group.id", source)
    )
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path))
    try:
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match=r"OptionError: .*'checkpointLocation'"):
            query.awaitTermination(120)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
