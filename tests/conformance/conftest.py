"""Fixtures: clusters, a group with a coordinator, and `client`, once for each of two clients.

A test for both versions of Kafka's transactions is marked, and all its fixtures (`cluster`, `raw`,
`topic`, `client`, `nodes`, ...) then use a cluster with that version:

    @both_transaction_versions
    def test_...(transaction_version: int, raw: RawConnection) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.clients import Client, Confluent, KafkaPython
from tests.conformance.groups import group_coordinated_by
from tests.conformance.nodes import RACKS, SETTINGS, Nodes
from tests.conformance.transaction_versions import LATEST_TRANSACTION_VERSION
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    Generation,
    TransactionalProducer,
)
from tests.conftest import BROKERS_OF_CONFORMANCE, brokers_of_run, open_cluster

Clusters = Callable[..., Cluster]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with a transactional producer in both versions, of cluster and client alike.

    Tests that are slow in the newest version run only once in `make test`. Old clients of a new
    cluster have tests of their own (above all `test_transactions_mixed.py`). `old_clients` marks
    the tests here that end transactions on behalf of a client, because the coordinator then uses
    the version of the client's requests.
    """
    if not {"generation", "transaction_version"} <= set(metafunc.fixturenames):
        return
    is_slow = metafunc.definition.get_closest_marker("slow") is not None
    first = pytest.param(
        1, VERSION_1, id="transactions-1", marks=[pytest.mark.full] if is_slow else []
    )
    second = pytest.param(LATEST_TRANSACTION_VERSION, VERSION_2, id="transactions-2")
    both = [first, second]
    if metafunc.definition.get_closest_marker("old_clients") is not None:
        both.append(
            pytest.param(
                LATEST_TRANSACTION_VERSION, VERSION_1, id="old-client", marks=pytest.mark.full
            )
        )
    metafunc.parametrize(("transaction_version", "generation"), both, indirect=True)


@pytest.fixture(scope="package")
def transaction_version(request: pytest.FixtureRequest) -> int:
    """The `transaction.version` of the test's clusters; `both_transaction_versions` chooses it."""
    return int(getattr(request, "param", LATEST_TRANSACTION_VERSION))


@pytest.fixture(scope="package")
def clusters_of_package(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """Start a cluster, or return the one that was started with the same arguments.

    Tests of both versions alternate, and a cluster takes seconds to start.
    """
    with ExitStack() as stack:
        yield _each_once(request.config, stack)


@pytest.fixture(scope="module")
def clusters_of_processes(
    request: pytest.FixtureRequest, clusters_of_package: Clusters
) -> Iterator[Clusters]:
    """Start clusters of processes, which tests can `kill -9`, once per module."""
    if request.config.getoption("--cluster") != "reference":
        yield clusters_of_package
        return
    with ExitStack() as stack:
        yield _each_once(request.config, stack, backend="reference-processes")


def _each_once(config: pytest.Config, stack: ExitStack, **always: Any) -> Clusters:
    opened: dict[str, Cluster] = {}

    def start(*, transaction_version: int, **options: Any) -> Cluster:
        key = repr((transaction_version, sorted(options.items())))
        if key not in opened:
            # The features that a cluster finalizes by default are tested too.
            if transaction_version != LATEST_TRANSACTION_VERSION:
                options["features"] = {"transaction.version": transaction_version}
            opened[key] = stack.enter_context(open_cluster(config, **always, **options))
        return opened[key]

    return start


@pytest.fixture(scope="package")
def cluster(
    request: pytest.FixtureRequest, clusters_of_package: Clusters, transaction_version: int
) -> Cluster:
    """The cluster of these tests, with as many brokers as `--brokers`."""
    count = brokers_of_run(request.config, default=BROKERS_OF_CONFORMANCE)
    return clusters_of_package(transaction_version=transaction_version, brokers=count)


@pytest.fixture(scope="package")
def bootstrap(cluster: Cluster) -> str:
    """The bootstrap servers of `cluster`."""
    return cluster.bootstrap_servers


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A third-party client of the cluster."""
    made: Client = request.param(bootstrap)
    return made


@pytest.fixture
def new_group(
    raw: RawConnection, cluster: Cluster, unique_name: Callable[[], str]
) -> Callable[[], str]:
    """Create group ids whose coordinator is the broker of `raw`, and ready."""
    return lambda: group_coordinated_by(raw, cluster.broker_ids[0], unique_name)


@pytest.fixture
def group(new_group: Callable[[], str]) -> str:
    """A group id whose coordinator is the broker of `raw`, and ready."""
    return new_group()


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[Connections]:
    """Connections to the brokers of `cluster`."""
    with Connections(cluster) as connections:
        yield connections


@pytest.fixture
def generation(request: pytest.FixtureRequest) -> Generation:
    """The request versions of the client; see `pytest_generate_tests`."""
    made: Generation = request.param
    return made


@pytest.fixture
def commit(generation: Generation) -> bool:
    """Whether the only transaction of a slow test commits; both markers behave the same."""
    return generation.bumps_epoch


@pytest.fixture
def new_producer(
    brokers: Connections, generation: Generation, unique_name: Callable[[], str]
) -> Callable[..., TransactionalProducer]:
    """Create initialized producers, with a new or the given transactional id."""

    def make(transactional_id: str | None = None, **options: int) -> TransactionalProducer:
        name = unique_name() if transactional_id is None else transactional_id
        return TransactionalProducer(brokers, name, generation, **options).init()

    return make


@pytest.fixture
def producer(new_producer: Callable[..., TransactionalProducer]) -> TransactionalProducer:
    """A transactional producer without a transaction."""
    return new_producer()


@pytest.fixture(scope="package")
def one_broker(clusters_of_package: Clusters, transaction_version: int) -> Cluster:
    """One broker, whatever `--brokers` is, that compacts often and is never stopped."""
    return clusters_of_package(
        transaction_version=transaction_version, configs={"log.cleaner.backoff.ms": "100"}
    )


@pytest.fixture(scope="package")
def three_brokers(clusters_of_package: Clusters, transaction_version: int) -> Cluster:
    """Three brokers in three racks, whatever `--brokers` is; `nodes` may stop them."""
    return clusters_of_package(
        transaction_version=transaction_version, brokers=3, racks=RACKS, configs=SETTINGS
    )


@pytest.fixture
def nodes(three_brokers: Cluster) -> Iterator[Nodes]:
    """Three running brokers, which the test may stop."""
    made = Nodes(three_brokers)
    try:
        yield made
    finally:
        made.restore()
