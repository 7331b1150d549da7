"""A group with a coordinator; `client`, whose tests run once with each of two clients; `nodes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration import clusters
from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.clients import Client, Confluent, KafkaPython
from tests.conformance.groups import await_coordinator
from tests.conformance.nodes import BROKERS, RACKS, SETTINGS, Nodes


@pytest.fixture(params=[Confluent, KafkaPython], ids=["confluent-kafka", "kafka-python"])
def client(request: pytest.FixtureRequest, bootstrap: str) -> Client:
    """A client of the run's cluster that we did not write."""
    made: Client = request.param(bootstrap)
    return made


@pytest.fixture
def group(raw: RawConnection, unique_name: Callable[[], str]) -> str:
    """A group id whose coordinator is ready."""
    name = unique_name()
    await_coordinator(raw, name)
    return name


@pytest.fixture(scope="session")
def three_brokers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of three brokers in three racks, whose brokers may be ended; see `nodes`."""
    backend = str(request.config.getoption("--cluster"))
    with clusters.open_cluster(
        backend, brokers=len(BROKERS), racks=RACKS, configs=SETTINGS
    ) as opened:
        yield opened


@pytest.fixture
def nodes(three_brokers: Cluster) -> Iterator[Nodes]:
    """Three brokers that all run; the test may take any away."""
    made = Nodes(three_brokers)
    try:
        yield made
    finally:
        made.restore()
