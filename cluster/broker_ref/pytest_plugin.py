"""pytest fixtures that provide a Kafka cluster without Docker or a JVM.

In every project in which this package is installed, tests can use the fixtures:

    def test_orders(kafka_cluster):
        kafka_cluster.create_topic("orders", partitions=2)
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})

    def test_login(secured_kafka_cluster):
        producer = confluent_kafka.Producer(secured_kafka_cluster.client_settings().librdkafka())

pytest imports this module in every such project, so this module must not import the cluster before
a fixture is used.
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
    the cluster, so each test should use its own topics and groups. For other broker configs, write
    a fixture that uses `broker_ref.Cluster(configs={...})` as a context manager.
    """
    from broker_ref import Cluster  # noqa: PLC0415 (see the module's docstring)

    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secured_kafka_cluster() -> Iterator[Cluster]:
    """Yield a running `broker_ref.Cluster` that uses SASL_SSL, for the test session.

    `secured_kafka_cluster.client_settings()` returns the settings that clients need. The methods
    `librdkafka()`, `java()` and `data_source()` of the result convert them to the format that each
    client expects. This fixture requires `pip install 'broker-ref[secure]'`. For another protocol,
    write a fixture that uses `broker_ref.Cluster(security=broker_ref.Security(...))`.
    """
    from broker_ref import Cluster, Security  # noqa: PLC0415 (see the module's docstring)

    with Cluster(security=Security()) as cluster:
        yield cluster
