"""A cluster of three; a group with a coordinator; and `client`, once for each of two clients.

A test that holds in both versions of Kafka's transactions says so, and then all that it takes
from here (`cluster`, `raw`, `topic`, `client`, `nodes`, ...) is of a cluster with that version:

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
    """What uses a transactional producer runs in both versions, of cluster and client alike.

    Tests that are slow in the newest version do not take twice as long in `make test`. Old clients
    of a new cluster have tests of their own (above all `test_transactions_mixed.py`); `old_clients`
    marks those of these that end transactions in the name of a client, which then goes by what the
    client has spoken.
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
    """Start a cluster, or give again the one that was asked for in the same words.

    Tests of one version alternate with those of another, and a cluster takes seconds to start.
    """
    with ExitStack() as stack:
        yield _each_once(request.config, stack)


@pytest.fixture(scope="module")
def clusters_of_processes(
    request: pytest.FixtureRequest, clusters_of_package: Clusters
) -> Iterator[Clusters]:
    """The same of brokers that `kill -9` ends, whatever the run's are, for as long as a module."""
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
            # What a cluster finalizes by itself is a part of what is tested.
            if transaction_version != LATEST_TRANSACTION_VERSION:
                options["features"] = {"transaction.version": transaction_version}
            opened[key] = stack.enter_context(open_cluster(config, **always, **options))
        return opened[key]

    return start


@pytest.fixture(scope="package")
def cluster(
    request: pytest.FixtureRequest, clusters_of_package: Clusters, transaction_version: int
) -> Cluster:
    """The cluster of these tests: what holds on one broker must hold where there are more."""
    count = brokers_of_run(request.config, default=BROKERS_OF_CONFORMANCE)
    return clusters_of_package(transaction_version=transaction_version, brokers=count)


@pytest.fixture(scope="package")
def bootstrap(cluster: Cluster) -> str:
    """The bootstrap servers of that cluster."""
    return cluster.bootstrap_servers


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A client of the run's cluster that we did not write."""
    made: Client = request.param(bootstrap)
    return made


@pytest.fixture
def new_group(
    raw: RawConnection, cluster: Cluster, unique_name: Callable[[], str]
) -> Callable[[], str]:
    """Makes group ids whose coordinator is the broker that `raw` talks to, and ready."""
    return lambda: group_coordinated_by(raw, cluster.broker_ids[0], unique_name)


@pytest.fixture
def group(new_group: Callable[[], str]) -> str:
    """A group id whose coordinator is the broker that `raw` talks to, and ready."""
    return new_group()


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[Connections]:
    """Connections to the brokers of the run's cluster."""
    with Connections(cluster) as connections:
        yield connections


@pytest.fixture
def generation(request: pytest.FixtureRequest) -> Generation:
    """What the client speaks: see `pytest_generate_tests`."""
    made: Generation = request.param
    return made


@pytest.fixture
def commit(generation: Generation) -> bool:
    """How the one transaction of a test that takes long ends: markers of both go the same way."""
    return generation.bumps_epoch


@pytest.fixture
def new_producer(
    brokers: Connections, generation: Generation, unique_name: Callable[[], str]
) -> Callable[..., TransactionalProducer]:
    """Makes producers that have a producer id: of an id of its own, or of the one it is given."""

    def make(transactional_id: str | None = None, **options: int) -> TransactionalProducer:
        name = unique_name() if transactional_id is None else transactional_id
        return TransactionalProducer(brokers, name, generation, **options).init()

    return make


@pytest.fixture
def producer(new_producer: Callable[..., TransactionalProducer]) -> TransactionalProducer:
    """A transactional producer that has begun nothing yet."""
    return new_producer()


@pytest.fixture(scope="package")
def one_broker(clusters_of_package: Clusters, transaction_version: int) -> Cluster:
    """One broker, whatever `--brokers` is, that compacts often; nobody stops it."""
    return clusters_of_package(
        transaction_version=transaction_version, configs={"log.cleaner.backoff.ms": "100"}
    )


@pytest.fixture(scope="package")
def three_brokers(clusters_of_package: Clusters, transaction_version: int) -> Cluster:
    """Three brokers in three racks, whatever `--brokers` is; they may be ended: see `nodes`."""
    return clusters_of_package(
        transaction_version=transaction_version, brokers=3, racks=RACKS, configs=SETTINGS
    )


@pytest.fixture
def nodes(three_brokers: Cluster) -> Iterator[Nodes]:
    """Three brokers that all run; the test may take any away."""
    made = Nodes(three_brokers)
    try:
        yield made
    finally:
        made.restore()
