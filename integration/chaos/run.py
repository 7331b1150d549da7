"""Performs the chaos run for one seed and returns its outcome.

The run starts the cluster, the load and the query, injects faults, and calls the oracle. Invariant:
the first fault starts after the query has started. The oracle is called only after all faults are
repaired and the query has processed all records of the source topic.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from integration.chaos.driver import Driver
from integration.chaos.events import count_errors, count_events
from integration.chaos.faults import Chaos
from integration.chaos.feed import Feed
from integration.chaos.job import Job
from integration.chaos.kinds import GROUP, KINDS, SINK_ID, Kind, kind_of, transaction_version_of
from integration.chaos.oracle import Delivery, check, read_batches
from integration.chaos.schedule import Schedule, schedule_of
from integration.clusters import Cluster, open_cluster, restricted_user
from integration.clusters.maven import SPARK_KAFKA_CONNECTOR, resolve
from integration.faults.links import ProxiedLinks

BROKERS: Final = 3
PARTITIONS: Final = 3
RECORDS_PER_SECOND: Final = 400
START_TIMEOUT_S: Final = 400.0
FINISH_TIMEOUT_S: Final = 400.0
SETTINGS: Final = {
    # With a short timeout, the controller quickly fences a killed broker.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "auto.create.topics.enable": "false",
}
_TOPIC_CONFIGS: Final = {"min.insync.replicas": "2"}
_CLIENT_OPTIONS: Final = {
    # While a link is cut, requests should time out after a few seconds, not after half a minute.
    "kafka.request.timeout.ms": "5000",
}
_PREFIXES: Final = restricted_user.Prefixes(
    sources="source",
    outputs="target",
    commit_topics="__spark_commits",
    sink_ids=SINK_ID,
    groups=GROUP,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a chaos run.

    With `is_control`, the run uses Spark's own connector. With `is_secured`, the query connects
    over SASL_SSL as a user that has only the ACLs listed in docs/exactly-once.md. If `kind_name` is
    None, the seed determines the kind of query.
    """

    seed: int
    backend: str
    seconds: float
    is_control: bool = False
    is_secured: bool = False
    kind_name: str | None = None

    @property
    def kind(self) -> Kind:
        if self.kind_name is not None:
            return KINDS[self.kind_name]
        return kind_of(self.seed, is_control=self.is_control)

    @property
    def transaction_version(self) -> int:
        return transaction_version_of(self.seed)

    @property
    def schedule(self) -> Schedule:
        return schedule_of(self.seed, seconds=self.seconds, brokers=BROKERS, more=self.kind.faults)


class Timeline:
    """A log of events with their times since the start."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._begun_s = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Add a line. This method is thread-safe."""
        with self._lock:
            self.lines.append(f"{time.monotonic() - self._begun_s:7.2f} s  {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a chaos run. If `delivery` is None, `failure` contains the reason.

    `replaced_drivers` is the number of stopped drivers that were replaced by a successor, and then
    exited after they were resumed. `events` contains the number of events of each type in Spark's
    event logs, such as stage retries. `errors` contains the number of query failures for each error
    class.
    """

    setup: Setup
    delivery: Delivery | None
    failure: str | None
    faults: int
    driver_starts: int
    query_failures: int
    replaced_drivers: int
    events: Mapping[str, int]
    errors: Mapping[str, int]
    seconds: float
    timeline: list[str] = field(repr=False)

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery is not None and self.delivery.is_exactly_once


def run(setup: Setup) -> Outcome:
    """Run a seed to completion. Raise an error only if the cluster does not start."""
    timeline = Timeline()
    begun_s = time.monotonic()
    kind, delivery, failure = setup.kind, None, None
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as directory,
        ProxiedLinks() as links,
        open_cluster(
            setup.backend,
            brokers=BROKERS,
            configs={
                **SETTINGS,
                **kind.configs,
                **(restricted_user.CONFIGS if setup.is_secured else {}),
            },
            features={"transaction.version": setup.transaction_version},
            links=links,
            security=restricted_user.SECURITY if setup.is_secured else None,
        ) as cluster,
    ):
        job = _job(setup, cluster, Path(directory))
        with Driver(job, timeline.say) as driver:
            chaos = Chaos(cluster, links, driver, timeline.say, job=job)
            try:
                with _load(job, driver, timeline) as feed:
                    driver.await_running(START_TIMEOUT_S)
                    timeline.say("the query is running; fault injection starts")
                    chaos.run(setup.schedule)
                driver.finish(FINISH_TIMEOUT_S)
                timeline.say("the query has processed the whole source")
                delivery = _check(job, fed=feed.acknowledged)
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                timeline.say(failure)
        events = count_events(job.events)
    return Outcome(
        setup=setup,
        delivery=delivery,
        failure=failure,
        faults=chaos.fault_count,
        driver_starts=driver.starts,
        query_failures=driver.failures,
        replaced_drivers=driver.replaced,
        events=events,
        errors=count_errors(driver.failure_lines),
        seconds=time.monotonic() - begun_s,
        timeline=timeline.lines,
    )


def _check(job: Job, *, fed: int) -> Delivery:
    batches = None
    if job.kind.query == "count":
        batches = read_batches(job.checkpoint, job.source, partitions=PARTITIONS)
    return check(
        job.bootstrap_servers,
        job.source,
        job.targets,
        fed=fed,
        batches=batches,
        group=job.kind.sink_options.get("kafka.group.id"),
    )


@contextmanager
def _load(job: Job, driver: Driver, timeline: Timeline) -> Iterator[Feed]:
    """Write records to the source. At the end, wait until all records are acknowledged."""
    feed = Feed(
        job.bootstrap_servers,
        job.source,
        records_per_second=RECORDS_PER_SECOND,
        is_read=driver.is_running,
    )
    try:
        yield feed
    finally:
        feed.stop()
        timeline.say(f"{feed.acknowledged} records were acknowledged")


def _job(setup: Setup, cluster: Cluster, directory: Path) -> Job:
    job = Job(
        bootstrap_servers=cluster.bootstrap_servers,
        source="source",
        target="target",
        other_target="target-other" if setup.kind.query == "copy_twice" else "",
        directory=str(directory),
        format="kafka" if setup.is_control else "pyspark_kafka",
        kind_name=setup.kind.name,
        options=_CLIENT_OPTIONS,
    )
    for name in (job.source, *job.targets):
        cluster.create_topic(
            name, partitions=PARTITIONS, replication_factor=BROKERS, configs=_TOPIC_CONFIGS
        )
    if setup.is_control:
        return replace(job, jars=tuple(str(jar) for jar in resolve(SPARK_KAFKA_CONNECTOR)))
    connection: Mapping[str, str] = {}
    if setup.is_secured:
        restricted_user.allow(cluster, _PREFIXES)
        connection = restricted_user.options(cluster)
    return replace(
        job,
        options={**_CLIENT_OPTIONS, **connection},
        sink_options={"transactionalId": SINK_ID, **setup.kind.sink_options},
    )
