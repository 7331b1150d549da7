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


class ClusterUnavailable(Exception):  # noqa: N818
    """This backend cannot run here; the message says what is missing and how to get it."""


class ClusterFailed(Exception):  # noqa: N818
    """The backend is there but did not start; the message has the end of its log."""


class NotOfThisBackend(NotImplementedError):  # noqa: N818
    """This backend cannot do what was asked; the message says which one can."""


class Links(Protocol):
    """Chooses the addresses that nodes are known by, so that a proxy may stand before each.

    Asked before a node starts, with the address it is going to listen on.
    """

    def to_broker(self, broker_id: int, address: str) -> str:
        """What clients and other brokers are told to connect to, for this broker."""

    def to_controller(self, broker_id: int, address: str) -> str:
        """Where this broker is told to find the controller."""


class DirectLinks:
    """Every node is known by the address it listens on."""

    def to_broker(self, broker_id: int, address: str) -> str:  # noqa: ARG002
        """`address` itself."""
        return address

    def to_controller(self, broker_id: int, address: str) -> str:  # noqa: ARG002
        """`address` itself."""
        return address


class Cluster(Protocol):
    """Ids that no broker has are refused with `ValueError`, as is what does not fit its state."""

    @property
    def backend(self) -> str:
        """One of `integration.clusters.BACKENDS`."""

    @property
    def version(self) -> str:
        """What the header of a test run says, such as `Apache Kafka 4.3.0`."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """1 to n, whether they run or not."""

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:PORT[,...]`: every broker, in the order of their ids."""

    def address(self, broker_id: int) -> str:
        """`host:port` that clients are told for this broker."""

    def data_directory(self, broker_id: int) -> Path:
        """The broker's log directory: one directory in it for each partition."""

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until its partitions have leaders that serve them.

        `assignment` gives the replicas of each partition, preferred leader first, in place of
        `partitions` and `replication_factor`. Without either the brokers' default counts, 1.
        """

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order (SIGTERM): it hands over what it leads and flushes."""

    def kill_broker(self, broker_id: int) -> None:
        """End it with no time to write or say anything (SIGKILL)."""

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory.

        Returns when it serves and every other running broker knows of it, which needs the
        controller. After a kill that can take a session timeout.
        """

    def pause_broker(self, broker_id: int) -> None:
        """Hold it where it is (SIGSTOP): connections stay open and nothing answers."""

    def resume_broker(self, broker_id: int) -> None:
        """Let it go on (SIGCONT)."""

    def stop_controller(self) -> None:
        """Stop the controller in good order."""

    def kill_controller(self) -> None:
        """End the controller with no time to write or say anything."""

    def start_controller(self) -> None:
        """Start it again on the same port and directory; brokers find it by themselves."""

    def logs(self) -> str:
        """The end of what the nodes have printed, for a failing test's report."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
