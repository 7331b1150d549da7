"""A cluster of processes, as operators have them, and Apache Kafka's tools for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration import clusters
from integration.clusters import Cluster
from integration.kafka_tools import KafkaTools
from tests.conftest import BROKERS_OF_CONFORMANCE


@pytest.fixture(scope="package")
def processes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose brokers are processes: that of the run, if its brokers are."""
    if request.config.getoption("--cluster") != "reference":
        yield request.getfixturevalue("cluster")
        return
    with clusters.open_cluster("reference-processes", brokers=BROKERS_OF_CONFORMANCE) as opened:
        yield opened


@pytest.fixture(scope="package")
def tools(processes: Cluster) -> Iterator[KafkaTools]:
    """Apache Kafka's tools; a test that asks is skipped where they cannot be had."""
    try:
        opened = KafkaTools(processes.bootstrap_servers)
    except clusters.ClusterUnavailable as reason:
        pytest.skip(str(reason))
    with opened:
        yield opened


@pytest.fixture
def replicas(processes: Cluster) -> int:
    """How many replicas a topic can have here."""
    return len(processes.broker_ids)
