"""A pytest fixture that provides a Kafka broker without Docker or a JVM.

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
    """Yield a running `broker_ref.Cluster` for the test session.

    Clients connect to `kafka_cluster.bootstrap_servers` (127.0.0.1 and a free port).
    `kafka_cluster.create_topic(name, partitions=1, configs=None)` creates a topic. All tests share
    the cluster, so use separate topics and groups per test. For other broker configs, use
    `broker_ref.Cluster(configs={...})` as a context manager in your own fixture.
    """
    from broker_ref import Cluster  # noqa: PLC0415 (pytest imports this module everywhere)

    with Cluster() as cluster:
        yield cluster
