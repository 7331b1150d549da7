"""Tests of exactly-once processing (KIP-98, KIP-447).

A worker reads records, writes a result for each record, and commits its offsets in the same
transaction. The worker can die at any step. The next worker with the same transactional id
continues at the committed offset. A `read_committed` consumer reads each result once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.eventually import eventually
from tests.conformance.groups import committed, find_coordinator
from tests.conformance.isolation import await_read, read
from tests.conformance.nodes import RACKS, SETTINGS, Nodes
from tests.conformance.transaction_states import describe_transaction
from tests.conformance.transactions import (
    TransactionalProducer,
    code_of,
    coordinator_id,
    retried,
)
from tests.conformance.wire import LATEST, READ_COMMITTED, append, list_offset, only

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
ProducerFactory = Callable[..., TransactionalProducer]
STEPS = ("begin", "written", "added", "offsets", "decided", "acknowledged")
"""The steps after which a worker dies: the start, the records, AddOffsetsToTxn, the offsets, an
EndTxn request whose response is lost, and the response to EndTxn."""


class Worker:
    """A worker that copies records to another topic, two at a time, and dies at a given step."""

    def __init__(
        self, raw: RawConnection, producer: TransactionalProducer, group: str, topics: list[str]
    ) -> None:
        self._raw = raw
        self._producer = producer
        self._group = group
        self._source, self._sink = topics

    def position(self) -> int:
        """Return the committed offset; like a consumer, wait until no transaction changes it."""
        requested = [
            {
                "group_id": self._group,
                "topics": [{"name": self._source, "partition_indexes": [0]}],
            }
        ]
        offsets: list[int] = []

        def is_stable() -> bool:
            response = self._raw.call("offset_fetch", 9, groups=requested, require_stable=True)
            found = only(only(only(response.groups).topics).partitions)
            offsets[:] = [found.committed_offset]
            return bool(found.error_code != ErrorCode.unstable_offset_commit)

        eventually(is_stable)
        return max(offsets[0], 0)

    def work(self, *, dies_at: str | None) -> bool:
        """Process the next two records in one transaction; return False if there are none."""
        position = self.position()
        inputs = read(self._raw, self._source, offset=position)[:2]
        if not inputs or dies_at == "begin":
            return bool(inputs)
        producer = self._producer
        for text in inputs:
            producer.write(self._sink, f"result of {text}")
        if dies_at == "written":
            return True
        if not producer.generation.adds_implicitly:
            producer.add_offsets(self._group)
        if dies_at == "added":
            return True
        producer.commit_offsets(self._group, self._source, {0: position + len(inputs)})
        if dies_at == "offsets":
            return True
        if dies_at == "decided":
            assert code_of(producer.end_once(commit=True)) == ErrorCode.none
            return True
        producer.commit()
        return True


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_results_are_exactly_once_if_a_worker_dies_at_any_step(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    new_producer: ProducerFactory,
    *,
    step: str,
) -> None:
    source, sink = topic(), topic()
    inputs = [f"{number}" for number in range(5)]
    for text in inputs:
        append(raw, source, batch(values(text)))
    transactional_id = f"worker of {source}"
    deaths = 0
    while True:
        producer = new_producer(transactional_id)
        worker = Worker(raw, producer, group, [source, sink])
        if deaths < 3:
            deaths += 1
            worker.work(dies_at=step)
            continue
        while worker.work(dies_at=None):
            pass
        break
    await_read(raw, sink, *(f"result of {text}" for text in inputs))
    assert committed(raw, group, source)[0][0] == len(inputs)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_fenced_worker_is_refused_at_any_step(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    new_producer: ProducerFactory,
    *,
    step: str,
) -> None:
    """The worker was slow and has been replaced; the brokers reject all its requests."""
    source, sink = topic(), topic()
    append(raw, source, batch(values("a", "b", "c")))
    zombie = new_producer()
    Worker(raw, zombie, group, [source, sink]).work(dies_at=step)
    new = new_producer(zombie.transactional_id)
    worker = Worker(raw, new, group, [source, sink])
    while worker.work(dies_at=None):
        pass
    new.await_complete()
    ends = list_offset(raw, sink, LATEST).offset
    fenced, old = ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
    assert zombie.add_once(sink) == [fenced]
    assert zombie.produce_once(sink, "result of d").error_code == old
    assert zombie.add_offsets_once(group) == fenced
    assert zombie.commit_offsets_once(group, source, {0: 1}) == [old]
    for commit in (True, False):
        assert code_of(retried(lambda c=commit: zombie.end_once(commit=c))) == fenced  # type: ignore[misc]
    identity = {"producer_id": zombie.producer_id, "producer_epoch": zombie.epoch}
    assert code_of(retried(lambda: zombie.init_once(**identity))) == fenced
    await_read(raw, sink, "result of a", "result of b", "result of c")
    assert committed(raw, group, source)[0][0] == 3
    # The rejected requests have opened no transaction, which would block consumers.
    assert list_offset(raw, sink, LATEST, isolation_level=READ_COMMITTED).offset == ends


# Pipelines of a third-party client while brokers are killed.


class Pipeline:
    """A pipeline of librdkafka clients that copies all records of one topic to another."""

    def __init__(self, cluster: Cluster, group: str, source: str, sink: str, count: int) -> None:
        self._cluster = cluster
        self._group = group
        self._source, self._sink, self._count = source, sink, count
        self._is_stopped = threading.Event()
        self.committed = 0
        self.step = "not started"
        self.errors: list[str] = []

    def run(self) -> None:
        common = {"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 2}
        consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        producer = confluent_kafka.Producer(
            {**common, "transactional.id": f"id of {self._source}", "linger.ms": 1}
        )
        try:
            producer.init_transactions(60)
            consumer.assign([self._start(consumer)])
            while self.committed < self._count and not self._is_stopped.is_set():
                self._step(consumer, producer)
                self.step = "between transactions"
        except confluent_kafka.KafkaException as error:
            self.errors.append(str(error))
        finally:
            consumer.close()

    def stop(self) -> None:
        self._is_stopped.set()

    def report(self, nodes: Nodes) -> str:
        """Return the progress of the pipeline, and the state of the brokers."""
        transactional_id = f"id of {self._source}"
        coordinator = coordinator_id(nodes.any(), transactional_id)
        known = describe_transaction(nodes.to(coordinator), transactional_id)
        states = [nodes.state(self._sink, partition) for partition in range(3)]
        states.append(nodes.state(self._source))
        return f"committed up to {self.committed}, then {self.step}; {known}; {states}"

    def _start(self, consumer: confluent_kafka.Consumer) -> confluent_kafka.TopicPartition:
        requested = confluent_kafka.TopicPartition(self._source, 0)
        (found,) = consumer.committed([requested], timeout=60)
        self.committed = max(found.offset, 0)
        return confluent_kafka.TopicPartition(self._source, 0, self.committed)

    def _step(self, consumer: confluent_kafka.Consumer, producer: confluent_kafka.Producer) -> None:
        messages = [m for m in consumer.consume(5, timeout=0.2) if m.error() is None]
        if not messages:
            return
        self.step = "writing"
        try:
            producer.begin_transaction()
            for message in messages:
                value = message.value() or b""
                producer.produce(self._sink, value, partition=int(value) % 3)
            end = (messages[-1].offset() or 0) + 1
            offsets = [confluent_kafka.TopicPartition(self._source, 0, end)]
            self.step = "sending offsets"
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            self.step = "committing"
            _commit(producer)
        except confluent_kafka.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.step = f"aborting, after {error}"
            producer.abort_transaction(60)
            consumer.seek(self._start(consumer))
        else:
            self.committed = end


def _commit(producer: confluent_kafka.Producer) -> None:
    """Commit the transaction, with retries while the error is retriable."""
    for attempts_left in reversed(range(10)):
        try:
            producer.commit_transaction(30)
        except confluent_kafka.KafkaException as error:
            if attempts_left == 0 or not error.args[0].retriable():
                raise
        else:
            return


@contextmanager
def running(pipeline: Pipeline, nodes: Nodes) -> Iterator[None]:
    thread = threading.Thread(target=pipeline.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(100)
        late = pipeline.report(nodes) if thread.is_alive() else ""
        pipeline.stop()
        thread.join(60)
    assert not pipeline.errors
    assert not late, late


@pytest.fixture
def three_brokers(
    clusters_of_processes: Callable[..., Cluster], transaction_version: int
) -> Cluster:
    """Return the brokers of `nodes` as processes, because the tests `kill -9` them."""
    return clusters_of_processes(
        transaction_version=transaction_version, brokers=3, racks=RACKS, configs=SETTINGS
    )


def _led_by(nodes: Nodes, group: str) -> int:
    return int(only(find_coordinator(nodes.any(), group).coordinators).node_id)


@pytest.mark.slow
@pytest.mark.full
def test_pipeline_survives_broker_failures(nodes: Nodes, unique_name: NameFactory) -> None:
    count = 300
    source = nodes.create(unique_name(), [1, 2, 3], **{"min.insync.replicas": "2"})
    sink = nodes.create(
        unique_name(), [1, 2, 3], [2, 3, 1], [3, 1, 2], **{"min.insync.replicas": "2"}
    )
    append(nodes.to(1), source, batch(values(*(f"{number}" for number in range(count)))))
    coordinator = coordinator_id(nodes.any(), f"id of {source}")
    # The test does not kill the group coordinator: librdkafka may then wait forever (issue 5511).
    group = unique_name()
    while (spared := _led_by(nodes, group)) == coordinator:
        group = unique_name()
    pipeline = Pipeline(nodes.cluster, group, source, sink, count)
    with running(pipeline, nodes):
        eventually(lambda: pipeline.committed >= 20 or bool(pipeline.errors))
        assert coordinator_id(nodes.any(), f"id of {source}") == coordinator
        nodes.kill(coordinator)
        reached = pipeline.committed
        eventually(
            lambda: pipeline.committed >= reached + 20 or bool(pipeline.errors), timeout_s=60
        )
        nodes.start(coordinator)
        nodes.kill(next(b for b in nodes.running if b not in (coordinator, spared)))
    for partition in range(3):
        leader = nodes.to(nodes.await_leader(sink, *nodes.running, partition=partition).leader)
        expected = [f"{number}" for number in range(count) if number % 3 == partition]
        await_read(leader, sink, *expected, partition=partition)
