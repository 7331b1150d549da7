"""A pytest fixture: a Kafka broker for your tests, without Docker or a JVM.

Purpose: every project that has this package installed can write

    def test_orders(kafka_cluster):
        kafka_cluster.create_topic("orders", partitions=2)
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})

Invariant: pytest imports this module in all those projects, so it imports nothing of the broker
until the fixture is used. Must not know: how a cluster runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker_ref import Cluster


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[Cluster]:
    """A running `broker_ref.Cluster` for the whole test session.

    `kafka_cluster.bootstrap_servers` is what a client connects to (127.0.0.1 and a free port);
    `kafka_cluster.create_topic(name, partitions=1, configs=None)` makes a topic. Tests share the
    cluster, so give each test topics and groups of its own. Needs other broker settings? Use
    `broker_ref.Cluster(configs={...})` as a context manager in a fixture of yours.
    """
    from broker_ref import Cluster  # noqa: PLC0415 (pytest imports this module everywhere)

    with Cluster() as cluster:
        yield cluster
