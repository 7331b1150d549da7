"""Tests of a `broker_ref.Cluster` of three brokers over sockets, while one of them fails."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.faults import Match, Sender
from broker_ref.io.cluster import Cluster, ClusterError
from broker_ref.io.disk import DiskFile
from broker_ref.io.operations import (
    OperationError,
    live_brokers,
    move_leader,
    partition_info,
)
from broker_ref.log.storage import StorageError
from tests.broker_ref.io.test_cluster import produce
from tests.conformance.eventually import eventually

pytestmark = pytest.mark.slow

PRODUCE = 0
BROKERS = {1, 2, 3}
SHORT_TIMEOUTS = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "100",
    "replica.lag.time.max.ms": "4000",
    "default.replication.factor": "3",
}
"""Timeouts that detect a dead broker soon, but tolerate a slow machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run three brokers; each test must leave all of them running."""
    with Cluster(3, configs=SHORT_TIMEOUTS, racks={1: "a", 2: "b", 3: "c"}) as made:
        yield made


def create_topic(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic)
    for broker_id in cluster.broker_ids:
        eventually(functools.partial(is_known, cluster.address(broker_id), topic))


def is_known(address: str, topic: str) -> bool:
    with contextlib.suppress(OperationError):
        return partition_info(address, topic, 0).leader_id in BROKERS
    return False


def consume(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "log_level": 2,
        "group.id": "none",
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, timeout=20)
        assert [message.error() for message in messages] == [None] * count
        return [message.value() for message in messages]
    finally:
        consumer.close()


def leader_of(cluster: Cluster, topic: str) -> int:
    return partition_info(cluster.bootstrap_servers, topic, 0).leader_id


def await_in_sync(cluster: Cluster, topic: str) -> None:
    eventually(lambda: set(partition_info(cluster.bootstrap_servers, topic, 0).isr) == BROKERS)


def test_brokers_have_separate_addresses_directories_and_racks(cluster: Cluster) -> None:
    addresses = cluster.bootstrap_servers.split(",")
    assert addresses == [cluster.address(each) for each in cluster.broker_ids]
    assert len({cluster.data_directory(each) for each in cluster.broker_ids}) == 3
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    nodes = admin.describe_cluster().result(timeout=20).nodes
    advertised = {node.id: (f"{node.host}:{node.port}", node.rack) for node in nodes}
    racks = zip(addresses, "abc", strict=True)
    assert advertised == dict(zip(cluster.broker_ids, racks, strict=True))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_acknowledged_records_survive_any_broker(cluster: Cluster, how: str) -> None:
    topic = f"outlives-{how}"
    create_topic(cluster, topic)
    produce(cluster, topic, b"one")
    leader = leader_of(cluster, topic)
    end = cluster.stop_broker if how == "stop" else cluster.kill_broker
    end(leader)
    produce(cluster, topic, b"two")
    assert consume(cluster, topic, 2) == [b"one", b"two"]
    eventually(lambda: live_brokers(cluster.bootstrap_servers) == BROKERS - {leader})
    cluster.start_broker(leader)
    await_in_sync(cluster, topic)
    move_leader(cluster.bootstrap_servers, topic, 0, to=leader)
    assert consume(cluster, topic, 2) == [b"one", b"two"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_brokers_serve_without_their_controller(cluster: Cluster, how: str) -> None:
    topic = f"alone-{how}"
    create_topic(cluster, topic)
    before = partition_info(cluster.bootstrap_servers, topic, 0)
    end = cluster.stop_controller if how == "stop" else cluster.kill_controller
    end()
    try:
        produce(cluster, topic, b"one")
        assert consume(cluster, topic, 1) == [b"one"]
    finally:
        cluster.start_controller()
    create_topic(cluster, f"{topic}-and-after")
    assert partition_info(cluster.bootstrap_servers, topic, 0) == before


def test_faults_reach_the_brokers(cluster: Cluster) -> None:
    topic = "lost-answer"
    create_topic(cluster, topic)
    match = Match(api_keys=frozenset({PRODUCE}), sender=Sender.CLIENT, topic=topic)
    with cluster.faults.drop_response(match, times=1) as rule:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "log_level": 2,
                "enable.idempotence": True,
            }
        )
        producer.produce(topic, b"once")
        assert producer.flush(20) == 0
        assert rule.hits == 1
    produce(cluster, topic, b"last")
    assert consume(cluster, topic, 2) == [b"once", b"last"]


def test_an_isolated_broker_is_fenced_and_rejoins(cluster: Cluster) -> None:
    topic = "cut-off"
    create_topic(cluster, topic)
    leader = leader_of(cluster, topic)
    others = BROKERS - {leader}
    bootstrap_servers = ",".join(cluster.address(each) for each in others)
    cluster.faults.isolate(leader, [*others, CONTROLLER_ID])
    try:
        eventually(lambda: partition_info(bootstrap_servers, topic, 0).leader_id in others)
    finally:
        cluster.faults.heal_all()
    await_in_sync(cluster, topic)
    eventually(lambda: live_brokers(cluster.bootstrap_servers) == BROKERS)


def test_a_broker_with_a_failed_disk_stops(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "no-space"
    create_topic(cluster, topic)
    leader = leader_of(cluster, topic)
    append = DiskFile.append
    failed: list[str] = []

    def full(file: DiskFile, data: bytes | bytearray | memoryview) -> None:
        """Fail the first append to the topic, which is the leader's."""
        if file.path.startswith(f"{topic}-0/") and not failed:
            failed.append(file.path)
            raise StorageError(f"Cannot append {file.path}: No space left on device.")
        append(file, data)

    monkeypatch.setattr(DiskFile, "append", full)
    produce(cluster, topic, b"one")
    assert failed
    with pytest.raises(ClusterError, match=rf"(?i)broker {leader}\b"):
        cluster.kill_broker(leader)
    cluster.start_broker(leader)
    await_in_sync(cluster, topic)
    assert consume(cluster, topic, 1) == [b"one"]
