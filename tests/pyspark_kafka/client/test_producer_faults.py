"""Tests that every row is written once and in order while brokers fail.

Brokers die, restart and hang, and responses are lost. The producer writes continuously, so that
requests are usually in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pytest

from integration.clusters import Cluster
from integration.faults.proxy import TcpProxy
from integration.faults.rules import of_api
from tests.conformance.eventually import eventually
from tests.conformance.nodes import Nodes
from tests.conftest import ClusterFactory, TopicFactory
from tests.pyspark_kafka.client.records import Writes, read_all, rows, writing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("engine")]

SETTINGS = {
    # A dead broker is detected soon.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "auto.leader.rebalance.enable": "false",
}
EACH_LEADS_ONE = ([1, 2, 3], [2, 3, 1], [3, 1, 2])
MIN_ISR = {"min.insync.replicas": "2"}
ROWS = 200
NameFactory = Callable[[], str]


class Load(threading.Thread):
    """A thread that writes numbered rows to all partitions in turn, and flushes when it is stopped.

    The batches are small, so that several are in flight for each partition. `sent` counts the
    calls.
    """

    def __init__(self, client: Writes, topic: str, partitions: int) -> None:
        super().__init__(name="load", daemon=True)
        self.sent = 0
        self.failed: BaseException | None = None
        self._producer = client.producer()
        self._topic = topic
        self._partitions = partitions
        self._stop_requested = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_requested.wait(timeout=0.01):  # the rate of a live source
                numbers = range(self.sent * ROWS, (self.sent + 1) * ROWS)
                values = [b"%09d" % number for number in numbers]
                partitions = [number % self._partitions for number in numbers]
                self._producer.send(rows(self._topic, values, partition=partitions))
                self.sent += 1
            self._producer.flush()
            self._producer.close()
        except BaseException as error:
            self.failed = error
            self._producer.abort()

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
        """Check that every row was written once, and that each partition is in order."""
        found = read_all(bootstrap, self._topic, partitions=self._partitions)
        for partition in range(self._partitions):
            numbers = [int(r.value or b"") for r in found if r.partition == partition]
            assert numbers == list(range(partition, self.sent * ROWS, self._partitions))


SMALL = {"batch_size": "1000", "buffer_memory": "131072", "retry_backoff_max_ms": "200"}


@pytest.fixture(scope="module")
def cluster_of_three(cluster_with: ClusterFactory) -> Cluster:
    return cluster_with(SETTINGS, brokers=3)


@pytest.fixture
def nodes(cluster_of_three: Cluster) -> Iterator[Nodes]:
    made = Nodes(cluster_of_three)
    try:
        yield made
    finally:
        made.restore()


@pytest.mark.full
def test_leaders_are_killed_and_stopped_in_turn(nodes: Nodes, unique_name: NameFactory) -> None:
    bootstrap = nodes.cluster.bootstrap_servers
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    with writing(bootstrap, **SMALL) as client, Load(client, name, 3) as load:
        load.await_progress()
        for broker_id, take_away in ((1, nodes.kill), (2, nodes.stop)):
            take_away(broker_id)
            load.await_progress()
            nodes.start(broker_id)
            for partition in range(3):
                nodes.await_isr(name, 1, 2, 3, partition=partition)
            load.await_progress()
        load.stop()
        load.check(bootstrap)


@pytest.mark.full
def test_hanging_leader_resumes_after_an_election(nodes: Nodes, unique_name: NameFactory) -> None:
    """The broker appends each request in its sockets once or not at all."""
    bootstrap = nodes.cluster.bootstrap_servers
    name = nodes.create(unique_name(), *EACH_LEADS_ONE, **MIN_ISR)
    settings = {**SMALL, "request_timeout_ms": "1000"}
    with writing(bootstrap, **settings) as client, Load(client, name, 3) as load:
        load.await_progress()
        nodes.pause(1)
        load.await_progress()
        nodes.resume(1)
        load.await_progress()
        load.stop()
        load.check(bootstrap)


@pytest.mark.full
def test_only_broker_restarts(cluster_with: ClusterFactory, unique_name: NameFactory) -> None:
    """A stopped broker restores only the last batch of each producer. A killed one follows."""
    cluster = cluster_with(SETTINGS)
    name = unique_name()
    cluster.create_topic(name, assignment=[[1], [1]])
    with writing(cluster.bootstrap_servers, **SMALL) as client, Load(client, name, 2) as load:
        load.await_progress()
        for take_away in (cluster.stop_broker, cluster.kill_broker):
            take_away(1)
            cluster.start_broker(1)
            load.await_progress()
        load.stop()
        load.check(cluster.bootstrap_servers)


def test_requests_and_responses_are_dropped(
    bootstrap: str, topic: TopicFactory, engine: str
) -> None:
    if engine != "native":
        pytest.skip("librdkafka cannot be led through a proxy")
    name = topic(partitions=2)
    with (
        TcpProxy(bootstrap) as proxy,
        writing(bootstrap, via=proxy.address, **SMALL) as client,
        Load(client, name, 2) as load,
    ):
        for drop in (proxy.drop_responses, proxy.drop_requests, proxy.drop_responses):
            load.await_progress()
            drop(of_api("produce"), times=3).await_hits(3)
        load.await_progress()
        load.stop()
    load.check(bootstrap)
