"""The interface of all Kafka clusters that tests, benchmarks and the demo use.

The backends are `reference` (broker_ref in this process), `reference-processes` (broker_ref, one OS
process per node), `kafka` (Apache Kafka from its Maven artifacts) and `testcontainers` (Apache
Kafka's Docker image). All backends have brokers 1 to n and a separate controller, so any broker can
be killed. A backend is a context manager. It uses the loopback interface, free ports and its own
directory, and stops only the processes that it started, by process id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from integration.clusters.security import SecuredListeners, Security


class ClusterUnavailableError(Exception):
    """This machine does not meet a requirement of the backend. The message explains what to do."""


class ClusterStartError(Exception):
    """The cluster did not start. The message contains the end of its logs."""


class UnsupportedByBackendError(NotImplementedError):
    """The backend does not support the operation. The message names a backend that supports it."""


class Links(Protocol):
    """Interface for choosing the advertised addresses of nodes, such as the addresses of proxies.

    Before a node starts, the cluster calls these methods with the node's listen address.
    """

    def to_broker(self, broker_id: int, address: str) -> str:
        """Return the address that this broker advertises to clients and other brokers."""

    def to_secured(self, broker_id: int, listener: str, address: str) -> str:
        """Return the address that this broker advertises for a secured listener."""

    def to_controller(self, broker_id: int, address: str) -> str:
        """Return the address at which this broker connects to the controller."""


class DirectLinks:
    """Links that advertise the address on which each node listens."""

    def to_broker(self, broker_id: int, address: str) -> str:  # noqa: ARG002
        """Return `address` unchanged."""
        return address

    def to_secured(self, broker_id: int, listener: str, address: str) -> str:  # noqa: ARG002
        """Return `address` unchanged."""
        return address

    def to_controller(self, broker_id: int, address: str) -> str:  # noqa: ARG002
        """Return `address` unchanged."""
        return address


def secured_listeners(security: Security | None, directory: Path) -> SecuredListeners | None:
    """Return secured listeners with certificates in `directory`, or None if `security` is None."""
    if security is None:
        return None
    # `cryptography` is not installed with the package.
    from integration.clusters.security import SecuredListeners  # noqa: PLC0415

    return SecuredListeners(security, directory)


class Cluster(Protocol):
    """A cluster of Kafka brokers and a controller.

    The methods raise `ValueError` for an unknown broker id, or if the node's state does not allow
    the operation.
    """

    @property
    def backend(self) -> str:
        """The name of the backend, one of `integration.clusters.BACKENDS`."""

    @property
    def version(self) -> str:
        """The name and version of the broker, such as `Apache Kafka 4.3.0`."""

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The ids of all brokers, 1 to n, running or stopped."""

    @property
    def bootstrap_servers(self) -> str:
        """The addresses `127.0.0.1:PORT[,...]` of all brokers, ordered by broker id."""

    @property
    def secured(self) -> SecuredListeners:
        """The secured listeners of a cluster that was opened with `security`."""

    def address(self, broker_id: int) -> str:
        """Return the `host:port` that a broker advertises."""

    def data_directory(self, broker_id: int) -> Path:
        """Return the log directory of a broker, which contains one directory per partition."""

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until its partition leaders serve requests.

        `assignment` lists the replicas of each partition, with the preferred leader first. It
        replaces `partitions` and `replication_factor`. If neither `assignment` nor
        `replication_factor` is given, the brokers' default replication factor of 1 applies.
        """

    def stop_broker(self, broker_id: int) -> None:
        """Shut down a broker cleanly (SIGTERM).

        The broker transfers the leadership of its partitions and flushes its logs.
        """

    def kill_broker(self, broker_id: int) -> None:
        """Kill a broker (SIGKILL)."""

    def start_broker(self, broker_id: int) -> None:
        """Restart a broker with the same port and directory.

        Returns once the broker serves requests and is in the metadata of all other running brokers.
        The controller must be running. After a kill, the restart may take as long as
        `broker.session.timeout.ms`.
        """

    def pause_broker(self, broker_id: int) -> None:
        """Pause a broker (SIGSTOP). Its connections stay open, but it does not respond."""

    def resume_broker(self, broker_id: int) -> None:
        """Resume a paused broker (SIGCONT)."""

    def stop_controller(self) -> None:
        """Shut down the controller cleanly."""

    def kill_controller(self) -> None:
        """Kill the controller (SIGKILL)."""

    def start_controller(self) -> None:
        """Restart the controller with the same port and directory. Brokers reconnect to it."""

    def logs(self) -> str:
        """Return the end of each node's log, for the report on a failed test."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
