"""Runs one seed: cluster, load, query and faults, and then the oracle.

Purpose: `run`. Invariant: faults start when the query runs; before the check all faults are
repaired and the query has processed the whole source. What it must not know: the kinds of faults.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration.chaos.driver import Driver
from integration.chaos.faults import Chaos
from integration.chaos.feed import Feed
from integration.chaos.job import Job
from integration.chaos.oracle import Delivery, check_delivery
from integration.chaos.schedule import schedule_of
from integration.clusters import Cluster, open_cluster
from integration.clusters.coordinates import SPARK_KAFKA_CONNECTOR, resolve
from integration.faults.links import ProxiedLinks

BROKERS: Final = 3
PARTITIONS: Final = 3
RECORDS_PER_SECOND: Final = 400
START_TIMEOUT_S: Final = 400.0
FINISH_TIMEOUT_S: Final = 400.0
SETTINGS: Final = {
    # The controller fences a dead broker soon.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "auto.create.topics.enable": "false",
}
_TOPIC_CONFIGS: Final = {"min.insync.replicas": "2"}
_CLIENT_OPTIONS: Final = {
    # A cut link delays a request by seconds instead of half a minute.
    "kafka.request.timeout.ms": "5000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a run. `is_control`: run Spark's own connector."""

    seed: int
    backend: str
    seconds: float
    is_control: bool = False


class Timeline:
    """A log of events with their times."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._begun_s = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Add a line; thread-safe."""
        with self._lock:
            self.lines.append(f"{time.monotonic() - self._begun_s:7.2f} s  {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a seed. `failure` is the reason if there is no `delivery`."""

    setup: Setup
    delivery: Delivery | None
    failure: str | None
    faults: int
    driver_starts: int
    query_failures: int
    seconds: float
    timeline: list[str] = field(repr=False)

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery is not None and self.delivery.is_exactly_once


def run(setup: Setup) -> Outcome:
    """Run a seed to its end. Raise only if the cluster does not start."""
    timeline = Timeline()
    begun_s = time.monotonic()
    schedule = schedule_of(setup.seed, seconds=setup.seconds, brokers=BROKERS)
    delivery, failure, fault_count = None, None, 0
    with (
        tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as directory,
        ProxiedLinks() as links,
        open_cluster(setup.backend, brokers=BROKERS, configs=SETTINGS, links=links) as cluster,
    ):
        job = _job(setup, cluster, Path(directory))
        with Driver(job, timeline.say) as driver:
            chaos = Chaos(cluster, links, driver, timeline.say)
            try:
                with _load(job, driver, timeline) as feed:
                    driver.await_running(START_TIMEOUT_S)
                    timeline.say("the query runs; faults start")
                    chaos.run(schedule)
                driver.finish(FINISH_TIMEOUT_S)
                timeline.say("the query has processed the whole source")
                delivery = check_delivery(
                    cluster.bootstrap_servers, job.source, job.target, fed=feed.confirmed
                )
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                timeline.say(failure)
            fault_count = chaos.fault_count
            starts, failures = driver.starts, driver.failures
    return Outcome(
        setup=setup,
        delivery=delivery,
        failure=failure,
        faults=fault_count,
        driver_starts=starts,
        query_failures=failures,
        seconds=time.monotonic() - begun_s,
        timeline=timeline.lines,
    )


@contextmanager
def _load(job: Job, driver: Driver, timeline: Timeline) -> Iterator[Feed]:
    """Feed the source; at the end wait until all records are acknowledged."""
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
        timeline.say(f"{feed.confirmed} records were acknowledged")


def _job(setup: Setup, cluster: Cluster, directory: Path) -> Job:
    for name in ("source", "target"):
        cluster.create_topic(
            name, partitions=PARTITIONS, replication_factor=BROKERS, configs=_TOPIC_CONFIGS
        )
    if setup.is_control:
        jars = tuple(str(jar) for jar in resolve(SPARK_KAFKA_CONNECTOR))
        return Job(
            bootstrap_servers=cluster.bootstrap_servers,
            source="source",
            target="target",
            directory=str(directory),
            format="kafka",
            options=_CLIENT_OPTIONS,
            jars=jars,
        )
    return Job(
        bootstrap_servers=cluster.bootstrap_servers,
        source="source",
        target="target",
        directory=str(directory),
        format="pyspark_kafka",
        options=_CLIENT_OPTIONS,
        sink_options={"transactionalId": "chaos"},
    )
