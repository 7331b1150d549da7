"""One protocol for every Kafka that tests, benchmarks and the demo run against.

Backends: `reference` (broker_ref in this process), `reference-processes` (one OS process per
broker) and `kafka` (Apache Kafka from its Maven artifacts). A backend is a context manager; it
uses loopback, free ports and a directory of its own, and stops what it started by process id.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self


class ClusterUnavailable(Exception):  # noqa: N818
    """This backend cannot run here; the message says what is missing and how to get it."""


class ClusterFailed(Exception):  # noqa: N818
    """The backend is there but did not start; the message has the end of its log."""


class Cluster(Protocol):
    @property
    def backend(self) -> str:
        """`reference`, `reference-processes` or `kafka`."""

    @property
    def version(self) -> str:
        """What the header of a test run says, such as `Apache Kafka 4.3.0`."""

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT[,...]`."""

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until its partitions have leaders."""

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order (SIGTERM)."""

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL where the broker is a process; refused with an error where it is not."""

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory; returns when it serves."""

    def logs(self) -> str:
        """What the brokers have printed so far, for a failing test's report."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
