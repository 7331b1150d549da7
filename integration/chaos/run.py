"""One seed: cluster, load, query and faults, and in the end the verdict.

Purpose: `run`. Invariant: faults begin when the query runs; in the end everything is mended, and the
query has processed all there is before anything is judged. What it must not know: which faults there
are.
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
from integration.chaos.schedule import schedule_of
from integration.chaos.verdict import Verdict, judge
from integration.clusters import Cluster, open_cluster
from integration.clusters.coordinates import SPARK_KAFKA_CONNECTOR, resolve
from integration.faults.links import ProxiedLinks

BROKERS: Final = 3
PARTITIONS: Final = 3
RECORDS_PER_SECOND: Final = 400
START_TIMEOUT_S: Final = 400.0
FINISH_TIMEOUT_S: Final = 400.0
SETTINGS: Final = {
    # A broker that is gone is found out soon.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "auto.create.topics.enable": "false",
}
_TOPIC_CONFIGS: Final = {"min.insync.replicas": "2"}
_CLIENT_OPTIONS: Final = {
    # A link that is cut costs seconds, not half a minute.
    "kafka.request.timeout.ms": "5000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is run. `is_control`: Spark's own connector in place of ours."""

    seed: int
    backend: str
    seconds: float
    is_control: bool = False


class Timeline:
    """What happened, with the second in which it did."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._begun_s = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Add a line; from any thread."""
        with self._lock:
            self.lines.append(f"{time.monotonic() - self._begun_s:7.2f} s  {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a seed. `failure` where there is no verdict."""

    setup: Setup
    verdict: Verdict | None
    failure: str | None
    faults: int
    driver_starts: int
    query_failures: int
    seconds: float
    timeline: list[str] = field(repr=False)

    @property
    def is_well(self) -> bool:
        return self.verdict is not None and self.verdict.is_exactly_once


def run(setup: Setup) -> Outcome:
    """Run a seed to its end; raises only where the cluster does not start."""
    timeline = Timeline()
    begun_s = time.monotonic()
    schedule = schedule_of(setup.seed, seconds=setup.seconds, brokers=BROKERS)
    verdict, failure, fault_count = None, None, 0
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
                    timeline.say("the query runs: faults begin")
                    chaos.carry_out(schedule)
                driver.finish(FINISH_TIMEOUT_S)
                timeline.say("the query has processed all")
                verdict = judge(
                    cluster.bootstrap_servers, job.source, job.target, fed=feed.confirmed
                )
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                timeline.say(failure)
            fault_count = chaos.fault_count
            starts, failures = driver.starts, driver.failures
    return Outcome(
        setup=setup,
        verdict=verdict,
        failure=failure,
        faults=fault_count,
        driver_starts=starts,
        query_failures=failures,
        seconds=time.monotonic() - begun_s,
        timeline=timeline.lines,
    )


@contextmanager
def _load(job: Job, driver: Driver, timeline: Timeline) -> Iterator[Feed]:
    """Records come in meanwhile; in the end all of them are confirmed."""
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
        timeline.say(f"{feed.confirmed} records were fed")


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
