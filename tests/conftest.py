"""The cluster that a test run is for, and ways to talk to it.

`--cluster=` chooses the backend; one cluster serves the whole run, so every test takes topics of
its own from `topic`. Where the backend cannot run here, its tests are skipped with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping

import pytest

from integration import clusters
from integration.clusters import Cluster
from integration.raw import RawConnection

_CLUSTER = pytest.StashKey[Cluster]()
_UNAVAILABLE = pytest.StashKey[str]()
_DESELECTED = pytest.StashKey[int]()
_LOG_CHARACTERS_MAX = 8_000

TopicFactory = Callable[..., str]
ClusterFactory = Callable[..., Cluster]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        default="reference",
        choices=clusters.BACKENDS,
        help="the Kafka to test against (default: reference)",
    )


def _backend(config: pytest.Config) -> str:
    return str(config.getoption("--cluster"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fetch the backend's artifacts now: a first download is no part of any test's time."""
    if session.config.option.collectonly:
        return
    try:
        clusters.prepare(_backend(session.config))
    except clusters.ClusterUnavailable as reason:
        session.config.stash[_UNAVAILABLE] = str(reason)


def pytest_report_header(config: pytest.Config) -> str:
    return f"cluster: {clusters.describe(_backend(config))}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only Apache Kafka serves, unless the run is against it."""
    if _backend(config) == "kafka":
        return
    deselected = [item for item in items if item.get_closest_marker("kafka_only")]
    if deselected:
        items[:] = [item for item in items if not item.get_closest_marker("kafka_only")]
        config.stash[_DESELECTED] = len(deselected)
        config.hook.pytest_deselected(items=deselected)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    count = config.stash.get(_DESELECTED, 0)
    return f"left out: {count} kafka_only (run them with --cluster=kafka)" if count else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the cluster printed last."""
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    if report.failed and cluster is not None and "cluster" in getattr(item, "fixturenames", ()):
        logs = cluster.logs()[-_LOG_CHARACTERS_MAX:]
        if logs:
            report.sections.append((f"end of the log of {cluster.version}", logs))
    return report


def _open(config: pytest.Config, settings: Mapping[str, str] | None) -> Cluster:
    if _UNAVAILABLE in config.stash:
        pytest.skip(config.stash[_UNAVAILABLE])
    return clusters.open_cluster(_backend(config), configs=settings)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of this run, started by the first test that asks."""
    with _open(request.config, None) as opened:
        request.config.stash[_CLUSTER] = opened
        yield opened
        del request.config.stash[_CLUSTER]


@pytest.fixture(scope="module")
def cluster_with(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Start a further cluster of the same backend: `cluster_with({"setting": "value"})`."""
    opened: list[Cluster] = []

    def start(configs: Mapping[str, str] | None = None) -> Cluster:
        opened.append(_open(request.config, configs))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


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
    """Create a topic: `topic(partitions=1, **{"cleanup.policy": "compact"})` gives its name."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = unique_name()
        cluster.create_topic(name, partitions=partitions, configs=configs)
        return name

    return create


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawConnection]:
    """A connection that sends exactly what the test says."""
    with RawConnection(bootstrap) as connection:
        yield connection
