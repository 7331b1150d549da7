"""The cluster that a test run is for, and ways to talk to it.

`--cluster=` chooses the backend and `--brokers=` how many brokers it has. One cluster serves the
whole run (a directory of tests that needs more brokers overrides `cluster`), so every test takes
topics of its own from `topic`; a test that stops brokers takes a cluster from `cluster_with`.
Where the backend cannot run here, its tests are skipped with the reason.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import randrange
from typing import Any

import hypothesis
import pytest

from integration import clusters, spark_jvm
from integration.clusters import Cluster
from integration.raw import RawConnection
from pyspark_kafka import records
from tests.spark import engines

BROKERS_OF_CONFORMANCE = 3
LONG_TESTS = ("tests/examples/", "tests/spark/")
STARTS_BROKERS = {"cluster_with", "three_brokers"}
STARTING_BROKERS_TIMEOUT_S = 240
_CLUSTERS = pytest.StashKey[list[Cluster]]()
_UNAVAILABLE = pytest.StashKey[str]()
_LEFT_OUT = pytest.StashKey[str]()
_SEED = pytest.StashKey[int]()
_SEEDS = 1_000_000
_LOG_CHARACTERS_MAX = 80_000

# On a busy machine tests are slow, not red.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")

TopicFactory = Callable[..., str]
ClusterFactory = Callable[..., Cluster]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        default="reference",
        choices=clusters.BACKENDS,
        help="the Kafka to test against (default: reference)",
    )
    parser.addoption(
        "--brokers",
        type=int,
        help=f"how many brokers it has (default: 1; {BROKERS_OF_CONFORMANCE} in tests/conformance)",
    )
    parser.addoption(
        "--engine",
        default="auto",
        choices=engines.ENGINES,
        help="the engine of tests/spark (default: auto, what a user gets)",
    )
    parser.addoption(
        "--seed",
        type=int,
        help="what fault scenarios draw from, to replay a run (default: another for each run)",
    )


def _backend(config: pytest.Config) -> str:
    return str(config.getoption("--cluster"))


def brokers_of_run(config: pytest.Config, *, default: int) -> int:
    """How many `--brokers` says, or else `default`."""
    asked: int | None = config.getoption("--brokers")
    return default if asked is None else asked


def pytest_configure(config: pytest.Config) -> None:
    if brokers_of_run(config, default=1) < 1:
        raise pytest.UsageError("--brokers: a cluster has at least one")
    os.environ[engines.VARIABLE] = config.getoption("--engine")
    for name, value in spark_jvm.environment().items():
        os.environ.setdefault(name, value)
    config.stash[_CLUSTERS] = []
    asked: int | None = config.getoption("--seed")
    config.stash[_SEED] = randrange(_SEEDS) if asked is None else asked


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have the backend's artifacts now: a first download is no part of any test's time."""
    if session.config.option.collectonly:
        return
    try:
        clusters.prepare(_backend(session.config))
    except clusters.ClusterUnavailableError as reason:
        session.config.stash[_UNAVAILABLE] = str(reason)


def pytest_report_header(config: pytest.Config) -> list[str]:
    asked: int | None = config.getoption("--brokers")
    count = f"1 broker, {BROKERS_OF_CONFORMANCE} in tests/conformance"
    if asked is not None:
        count = f"{asked} broker{'s' if asked > 1 else ''}"
    seed = config.stash[_SEED]
    return [
        f"cluster: {clusters.describe(_backend(config))}, {count}",
        f"seed of fault scenarios: {seed} (replay with --seed={seed})",
        f"engine of tests/spark: {config.getoption('--engine')}",
        f"records: the {records.IMPLEMENTATION} implementation (PYSPARK_KAFKA_RECORDS)",
    ]


def _fixtures(item: pytest.Item) -> Sequence[str]:
    """The fixtures that a test uses, and those that they use."""
    return getattr(item, "fixturenames", ())


