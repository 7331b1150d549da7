"""Fixtures for clusters, consumer groups, and `client`, a third-party client.

A test with `client` runs once with each of two clients. A test that covers both versions of Kafka's
transactions has a marker. Its fixtures (`cluster`, `raw`, `topic`, `client`, `nodes`, ...) then use
a cluster with that version:

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
from tests.conformance.acls import CONFIGS, SECURITY
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
    """Run tests that have a transactional producer with both versions of transactions.

    Cluster and client have the same version. `make test` runs slow tests only with the newest
    version. The marker `old_clients` adds an old client on a new cluster, for tests that end
    transactions on behalf of a client: the coordinator then uses the version of the client's
    requests. The other tests of old clients are mainly in `test_transactions_mixed.py`.
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
    """Return the `transaction.version` of the test's clusters (`both_transaction_versions`)."""
    return int(getattr(request, "param", LATEST_TRANSACTION_VERSION))


@pytest.fixture(scope="package")
def clusters_of_package(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """Start a cluster, or return the running cluster with the same arguments.

    Tests with different versions alternate, and a cluster takes seconds to start.
    """
    with ExitStack() as stack:
        yield _each_once(request.config, stack)


@pytest.fixture(scope="module")
def clusters_of_processes(
    request: pytest.FixtureRequest, clusters_of_package: Clusters
) -> Iterator[Clusters]:
    """Start clusters of broker processes, once per module, so that tests can `kill -9` brokers."""
    if request.config.getoption("--cluster") != "reference":
        yield clusters_of_package
        return
    with ExitStack() as stack:
        yield _each_once(request.config, stack, backend="reference-processes")


_PATIENT = {"broker.session.timeout.ms": "60000"}
"""Keeps brokers unfenced on a busy machine, so that partitions keep their leaders."""


def _each_once(config: pytest.Config, stack: ExitStack, **always: Any) -> Clusters:
    opened: dict[str, Cluster] = {}

    def start(*, transaction_version: int, **options: Any) -> Cluster:
        key = repr((transaction_version, sorted(options.items())))
        if key not in opened:
            options["configs"] = _PATIENT | (options.get("configs") or {})
            # The newest version is not set, so that the tests also cover the default features.
            if transaction_version != LATEST_TRANSACTION_VERSION:
                options["features"] = {"transaction.version": transaction_version}
            opened[key] = stack.enter_context(open_cluster(config, **always, **options))
        return opened[key]

    return start


@pytest.fixture(scope="package")
def cluster(
    request: pytest.FixtureRequest, clusters_of_package: Clusters, transaction_version: int
) -> Cluster:
    """Return the cluster of these tests, with `--brokers` brokers."""
    count = brokers_of_run(request.config, default=BROKERS_OF_CONFORMANCE)
    return clusters_of_package(transaction_version=transaction_version, brokers=count)


@pytest.fixture(scope="package")
def bootstrap(cluster: Cluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    made: Client = request.param(bootstrap)
    return made


@pytest.fixture
def new_group(
    raw: RawConnection, cluster: Cluster, unique_name: Callable[[], str]
) -> Callable[[], str]:
    """Create group ids that the broker of `raw` coordinates, and wait until it has loaded them."""
    return lambda: group_coordinated_by(raw, cluster.broker_ids[0], unique_name)


@pytest.fixture
def group(new_group: Callable[[], str]) -> str:
    """Return a group id that the broker of `raw` coordinates and is ready to serve."""
    return new_group()


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[Connections]:
    with Connections(cluster) as connections:
        yield connections


@pytest.fixture
def generation(request: pytest.FixtureRequest) -> Generation:
    """Return the versions of the client's requests, see `pytest_generate_tests`."""
    made: Generation = request.param
    return made


@pytest.fixture
def commit(generation: Generation) -> bool:
    """Return whether the transaction of a slow test commits.

    A slow test covers only one of the two markers, because commit and abort markers behave the
    same.
    """
    return generation.bumps_epoch


@pytest.fixture
def new_producer(
    brokers: Connections, generation: Generation, unique_name: Callable[[], str]
) -> Callable[..., TransactionalProducer]:
    """Create initialized producers, with the given transactional id or a new one."""

    def make(transactional_id: str | None = None, **options: int) -> TransactionalProducer:
        name = unique_name() if transactional_id is None else transactional_id
        return TransactionalProducer(brokers, name, generation, **options).init()

    return make


@pytest.fixture
def producer(new_producer: Callable[..., TransactionalProducer]) -> TransactionalProducer:
    return new_producer()


@pytest.fixture(scope="package")
def one_broker(clusters_of_package: Clusters, transaction_version: int) -> Cluster:
    """Return a cluster of one broker, regardless of `--brokers`.

    The broker compacts often, and tests do not stop it.
    """
    return clusters_of_package(
        transaction_version=transaction_version, configs={"log.cleaner.backoff.ms": "100"}
    )


@pytest.fixture(scope="package")
def secured(clusters_of_package: Clusters) -> Cluster:
    """Return a cluster of one broker with an authorizer, see `tests.conformance.acls`."""
    return clusters_of_package(
        transaction_version=LATEST_TRANSACTION_VERSION, configs=CONFIGS, security=SECURITY
    )


@pytest.fixture(scope="package")
def admin(secured: Cluster) -> Iterator[RawConnection]:
    """Return the connection of a super user to the broker of `secured`."""
    with RawConnection(secured.bootstrap_servers) as connection:
        yield connection


@pytest.fixture(scope="package")
def three_brokers(clusters_of_package: Clusters, transaction_version: int) -> Cluster:
    """Return a cluster of three brokers in three racks, regardless of `--brokers`.

    The fixture `nodes` stops these brokers.
    """
    return clusters_of_package(
        transaction_version=transaction_version, brokers=3, racks=RACKS, configs=SETTINGS
    )


@pytest.fixture
def nodes(three_brokers: Cluster) -> Iterator[Nodes]:
    """Return three running brokers that the test may stop; they are restarted after the test."""
    made = Nodes(three_brokers)
    try:
        yield made
    finally:
        made.restore()
