"""Tests with `kill -9` of every broker in turn under load.

No acknowledged record is lost, and the logs are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from integration.clusters import Cluster, open_cluster
from tests.broker_ref.scenarios.load import Load, await_all_read, read_all, under_load
from tests.broker_ref.scenarios.replica_files import assert_replicas_agree
from tests.conformance.nodes import Nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 3
ROUNDS = 2
SETTINGS = {
    "broker.session.timeout.ms": "2500",
    "broker.heartbeat.interval.ms": "400",
    "replica.lag.time.max.ms": "2000",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "3",
    "log.segment.bytes": "1048576",  # Each log has several segments.
}
TOPIC_CONFIGS = {"min.insync.replicas": "2"}


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with open_cluster("reference-processes", brokers=3, configs=SETTINGS) as cluster:
        made = Nodes(cluster)
        try:
            yield made
        finally:
            for broker_id in made.running:
                made.kill(broker_id)


def create(nodes: Nodes, topic: str) -> None:
    """Create a topic with one partition for each broker as leader."""
    nodes.create(topic, [1, 2, 3], [2, 3, 1], [3, 1, 2], **TOPIC_CONFIGS)


def await_all_in_sync(nodes: Nodes, topic: str) -> None:
    for partition in range(PARTITIONS):
        nodes.await_isr(topic, 1, 2, 3, partition=partition)


def check(nodes: Nodes, load: Load) -> None:
    """Check that every replica has all acknowledged records, byte for byte."""
    cluster = nodes.cluster
    await_all_read(load, lambda: read_all(cluster.bootstrap_servers, load.topic, PARTITIONS))
    await_all_in_sync(nodes, load.topic)
    directories = [cluster.data_directory(broker_id) for broker_id in cluster.broker_ids]
    assert_replicas_agree(directories, load.topic, load.sent)
    assert "Traceback" not in cluster.logs()


def kill_in_turn(nodes: Nodes, cluster: Cluster, load: Load, random: Random) -> None:
    """Kill each broker once, in random order, at random moments of the load."""
    for victim in random.sample(cluster.broker_ids, 3):
        load.await_more(random.randint(1, 1500))
        nodes.kill(victim)
        load.await_more(random.randint(1, 1500))
        nodes.start(victim)
        await_all_in_sync(nodes, load.topic)


def test_kill_brokers_and_controller_in_rounds(nodes: Nodes, seed: int) -> None:
    """The second broker is killed before the first is in sync. The controller is killed, too."""
    random = Random(seed)
    cluster = nodes.cluster
    create(nodes, "load")
    with under_load(cluster.bootstrap_servers, "load", PARTITIONS) as load:
        for _ in range(ROUNDS):
            kill_in_turn(nodes, cluster, load, random)
            load.await_more(random.randint(1, 1000))
            first, second, _ = random.sample(cluster.broker_ids, 3)
            cluster.kill_controller()
            nodes.kill(first)
            cluster.start_controller()
            nodes.start(first)
            nodes.kill(second)  # `first` may lack records that were written while it was down.
            nodes.start(second)
            load.await_more(random.randint(1, 1000))
            await_all_in_sync(nodes, "load")
    check(nodes, load)
