"""Fixtures: fake clusters, and settings that combine clusters and clients of both versions.

A test with the fixture `setting` runs on the fake clusters and on the cluster of the run, with
clients of the cluster's version and with older clients. Tests that inject faults, or need a
coordinator's last epoch, use `fake`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, cast

import pytest

from integration.clusters import Cluster
from pyspark_kafka.kafka.transactions import TransactionVersion
from tests.conftest import open_cluster
from tests.pyspark_kafka.sink.exactly_once.drivers import Driver
from tests.pyspark_kafka.sink.exactly_once.fake_client import FakeClient
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster
from tests.pyspark_kafka.sink.exactly_once.runs import World
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld, RealWorld

_REAL = "cluster"
_KINDS = (
    "fake-1",
    "fake-2",
    "fake-2-old-client",
    "cluster-2",
    pytest.param("cluster-2-old-client", marks=pytest.mark.full),
    pytest.param("cluster-1", marks=pytest.mark.full),
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that run a setting on a real cluster as users of the cluster."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if isinstance(item, pytest.Function) and str(parameters.get("setting")).startswith(_REAL):
        item.fixturenames = [*item.fixturenames, "cluster"]


@pytest.fixture(
    params=[(1, False), (2, False), (2, True)], ids=["version-1", "version-2", "with-topic-ids"]
)
def fake(request: pytest.FixtureRequest) -> FakeCluster:
    """Return a fake cluster of three brokers, with each `transaction.version` in turn."""
    version, has_topic_ids = request.param
    return FakeCluster(cast("Literal[1, 2]", version), has_topic_ids=has_topic_ids)


@pytest.fixture
def client(fake: FakeCluster) -> FakeClient:
    return fake.client("client")


@pytest.fixture(scope="package")
def older_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with open_cluster(request.config, features={"transaction.version": 1}) as opened:
        yield opened


def world_of(cluster: Cluster, names: Callable[[], str]) -> RealWorld:
    def topic(partitions: int = 1) -> str:
        name = names()
        cluster.create_topic(name, partitions=partitions, replication_factor=1)
        return name

    return RealWorld(cluster.bootstrap_servers, topic, names)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster, the transaction version of its clients, and names for this test."""

    world: World
    version: TransactionVersion
    sink_id: str
    commit_topic: str
    opened: ExitStack

    def driver(self, run: str = "run-1", **changes: str) -> Driver:
        return Driver(
            client=self.opened.enter_context(self.world.client(run)),
            sink_id=changes.get("sink_id", self.sink_id),
            commit_topic=self.commit_topic,
            run=run,
            query_id=changes.get("query_id", "query"),
            version=self.version,
        )


@pytest.fixture(params=_KINDS)
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """Return each kind of cluster with each kind of client."""
    kind = str(request.param)
    is_old = kind.endswith(("-1", "-old-client"))
    if kind.startswith(_REAL):
        cluster = request.getfixturevalue("older_cluster" if kind == "cluster-1" else "cluster")
        world: World = world_of(cluster, request.getfixturevalue("unique_name"))
    else:
        world = FakeWorld(1 if kind == "fake-1" else 2)
    with ExitStack() as opened:
        # Before Kafka 4.0 only version 1 exists.
        latest = opened.enter_context(world.client("version")).transaction_version()
        yield Setting(
            world=world,
            version=1 if is_old else latest,
            sink_id=world.name(),
            commit_topic=world.name(),
            opened=opened,
        )