def _uses_cluster(item: pytest.Item) -> bool:
    """Whether `--cluster` makes a difference to a test."""
    return not {
        "cluster",
        "one_broker",
        "processes",
        "linked_clusters",
        *STARTS_BROKERS,
    }.isdisjoint(_fixtures(item))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only Apache Kafka serves, or, on it, what uses no cluster of the run.

    With `-n`, what takes longest comes first. Tests that start brokers, and may end them, have
    more time than others, unless they say how much.
    """
    for item in items:
        if not item.get_closest_marker("timeout") and STARTS_BROKERS & set(_fixtures(item)):
            item.add_marker(pytest.mark.timeout(STARTING_BROKERS_TIMEOUT_S))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: not item.nodeid.startswith(LONG_TESTS))
    on_kafka = _backend(config) in ("kafka", "testcontainers")
    why = "use no cluster of the run" if on_kafka else "kafka_only (run them with --cluster=kafka)"
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        of_kafka = item.get_closest_marker("kafka_only") is not None
        stays = of_kafka or _uses_cluster(item) if on_kafka else not of_kafka
        (kept if stays else left_out).append(item)
    if left_out:
        items[:] = kept
        config.stash[_LEFT_OUT] = f"left out: {len(left_out)} {why}"
        config.hook.pytest_deselected(items=left_out)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    return config.stash.get(_LEFT_OUT, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the cluster printed last."""
    report = yield
    if report.failed and _uses_cluster(item):
        for cluster in item.config.stash[_CLUSTERS]:
            if logs := cluster.logs()[-_LOG_CHARACTERS_MAX:]:
                report.sections.append((f"end of the logs of {cluster.version}", logs))
    return report


@contextmanager
def open_cluster(
    config: pytest.Config, *, backend: str | None = None, **options: Any
) -> Iterator[Cluster]:
    """A cluster of the run's backend, or another; `options` are those of `integration.clusters`."""
    if _UNAVAILABLE in config.stash:
        pytest.skip(config.stash[_UNAVAILABLE])
    with clusters.open_cluster(backend or _backend(config), **options) as opened:
        config.stash[_CLUSTERS].append(opened)
        yield opened
        config.stash[_CLUSTERS].remove(opened)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of this run, started by the first test that asks."""
    with open_cluster(request.config, brokers=brokers_of_run(request.config, default=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster_with(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Start a further cluster of the same backend, which ends with the module.

    `cluster_with({"setting": "value"}, brokers=3, racks=..., links=...)`; of one broker where
    nothing is said, whatever `--brokers` is. This is the one for tests that stop, kill or pause
    brokers.
    """
    with ExitStack() as opened:

        def start(
            configs: Mapping[str, str] | None = None, *, brokers: int = 1, **options: Any
        ) -> Cluster:
            more = open_cluster(request.config, brokers=brokers, configs=configs, **options)
            return opened.enter_context(more)

        yield start


@pytest.fixture(scope="session")
def bootstrap(cluster: Cluster) -> str:
    """The bootstrap servers of the run's cluster."""
    return cluster.bootstrap_servers


_numbers = itertools.count(1)


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test of the run has, and that say whose they are."""
    test = "".join(c if c.isalnum() or c in "_-" else "-" for c in request.node.name)

    return lambda: f"{test[:80]}.{next(_numbers)}"


@pytest.fixture
def topic(cluster: Cluster, unique_name: Callable[[], str]) -> TopicFactory:
    """Create a topic: `topic(partitions=1, **{"cleanup.policy": "compact"})` gives its name.

    All its partitions are on the first broker alone, which is the one that `raw` talks to. A
    test about replicas or leaders says `replication_factor=3`, and the cluster places them.
    """

    def create(partitions: int = 1, replication_factor: int | None = None, **configs: str) -> str:
        name = unique_name()
        if replication_factor is None:
            by_hand = [[cluster.broker_ids[0]]] * partitions
            cluster.create_topic(name, assignment=by_hand, configs=configs)
        else:
            cluster.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
        return name

    return create


@pytest.fixture
def raw_address(cluster: Cluster) -> str:
    """`host:port` of the first broker."""
    return cluster.address(cluster.broker_ids[0])


@pytest.fixture
def raw(raw_address: str) -> Iterator[RawConnection]:
    """A connection to the first broker that sends exactly what the test says."""
    with RawConnection(raw_address) as connection:
        yield connection


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """What a fault scenario draws from; a failure shows it, for it is printed."""
    found = request.config.stash[_SEED]
    print(f"seed {found}: replay this with --seed={found}")
    return found
