"""One protocol for every Kafka that tests, benchmarks and the demo run against.

Backends: `reference` (broker_ref in this process), `reference-processes` (one OS process per
node), `kafka` (Apache Kafka from its Maven artifacts) and `testcontainers` (Apache Kafka's
image). All have brokers 1 to n and one controller beside them, so that any broker may die. A
backend is a context manager; it uses loopback, free ports and a directory of its own, and stops
what it started by process id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self


class ClusterUnavailableError(Exception):
    """This machine lacks what the backend needs; the message says what and how to get it."""


class ClusterStartError(Exception):
    """The cluster did not start; the message has the end of its logs."""


class UnsupportedByBackendError(NotImplementedError):
    """This backend does not support the operation; the message names one that does."""


class Links(Protocol):
    """Chooses the advertised addresses of nodes, so that a proxy can be in front of each.

    Called before a node starts, with the address that it will listen on.
    """

    def to_broker(self, broker_id: int, address: str) -> str:
        """Return the advertised address of this broker."""

    def to_controller(self, broker_id: int, address: str) -> str:
        """Return the controller's address for this broker."""


class DirectLinks:
    """Advertises the address that each node listens on."""

    def to_broker(self, broker_id: int, address: str) -> str:  # noqa: ARG002
        """Return `address`."""
        return address

    def to_controller(self, broker_id: int, address: str) -> str:  # noqa: ARG002
        """Return `address`."""
        return address


class Cluster(Protocol):
    """A cluster. An unknown broker id, or a node in the wrong state, raises `ValueError`."""

    @property
    def backend(self) -> str:
        """The backend's name, one of `integration.clusters.BACKENDS`."""

    @property
    def version(self) -> str:
        """The version, such as `Apache Kafka 4.3.0`."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """1 to n, whether they run or not."""

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT[,...]` of all brokers, in the order of their ids."""

    def address(self, broker_id: int) -> str:
        """Return the advertised `host:port` of a broker."""

    def data_directory(self, broker_id: int) -> Path:
        """Return the broker's log directory, which has one directory per partition."""

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until the leaders of its partitions serve them.

        `assignment` lists the replicas of each partition, preferred leader first, instead of
        `partitions` and `replication_factor`. Without either the brokers' default applies, which is
        1.
        """

    def stop_broker(self, broker_id: int) -> None:
        """Shut a broker down cleanly (SIGTERM): it hands over its leaderships and flushes."""

    def kill_broker(self, broker_id: int) -> None:
        """Kill a broker (SIGKILL)."""

    def start_broker(self, broker_id: int) -> None:
        """Restart a broker on the same port and directory.

        Return when it serves and every other running broker knows it, which requires the controller
        and, after a kill, may take a session timeout.
        """

    def pause_broker(self, broker_id: int) -> None:
        """Pause a broker (SIGSTOP): connections stay open and nothing responds."""

    def resume_broker(self, broker_id: int) -> None:
        """Resume a broker (SIGCONT)."""

    def stop_controller(self) -> None:
        """Shut the controller down cleanly."""

    def kill_controller(self) -> None:
        """Kill the controller."""

    def start_controller(self) -> None:
        """Restart the controller on the same port and directory; brokers reconnect to it."""

    def logs(self) -> str:
        """Return the last output of the nodes, for the report of a failed test."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
