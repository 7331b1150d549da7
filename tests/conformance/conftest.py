"""A cluster of three; a group with a coordinator; and `client`, once for each of two clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.clients import Client, Confluent, KafkaPython
from tests.conformance.groups import group_coordinated_by
from tests.conformance.nodes import RACKS, SETTINGS, Nodes
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    Generation,
    TransactionalProducer,
)
from tests.conftest import BROKERS_OF_CONFORMANCE, brokers_of_run, open_cluster


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of these tests: what holds on one broker must hold where there are more."""
    count = brokers_of_run(request.config, default=BROKERS_OF_CONFORMANCE)
    with open_cluster(request.config, brokers=count) as opened:
        yield opened


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


@pytest.fixture(params=[VERSION_1, VERSION_2], ids=["version-1", "version-2"])
def generation(request: pytest.FixtureRequest) -> Generation:
    """Once for clients of each version of transactions."""
    made: Generation = request.param
    return made


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
def one_broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker, whatever `--brokers` is, that compacts often; nobody stops it."""
    with open_cluster(request.config, configs={"log.cleaner.backoff.ms": "100"}) as opened:
        yield opened


@pytest.fixture(scope="package")
def three_brokers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers in three racks, whatever `--brokers` is; they may be ended: see `nodes`."""
    with open_cluster(request.config, brokers=3, racks=RACKS, configs=SETTINGS) as opened:
        yield opened


@pytest.fixture
def nodes(three_brokers: Cluster) -> Iterator[Nodes]:
    """Three brokers that all run; the test may take any away."""
    made = Nodes(three_brokers)
    try:
        yield made
    finally:
        made.restore()
