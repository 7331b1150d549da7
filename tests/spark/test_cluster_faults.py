"""Reads and writes through Spark while brokers are killed and restarted, and topics grow.

Every row is read or written exactly once. Without a leader, an error is raised within a time limit.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration.clusters import Cluster
from integration.clusters.topics import grow_topic
from tests.conformance.eventually import eventually
from tests.conformance.groups import await_coordinator, commit, find_coordinator
from tests.conformance.nodes import Nodes
from tests.conformance.wire import only
from tests.conftest import ClusterFactory
from tests.pyspark_kafka.client.records import read_all
from tests.spark import engines
from tests.spark.conftest import Produce, Reader
from tests.spark.gate import Gate
from tests.spark.streams import StreamRunner

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = {
    # The controller detects killed brokers quickly.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    # Leadership does not move back to the preferred leader.
    "auto.leader.rebalance.enable": "false",
}
EACH_LEADS_ONE = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
MIN_ISR = {"min.insync.replicas": "2"}
SMALL_FETCHES = {
    # The client prefetches little, so that it reads most records after the gate opens.
    "kafka.max.partition.fetch.bytes": "1",
    "kafka.queued.max.messages.kbytes": "64",
    "kafka.queued.min.messages": "1",
}
BOUNDED_S = 30.0
NameFactory = Callable[[], str]


@pytest.fixture(scope="module")
def cluster_of_three(cluster_with: ClusterFactory) -> Cluster:
    return cluster_with(SETTINGS, brokers=3)


@pytest.fixture
def bootstrap(cluster_of_three: Cluster) -> str:
    """Return the bootstrap servers of the three-broker cluster, for all fixtures."""
    return cluster_of_three.bootstrap_servers


@pytest.fixture
def nodes(cluster_of_three: Cluster) -> Iterator[Nodes]:
    """Return three running brokers, which the test may stop."""
    made = Nodes(cluster_of_three)
    try:
        yield made
    finally:
        made.restore()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    try:
        yield made
    finally:
        made.open()


def numbered(
    bootstrap: str, topic: str, partitions: int, *, rows: int, value_bytes: int = 1
) -> set[tuple[int, int]]:
    """Write numbered rows to each partition. Return the partition and number of each row."""
    padding = b"x" * value_bytes
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 2,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    failed: list[object] = []
    for number in range(rows):
        for partition in range(partitions):
            producer.produce(
                topic,
                b"%08d" % number + padding,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
    assert producer.flush(60) == 0
    assert failed == []
    return {(partition, number) for partition in range(partitions) for number in range(rows)}


def through(gate: Gate, records: DataFrame) -> DataFrame:
    """Return the partitions and numbers of records that pass through the gate."""
    numbers = records.selectExpr("partition", "int(string(substring(value, 1, 8))) AS number")
    return numbers.mapInArrow(gate.rows(), numbers.schema)


def counted(rows: list[Any]) -> Counter[tuple[int, int]]:
    return Counter((row.partition, row.number) for row in rows)


@contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Run `work` in a thread. Yield a function that returns its result or raises its error."""
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(work)
        try:
            yield lambda: future.result(timeout=120)
        except AssertionError:
            if future.done():
                future.result()  # Raise the error of `work`, which is the cause.
            raise


