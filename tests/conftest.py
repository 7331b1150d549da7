"""The cluster of a test run, and fixtures to use it.

`--cluster=` selects the backend and `--brokers=` the number of brokers. All tests of a run use the
same cluster, unless a test directory overrides the `cluster` fixture because it needs more brokers.
Therefore each test creates its own topics with `topic`, and a test that stops brokers starts a
separate cluster with `cluster_with`. A test that raises `ClusterUnavailableError`, because Java is
missing or a download fails, is skipped with this reason, or fails with `--require-clusters`.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import randrange
from typing import Any
from zlib import crc32

import hypothesis
import pytest

from integration import clusters, spark_jvm
from integration.clusters import Cluster
from integration.raw import RawConnection
from pyspark_kafka import records
from tests.distribution import LoadGroupsOfFiles, starts_late
from tests.kafka_python import close_dropped_sockets
from tests.spark import engines

BROKERS_OF_CONFORMANCE = 3
STARTS_BROKERS = {"cluster_with", "three_brokers"}
STARTING_BROKERS_TIMEOUT_S = 240
_CLUSTERS = pytest.StashKey[list[Cluster]]()
_UNAVAILABLE = pytest.StashKey[clusters.ClusterUnavailableError]()
_LEFT_OUT = pytest.StashKey[str]()
_SEEDS = 1_000_000
_LOG_CHARACTERS_MAX = 10_000

# On a busy machine, Hypothesis must not fail slow tests.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")

close_dropped_sockets()

TopicFactory = Callable[..., str]
ClusterFactory = Callable[..., Cluster]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        default="reference",
        choices=clusters.BACKENDS,
        help="backend of the Kafka cluster that is tested (default: reference)",
    )
    parser.addoption(
        "--brokers",
        type=int,
        help=f"number of brokers (default: 1; {BROKERS_OF_CONFORMANCE} in tests/conformance)",
    )
    parser.addoption(
        "--engine",
        default="auto",
        choices=engines.ENGINES,
        help="engine of the connector in tests/spark (default: auto, the connector's default)",
    )
    parser.addoption(
        "--seed",
        type=int,
        help="seed of fault scenarios and of --parts, to replay a run (default: random)",
    )
    parser.addoption(
        "--parts",
        type=int,
        default=1,
        help="run only one of this number of parts of the tests that are marked `sampled`, and of "
        "all tests or files with --parts-of (default: 1, all tests)",
    )
    parser.addoption(
        "--require-clusters",
        action="store_true",
        help="fail the tests whose cluster or program is unavailable instead of skipping them",
    )
    parser.addoption(
        "--parts-of",
        default="sampled",
        choices=("sampled", "tests", "files"),
        help="what --parts divides. Tests marked `kafka_only` or `spark_version` always run",
    )


def _backend(config: pytest.Config) -> str:
    return str(config.getoption("--cluster"))


def brokers_of_run(config: pytest.Config, *, default: int) -> int:
    """Return the value of `--brokers`, or `default` if the option is not set."""
    asked: int | None = config.getoption("--brokers")
    return default if asked is None else asked


def pytest_configure(config: pytest.Config) -> None:
    if config.option.parts < 1:
        raise pytest.UsageError("--parts: the tests cannot be divided into less than one part")
    if brokers_of_run(config, default=1) < 1:
        raise pytest.UsageError("--brokers: a cluster requires at least one broker")
    os.environ[engines.VARIABLE] = config.getoption("--engine")
    for name, value in spark_jvm.environment().items():
        os.environ.setdefault(name, value)
    config.stash[_CLUSTERS] = []
    if config.option.seed is None:
        of_run: Mapping[str, int] = getattr(config, "workerinput", {})
        config.option.seed = of_run.get("seed", randrange(_SEEDS))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the seed of the run to a process of pytest-xdist."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_sessionstart(session: pytest.Session) -> None:
    """Download the backend's artifacts before the tests, so that no test's timeout applies."""
    if session.config.option.collectonly:
        return
    try:
        clusters.prepare(_backend(session.config))
    except clusters.ClusterUnavailableError as reason:
        session.config.stash[_UNAVAILABLE] = reason


def pytest_report_header(config: pytest.Config) -> list[str]:
    asked: int | None = config.getoption("--brokers")
    count = f"1 broker, {BROKERS_OF_CONFORMANCE} in tests/conformance"
    if asked is not None:
        count = f"{asked} broker{'s' if asked > 1 else ''}"
    seed = config.getoption("--seed")
    return [
        f"cluster: {clusters.describe(_backend(config))}, {count}",
        f"seed of fault scenarios: {seed} (replay with --seed={seed})",
        f"engine of tests/spark: {config.getoption('--engine')}",
        f"records: the {records.IMPLEMENTATION} implementation (PYSPARK_KAFKA_RECORDS)",
    ]


def _fixtures(item: pytest.Item) -> Sequence[str]:
    """Return the fixtures that a test uses directly or indirectly."""
    return getattr(item, "fixturenames", ())


def _uses_cluster(item: pytest.Item) -> bool:
    """Return whether a test uses the cluster of the run or its backend."""
    return not {
        "cluster",
        "one_broker",
        "processes",
        "linked_clusters",
        "secured",
        *STARTS_BROKERS,
    }.isdisjoint(_fixtures(item))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist is off in some runs
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupsOfFiles | None:
    return LoadGroupsOfFiles(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and tests from garbage collection. It would take a seventh of a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that do not apply to the backend of the run, or to its part of the tests.

    On Apache Kafka, tests that do not use the run's cluster do not apply. On other backends, tests
    that are marked `kafka_only` do not apply. With `-n`, long tests start first. Tests that start
    brokers get a longer timeout unless they set one.
    """
    for item in items:
        if not item.get_closest_marker("timeout") and STARTS_BROKERS & set(_fixtures(item)):
            item.add_marker(pytest.mark.timeout(STARTING_BROKERS_TIMEOUT_S))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=starts_late)
    on_kafka = _backend(config) in ("kafka", "testcontainers")
    reasons: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        why = _deselection(item, on_kafka=on_kafka)
        (kept if why is None else left_out).append(item)
        reasons.update([why] if why else [])
    if left_out:
        items[:] = kept
        config.stash[_LEFT_OUT] = "\n".join(
            f"deselected tests: {count} ({why})" for why, count in reasons.items()
        )
        config.hook.pytest_deselected(items=left_out)


