"""A cluster of three; a group with a coordinator; and `client`, once for each of two clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.clients import Client, Confluent, KafkaPython
from tests.conformance.groups import await_coordinator
from tests.conftest import BROKERS_OF_CONFORMANCE, open_cluster


@pytest.fixture(scope="package")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of these tests: what holds on one broker must hold where there are more."""
    with open_cluster(request.config, brokers=BROKERS_OF_CONFORMANCE) as opened:
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
def group(raw: RawConnection, unique_name: Callable[[], str]) -> str:
    """A group id whose coordinator is ready."""
    name = unique_name()
    await_coordinator(raw, name)
    return name
