"""Fixtures: a cluster of processes, as operators run it, and Apache Kafka's tools."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from integration import clusters
from integration.clusters import Cluster
from integration.clusters.maven import KAFKA_CONNECT, KAFKA_STREAMS
from integration.java_programs import require_java_programs
from integration.kafka_tools import KafkaTools
from tests.conftest import BROKERS_OF_CONFORMANCE, ClusterFactory


@pytest.fixture(scope="package")
def processes_of_package() -> Iterator[Callable[[int], Cluster]]:
    """Start a reference cluster of processes, one for each transaction version."""
    with ExitStack() as stack:
        opened: dict[int, Cluster] = {}

        def start(transaction_version: int) -> Cluster:
            if transaction_version not in opened:
                opened[transaction_version] = stack.enter_context(
                    clusters.open_cluster(
                        "reference-processes",
                        brokers=BROKERS_OF_CONFORMANCE,
                        features={"transaction.version": transaction_version},
                    )
                )
            return opened[transaction_version]

        yield start


@pytest.fixture(scope="package")
def processes(
    request: pytest.FixtureRequest,
    processes_of_package: Callable[[int], Cluster],
    transaction_version: int,
) -> Cluster:
    """Return a cluster whose brokers are processes; if possible, the cluster of the run."""
    if request.config.getoption("--cluster") != "reference":
        of_run: Cluster = request.getfixturevalue("cluster")
        return of_run
    return processes_of_package(transaction_version)


@pytest.fixture(scope="session")
def java_programs() -> None:
    """Download Kafka Streams and Kafka Connect."""
    require_java_programs(KAFKA_STREAMS, KAFKA_CONNECT)


@pytest.fixture(scope="module")
def process_cluster_with(
    request: pytest.FixtureRequest, cluster_with: ClusterFactory
) -> ClusterFactory:
    """Return `cluster_with`, but all nodes of the cluster are processes."""
    if request.config.getoption("--cluster") == "reference":
        return functools.partial(cluster_with, backend="reference-processes")
    return cluster_with


@pytest.fixture(scope="package")
def tools(processes: Cluster) -> Iterator[KafkaTools]:
    """Return Apache Kafka's tools."""
    with KafkaTools(processes.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
def replicas(processes: Cluster) -> int:
    """Return the highest possible replication factor."""
    return len(processes.broker_ids)
