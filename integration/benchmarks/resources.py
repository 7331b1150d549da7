"""The resources that benchmark cases share: one broker, one Spark session and topics with records.

The resources are created on demand. Invariant: `close` stops everything that this module started,
and every Spark job has a timeout.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from integration import clusters
from integration.benchmarks import processes, topics
from integration.benchmarks.connectors import OURS, Connector
from integration.benchmarks.measure import Sample, measure_tree
from integration.benchmarks.session import open_session
from integration.benchmarks.topics import Contents
from integration.clusters import Cluster
from integration.clusters.security import SecuredListener, Security

WORK_TIMEOUT_S: Final = 300.0

_BROKER_SETTINGS: Final = {"log.segment.delete.delay.ms": "1000"}
"""Broker configs that free the disk space of deleted topics after one second."""

_SECURED: Final = "SECURED"
_USER: Final = "bench"
_SECURITY: Final = Security(
    users={_USER: "bench-secret"},
    listeners=(SecuredListener(name=_SECURED, protocol="SASL_SSL", mechanisms=("SCRAM-SHA-512",)),),
)


class Resources:
    """Context manager that creates shared resources and closes them.

    `engine` is the value of our connector's `engine` option.
    """

    def __init__(self, *, engine: str, say: Callable[[str], None], backend: str = "kafka") -> None:
        self.engine = engine
        self._say = say
        self._backend = backend
        self._opened = ExitStack()
        self._filled: dict[tuple[Contents, int], str] = {}
        self._numbers = itertools.count(1)
        self._brokers: frozenset[int] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all resources in reverse order of creation."""
        self._opened.close()

    @cached_property
    def directory(self) -> Path:
        """The directory of this run, for checkpoints and Spark's files."""
        made = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        return Path(self._opened.enter_context(made))

    @cached_property
    def cluster(self) -> Cluster:
        """A cluster with a controller and one broker. The broker also has a secured listener."""
        self._say(f"starting {clusters.describe(self._backend)}")
        before = processes.descendants()
        opened = clusters.open_cluster(
            self._backend, configs=_BROKER_SETTINGS, is_measured=True, security=_SECURITY
        )
        self._opened.enter_context(opened)
        self._brokers = frozenset(processes.descendants() - before)
        return opened

    def options_of(self, connector: Connector) -> dict[str, str]:
        """Return a connector's options for Spark, including the addresses of the cluster."""
        options = {"kafka.bootstrap.servers": self.cluster.bootstrap_servers}
        if connector.is_secured:
            options = self.cluster.secured.scram_options(_SECURED, _USER)
        if connector.format == OURS:
            options["engine"] = connector.engine or self.engine
        return {**options, **connector.options}

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session for all cases, with Spark's own connector and ours."""
        # The cluster must start first. Otherwise, `_brokers` could contain processes of Spark.
        assert self.cluster.broker_ids
        self._say("starting Spark")
        session = open_session(self.directory)
        self._opened.callback(session.stop)
        return session

    def topic(self, contents: Contents, records: int) -> str:
        """Return the name of a topic with these records.

        The first call creates and fills the topic.
        """
        key = (contents, records)
        if key not in self._filled:
            self._say(
                f"filling a topic: {records:,} values of {contents.value_bytes} bytes, "
                f"{contents.codec}, {contents.partitions} partitions"
            )
            name = self._new_name()
            topics.fill(self.cluster, name, contents, records)
            self._filled[key] = name
        return self._filled[key]

    @contextmanager
    def empty_topic(self, partitions: int) -> Iterator[str]:
        """Create a topic, and delete it when the context exits."""
        name = self._new_name()
        self.cluster.create_topic(name, partitions=partitions)
        try:
            yield name
        finally:
            admin = AdminClient(
                {"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 2}
            )
            for deleted in admin.delete_topics([name]).values():
                deleted.result(timeout=60)

    def new_directory(self) -> Path:
        """Create an empty directory for a checkpoint and return its path."""
        return Path(tempfile.mkdtemp(dir=self.directory))

    def measure(self, work: Callable[[], int]) -> Sample:
        """Run and measure Spark work. Spark jobs are canceled after `WORK_TIMEOUT_S` seconds."""
        limit = threading.Timer(WORK_TIMEOUT_S, self.spark.sparkContext.cancelAllJobs)
        limit.daemon = True
        limit.start()
        try:
            return measure_tree(work, excluded=self._brokers)
        finally:
            limit.cancel()

    def _new_name(self) -> str:
        return f"bench-{next(self._numbers)}"
