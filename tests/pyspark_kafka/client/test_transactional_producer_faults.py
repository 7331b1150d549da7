"""Tests that a transaction's rows are written once and in order while brokers fail.

Brokers die, restart and hang, and responses are lost. The transaction coordinator is one of the
failing brokers. The producer writes continuously, so that requests are usually in flight. The three
partitions have different leaders at the start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pytest

from integration.clusters import Cluster
from integration.faults.proxy import TcpProxy
from integration.faults.rules import of_api
from pyspark_kafka.errors import ProducerFencedError
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionVersion
from tests.conformance.eventually import eventually
from tests.conformance.nodes import Nodes
from tests.conftest import open_cluster
from tests.pyspark_kafka.client.records import rows
from tests.pyspark_kafka.client.transactional import (
    Transaction,
    Transactions,
    await_seen,
    ends,
    seen,
    transactions,
)

pytestmark = [pytest.mark.slow, pytest.mark.full]

SETTINGS = {
    # A dead broker is detected soon.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
EACH_LEADS_ONE = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
MIN_ISR = {"min.insync.replicas": "2"}
SMALL: dict[str, Any] = {
    "batch_size": "1000",
    "buffer_memory": "131072",
    "retry_backoff_max_ms": "200",
}
TIMEOUT_MS = 600_000
ROWS = 200
PARTITIONS = 3
NameFactory = Callable[[], str]


@pytest.fixture(scope="module", params=[1, 2], ids=["transactions-1", "transactions-2"])
def version(request: pytest.FixtureRequest) -> TransactionVersion:
    found: TransactionVersion = request.param
    return found


@pytest.fixture(scope="module")
def three_brokers(request: pytest.FixtureRequest, version: TransactionVersion) -> Iterator[Cluster]:
    features = {"transaction.version": 1} if version == 1 else None
    with open_cluster(request.config, brokers=3, configs=SETTINGS, features=features) as opened:
        yield opened


@pytest.fixture(scope="module")
def one_broker(request: pytest.FixtureRequest, version: TransactionVersion) -> Iterator[Cluster]:
    features = {"transaction.version": 1} if version == 1 else None
    with open_cluster(request.config, brokers=1, configs=SETTINGS, features=features) as opened:
        yield opened


@pytest.fixture
def nodes(three_brokers: Cluster) -> Iterator[Nodes]:
    made = Nodes(three_brokers)
    try:
        yield made
    finally:
        made.restore()


class Load(threading.Thread):
    """A thread that writes numbered rows to all partitions in turn, and flushes when it is stopped.

    The batches are small, so that several are in flight for each partition. `sent` counts the
    calls.
    """

    def __init__(self, one: Transaction, topic: str) -> None:
        super().__init__(name="load", daemon=True)
        self.sent = 0
        self.failed: BaseException | None = None
        self._one = one
        self._topic = topic
        self._stop_requested = threading.Event()

    def run(self) -> None:
        producer = self._one.producer
        try:
            while not self._stop_requested.wait(timeout=0.01):  # the rate of a live source
                numbers = range(self.sent * ROWS, (self.sent + 1) * ROWS)
                values = [b"%09d" % number for number in numbers]
                partitions = [number % PARTITIONS for number in numbers]
                producer.send(rows(self._topic, values, partition=partitions))
                self.sent += 1
            producer.flush()
            producer.close()
        except BaseException as error:
            self.failed = error
            producer.abort()

    def await_progress(self) -> None:
        """Wait until more rows are sent than fit into the buffers, which means progress."""
        target = self.sent + 40
        eventually(lambda: self.sent >= target or self.failed is not None, timeout_s=90)
        assert self.failed is None

    def stop(self) -> None:
        self._stop_requested.set()
        self.join(timeout=100)
        assert not self.is_alive()
        if self.failed is not None:
            raise self.failed

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop_requested.set()
        self.join(timeout=100)

    def check(self, bootstrap: str) -> None:
        """Check that every row is visible once and in order after the commit."""
        assert seen(bootstrap, self._topic, partitions=PARTITIONS) == [[]] * PARTITIONS
        last_offsets = self._one.producer.last_offsets
        # A new leader needs fetches of its followers before it knows the high watermark.
        eventually(lambda: ends(bootstrap, self._topic, partitions=PARTITIONS) == last_offsets)
        self._one.commit()
        values = [b"%09d" % number for number in range(self.sent * ROWS)]
        of_partitions = [values[partition::PARTITIONS] for partition in range(PARTITIONS)]
        await_seen(bootstrap, self._topic, *of_partitions)


@pytest.fixture
def begun(three_brokers: Cluster, version: TransactionVersion) -> Iterator[Transactions]:
    with transactions(three_brokers.bootstrap_servers, version, **SMALL) as made:
        yield made


@pytest.mark.full
@pytest.mark.timeout(480)
def test_leaders_and_coordinators_are_killed_and_stopped_in_turn(
    nodes: Nodes, begun: Transactions, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    one = begun.begin(unique_name(), timeout_ms=TIMEOUT_MS)
    with Load(one, name) as load:
        load.await_progress()
        for broker_id, take_away in ((1, nodes.kill), (2, nodes.stop)):
            take_away(broker_id)
            load.await_progress()
            nodes.start(broker_id)
            for partition in range(PARTITIONS):
                nodes.await_isr(name, 1, 2, 3, partition=partition)
            load.await_progress()
        load.stop()
    load.check(nodes.cluster.bootstrap_servers)


def test_a_transaction_begins_while_a_broker_is_down(
    nodes: Nodes, begun: Transactions, unique_name: NameFactory
) -> None:
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    one = begun.begin(unique_name(), timeout_ms=TIMEOUT_MS)
    nodes.kill(1)
    with Load(one, name) as load:
        load.await_progress()
        nodes.start(1)
        load.await_progress()
        load.stop()
    load.check(nodes.cluster.bootstrap_servers)


def test_hanging_leader_resumes_after_an_election(
    nodes: Nodes, version: TransactionVersion, unique_name: NameFactory
) -> None:
    """The broker appends each request in its sockets once or not at all."""
    bootstrap = nodes.cluster.bootstrap_servers
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    settings: dict[str, Any] = {**SMALL, "request_timeout_ms": "1000"}
    with transactions(bootstrap, version, **settings) as begun:
        one = begun.begin(unique_name(), timeout_ms=TIMEOUT_MS)
        with Load(one, name) as load:
            load.await_progress()
            nodes.pause(1)
            load.await_progress()
            nodes.resume(1)
            load.await_progress()
            load.stop()
        load.check(bootstrap)


def test_the_id_is_taken_while_a_leader_is_down(
    nodes: Nodes, begun: Transactions, unique_name: NameFactory
) -> None:
    """The next producer of the id sees nothing that the previous producer wrote."""
    bootstrap, transactional_id = nodes.cluster.bootstrap_servers, unique_name()
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    one = begun.begin(transactional_id, timeout_ms=TIMEOUT_MS)
    with Load(one, name) as load:
        load.await_progress()
        nodes.kill(2)
        with transactions(bootstrap, begun.version, **SMALL) as others:
            other = others.begin(transactional_id)
            eventually(lambda: load.failed is not None, timeout_s=90)
            assert isinstance(load.failed, ProducerFencedError), load.failed
            other.producer.send(rows(name, [b"x"] * 3, partition=[0, 1, 2]))
            other.producer.flush()
            other.commit()
    nodes.start(2)
    await_seen(bootstrap, name, *[[b"x"]] * PARTITIONS)


def test_only_broker_restarts(
    one_broker: Cluster, version: TransactionVersion, unique_name: NameFactory
) -> None:
    """A stopped broker restores only the last batch of each producer. A killed one follows."""
    bootstrap, name = one_broker.bootstrap_servers, unique_name()
    one_broker.create_topic(name, assignment=[[1]] * PARTITIONS)
    with transactions(bootstrap, version, **SMALL) as begun:
        one = begun.begin(unique_name(), timeout_ms=TIMEOUT_MS)
        with Load(one, name) as load:
            load.await_progress()
            for take_away in (one_broker.stop_broker, one_broker.kill_broker):
                take_away(1)
                one_broker.start_broker(1)
                load.await_progress()
            load.stop()
        load.check(bootstrap)


def test_requests_and_responses_are_dropped(
    one_broker: Cluster, version: TransactionVersion, unique_name: NameFactory
) -> None:
    bootstrap, name = one_broker.bootstrap_servers, unique_name()
    one_broker.create_topic(name, assignment=[[1]] * PARTITIONS)
    group, source = unique_name(), TopicPartition(name, 0)
    with TcpProxy(bootstrap) as proxy, transactions(bootstrap, version, **SMALL) as begun:
        one = begun.begin(unique_name(), via=proxy.address, timeout_ms=TIMEOUT_MS)
        for drop in (proxy.drop_responses, proxy.drop_requests):
            drop(of_api("add_partitions_to_txn", "txn_offset_commit"), times=2)
        one.producer.send_offsets(group, {source: 5})
        with Load(one, name) as load:
            for drop in (proxy.drop_responses, proxy.drop_requests, proxy.drop_responses):
                drop(of_api("produce"), times=3).await_hits(3)
                load.await_progress()
            load.stop()
        load.check(bootstrap)
        assert begun.client.committed_offsets(group, [source]) == {source: 5}