def test_a_batch_read_continues_when_a_leader_is_killed_and_the_topic_grows(
    nodes: Nodes, bootstrap: str, read: Reader, gate: Gate, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    written = numbered(bootstrap, name, 3, rows=30_000, value_bytes=1_000)
    records = read(subscribe=name, startingOffsets="earliest", **SMALL_FETCHES)
    with in_background(lambda: through(gate, records).collect()) as rows:
        gate.await_tasks(2)  # Of three tasks, the last one starts after a leader is killed.
        nodes.kill(1)
        grow_topic(nodes.cluster.address(2), name, partitions=4)
        gate.open()
        assert counted(rows()) == Counter(written)


class Writer(threading.Thread):
    """Thread that writes numbered rows to all partitions until `stop`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name="row writer")
        self.rows = 0
        self.failed: list[str] = []
        self._topic = topic
        self._stop_requested = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 2,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 500,
                "sticky.partitioning.linger.ms": 0,
            }
        )

    def run(self) -> None:
        while not self._stop_requested.wait(timeout=0.02):  # Limit the rate of rows.
            for _ in range(10):
                self._producer.produce(self._topic, b"%d" % self.rows, on_delivery=self._on)
                self.rows += 1
            self._producer.poll(0)
        if self._producer.flush(90):
            self.failed.append("not all rows were acknowledged")

    def stop(self) -> int:
        self._stop_requested.set()
        self.join(timeout=100)
        return self.rows

    def _on(self, error: Any, _message: object) -> None:
        if error is not None:
            self.failed.append(str(error))


def test_a_stream_continues_when_brokers_stop_in_turn_and_the_topic_grows(
    nodes: Nodes, bootstrap: str, streams: StreamRunner, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    writer = Writer(bootstrap, name)
    writer.start()
    try:
        query = streams.start(subscribe=name, startingOffsets="earliest")

        def await_new_rows() -> None:
            target = writer.rows
            eventually(lambda: len(streams.values) > target or not query.isActive, timeout_s=60)
            assert query.exception() is None

        await_new_rows()
        for broker_id, stop_broker in ((1, nodes.kill), (2, nodes.stop), (3, nodes.kill)):
            stop_broker(broker_id)
            await_new_rows()
            nodes.start(broker_id)
            for partition in range(3):
                nodes.await_isr(name, 1, 2, 3, partition=partition)
            if broker_id == 1:
                grow_topic(nodes.cluster.address(2), name, partitions=6)
        await_new_rows()
    finally:
        rows = writer.stop()
    assert writer.failed == []
    eventually(lambda: len(streams.values) >= rows or not query.isActive, timeout_s=60)
    assert query.exception() is None
    assert Counter(map(int, streams.values)) == Counter(range(rows))
    partitions = {row.partition for batch in streams.batches.values() for row in batch}
    assert partitions == set(range(6))


def test_a_batch_write_continues_when_a_leader_is_killed(
    nodes: Nodes, spark: SparkSession, bootstrap: str, gate: Gate, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    rows = spark.range(0, 2, numPartitions=2).mapInArrow(gate.endless_rows(), "value binary")

    def kill_a_leader() -> None:
        gate.await_tasks(2)
        nodes.kill(1)
        gate.open()

    # `write` runs in this thread, because Spark looks up data sources in the thread's session.
    with in_background(kill_a_leader) as killed:
        write(rows, bootstrap, topic=name)
        killed()
    nodes.restore()
    found = Counter(record.value for record in read_all(bootstrap, name, partitions=3))
    assert found == Counter(gate.made())


def write(frame: DataFrame, bootstrap: str, **options: str) -> None:
    writer = engines.kafka(frame.write).option("kafka.bootstrap.servers", bootstrap)
    writer.options(**options).mode("append").save()


def test_a_streaming_write_continues_when_a_leader_is_killed(
    nodes: Nodes,
    spark: SparkSession,
    bootstrap: str,
    gate: Gate,
    unique_name: NameFactory,
) -> None:
    source = nodes.create(unique_name(), *EACH_LEADS_ONE[1:], **MIN_ISR)
    target = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    written = numbered(bootstrap, source, 2, rows=20_000)
    records = engines.kafka(spark.readStream).options(
        **{
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": source,
            "startingOffsets": "earliest",
        }
    )
    rows = records.load().selectExpr("concat(string(partition), ':', string(value)) AS value")
    copied = engines.kafka(rows.mapInArrow(gate.rows(), rows.schema).writeStream)
    query = (
        copied.option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", str(gate.directory.parent / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        gate.await_tasks(2)
        nodes.kill(1)
        gate.open()
        assert query.awaitTermination(90)
    finally:
        query.stop()
    assert query.exception() is None
    nodes.restore()
    found = Counter(record.value for record in read_all(bootstrap, target, partitions=3))
    assert found == Counter(b"%d:%08dx" % row for row in written)


def test_errors_of_reads_and_writes_without_a_leader(
    nodes: Nodes,
    bootstrap: str,
    read: Reader,
    gate: Gate,
    unique_name: NameFactory,
) -> None:
    name = nodes.create(unique_name(), [1])
    numbered(bootstrap, name, 1, rows=30_000, value_bytes=2_000)
    options = {
        "kafka.default.api.timeout.ms": "8000",
        "kafkaConsumer.pollTimeoutMs": "8000",
        **SMALL_FETCHES,
    }

    def records() -> DataFrame:
        return read(subscribe=name, startingOffsets="earliest", **options)

    with in_background(lambda: through(gate, records()).collect()) as rows:
        gate.await_tasks(1)
        nodes.kill(1)
        nodes.await_leader(name, -1)
        gate.open()
        fails(
            rows,
            rf"FetchTimeoutError: .*{name}-0.*'kafkaConsumer.pollTimeoutMs'",
        )
    fails(
        lambda: records().collect(),
        rf"LeaderNotAvailableError: .*{name}-0.*'kafka.default.api.timeout.ms'",
    )
    fails(
        lambda: write(
            records().sparkSession.sql("SELECT 'v' AS value, 0 AS partition"),
            bootstrap,
            topic=name,
            **{"kafka.delivery.timeout.ms": "3000"},
        ),
        rf"DeliveryError: .*{name}-0.*'kafka.delivery.timeout.ms'",
    )


def fails(work: Callable[[], Any], message: str) -> None:
    """Check that `work` fails within `BOUNDED_S` with this message and not with data loss."""
    started_s = time.monotonic()
    with pytest.raises(PySparkException, match=message) as caught:
        work()
    assert time.monotonic() - started_s < BOUNDED_S
    assert "DataLossError" not in str(caught.value)


def test_committed_offsets_are_read_after_their_coordinator_is_killed(
    nodes: Nodes, read: Reader, produce: Produce, unique_name: NameFactory
) -> None:
    name, group = nodes.create(unique_name(), [1, 2, 3], [2, 3, 1]), unique_name()
    produce(name, ["a", "b", "c"])
    produce(name, ["d", "e"], partition=1)
    find_coordinator(nodes.any(), group)
    coordinator = only(find_coordinator(nodes.any(), group).coordinators).node_id
    await_coordinator(nodes.to(coordinator), group)
    # The last commit is repeated. When followers have it, the earlier commits are replicated too.
    for partition, offset in ((0, 2), (1, 1), (1, 1)):
        code = commit(nodes.to(coordinator), group, name, offset, partition=partition)
        assert code == ErrorCode.none
    nodes.kill(coordinator)
    options = {"kafka.group.id": group, "startingOffsets": "committed"}
    rows = read(subscribe=name, **options).collect()
    assert sorted(row.value.decode() for row in rows) == ["c", "e"]