def _deselection(item: pytest.Item, *, on_kafka: bool) -> str | None:
    """Return the reason why a run does not contain a test, or None if it does."""
    kafka_only = item.get_closest_marker("kafka_only") is not None
    if on_kafka and not kafka_only and not _uses_cluster(item):
        return "they do not use the run's cluster"
    if kafka_only and not on_kafka:
        return "kafka_only, --cluster=kafka runs them"
    seed, parts = item.config.option.seed, item.config.option.parts
    parts_of = item.config.option.parts_of
    if item.get_closest_marker("sampled"):
        parts_of = "tests"
    elif kafka_only or item.get_closest_marker("spark_version"):
        parts_of = "sampled"
    if parts_of == "sampled":
        return None
    name = item.nodeid if parts_of == "tests" else item.nodeid.partition("::")[0]
    in_part = crc32(name.encode()) % parts == seed % parts
    return None if in_part else f"in another of {parts} parts, --parts=1 runs them"


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    return config.stash.get(_LEFT_OUT, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the clusters' logs to the report of a failed test.

    Report a test without its cluster as skipped, except with `--require-clusters`.
    """
    report = yield
    if (
        call.excinfo is not None
        and call.excinfo.errisinstance(clusters.ClusterUnavailableError)
        and not item.config.option.require_clusters
    ):
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = (path, line or 0, f"Skipped: {call.excinfo.value}")
    if report.failed and _uses_cluster(item):
        for cluster in item.config.stash[_CLUSTERS]:
            if logs := cluster.logs()[-_LOG_CHARACTERS_MAX:]:
                report.sections.append((f"end of the logs of {cluster.version}", logs))
    return report


@contextmanager
def open_cluster(
    config: pytest.Config, *, backend: str | None = None, **options: Any
) -> Iterator[Cluster]:
    """Open a cluster of the run's backend or of `backend`.

    `options` are options of `integration.clusters.open_cluster`.
    """
    if _UNAVAILABLE in config.stash:
        raise config.stash[_UNAVAILABLE]
    with clusters.open_cluster(backend or _backend(config), **options) as opened:
        config.stash[_CLUSTERS].append(opened)
        yield opened
        config.stash[_CLUSTERS].remove(opened)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return the cluster of the run. The first test that uses this fixture starts it."""
    with open_cluster(request.config, brokers=brokers_of_run(request.config, default=1)) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster_with(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Return a function that starts another cluster of the same backend.

    Call it as `cluster_with({"setting": "value"}, brokers=3, racks=..., links=...)`. The cluster
    has one broker by default, and `--brokers` has no effect on it. It is closed after the last test
    of the module. Tests that stop, kill or pause brokers must use this fixture.
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
    """Return the bootstrap servers of the run's cluster."""
    return cluster.bootstrap_servers


_numbers = itertools.count(1)


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Return a function that returns unique names, which contain the name of the test."""
    test = "".join(c if c.isalnum() or c in "_-" else "-" for c in request.node.name)

    return lambda: f"{test[:80]}.{next(_numbers)}"


@pytest.fixture
def topic(cluster: Cluster, unique_name: Callable[[], str]) -> TopicFactory:
    """Return a function that creates a topic and returns its name.

    Call it as `topic(partitions=1, **{"cleanup.policy": "compact"})`. All partitions are on the
    first broker, to which `raw` is connected. A test of replicas or leaders sets
    `replication_factor=3`, and the cluster then assigns the replicas.
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
    """Return the `host:port` of the first broker."""
    return cluster.address(cluster.broker_ids[0])


@pytest.fixture
def raw(raw_address: str) -> Iterator[RawConnection]:
    """Return a raw connection to the first broker."""
    with RawConnection(raw_address) as connection:
        yield connection


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> int:
    """Return the number of parts into which `--parts` divides the tests."""
    found: int = request.config.getoption("--parts")
    return found


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of fault scenarios and print it for the report of a failed test."""
    found: int = request.config.getoption("--seed")
    print(f"seed {found}: to replay the run, use --seed={found}")
    return found
