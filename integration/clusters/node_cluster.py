"""The base of all backends except `reference`: a cluster of processes or containers.

Starts brokers 1 to n and a controller together, and waits until each broker serves requests and its
metadata contains all brokers. Invariant: all files are in one temporary directory, all ports are on
the loopback interface, and a node keeps its port until `close`.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from integration.clusters import topics
from integration.clusters.base import ClusterStartError, DirectLinks, Links, secured_listeners
from integration.clusters.ports import free_ports

if TYPE_CHECKING:
    from integration.clusters.security import SecuredListeners, Security

HOST = "127.0.0.1"
CONTROLLER_ID = 3000
START_TIMEOUT_S = 120.0
START_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The listen and advertised addresses of the nodes."""

    controller: str
    listeners: Mapping[int, str]
    advertised: Mapping[int, str]
    controller_addresses: Mapping[int, str]


class Node(Protocol):
    """A controller or a broker that can be restarted.

    The methods raise `ValueError` if the node's state does not allow the operation.
    """

    @property
    def name(self) -> str:
        """The name of the node in messages, such as `broker 1`."""

    @property
    def is_started(self) -> bool:
        """Whether the node was started and has not been stopped or killed since then.

        The value is also True if the node has exited on its own.
        """

    @property
    def is_active(self) -> bool:
        """Whether `is_started` is True and the node is not paused."""

    def failure(self) -> str | None:
        """Return why the node cannot become ready, or None."""

    def start(self) -> None:
        """Start the node and return immediately."""

    def terminate(self) -> None:
        """Request a clean shutdown and return immediately.

        The caller must call `stop` or `kill` afterwards.
        """

    def stop(self) -> None:
        """Stop the node cleanly, or forcibly after a timeout."""

    def kill(self) -> None:
        """Kill the node and wait until it has stopped."""

    def pause(self) -> None:
        """Pause the node."""

    def resume(self) -> None:
        """Resume the node."""

    def log_tail(self) -> str:
        """Return the end of the node's log."""

    def close(self) -> None:
        """Stop the node and remove its resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """All nodes of a cluster, before they are started."""

    controller: Node
    brokers: Mapping[int, Node]

    def all(self) -> list[Node]:
        """Return the controller, followed by the brokers."""
        return [self.controller, *self.brokers.values()]


class NodeCluster(ABC):
    """A cluster of nodes. The constructor starts it.

    Raises `ClusterStartError` with the end of the logs if a node does not start.
    """

    def __init__(
        self, *, brokers: int, links: Links | None, prefix: str, security: Security | None = None
    ) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster requires at least one broker, got {brokers}")
        self._broker_ids = tuple(range(1, brokers + 1))
        self._links = links or DirectLinks()
        self._temporary = tempfile.TemporaryDirectory(prefix=prefix)
        self._directory = Path(self._temporary.name)
        self._secured = secured_listeners(security, self._directory)
        self._nodes: Nodes | None = None
        try:
            self._first_start()
        except BaseException:
            self.close()
            raise

    @property
    @abstractmethod
    def backend(self) -> str: ...

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def _make_nodes(self, plan: Plan) -> Nodes:
        """Write the nodes' configuration and create the nodes.

        If another process has taken a port, this method is called again with other ports.
        """

    @abstractmethod
    def data_directory(self, broker_id: int) -> Path: ...

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self._broker_ids

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self._plan.advertised[broker_id] for broker_id in self._broker_ids)

    @property
    def secured(self) -> SecuredListeners:
        assert self._secured is not None, "the cluster has no secured listeners"
        return self._secured

    def address(self, broker_id: int) -> str:
        self._check_id(broker_id)
        return self._plan.advertised[broker_id]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and wait until its partition leaders serve requests."""
        topics.create_topic(
            self._any_listener(),
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=assignment,
            configs=configs,
        )

    def stop_broker(self, broker_id: int) -> None:
        """Send SIGTERM and, after a timeout, SIGKILL."""
        self._broker(broker_id).stop()

    def kill_broker(self, broker_id: int) -> None:
        """Send SIGKILL."""
        self._broker(broker_id).kill()

    def start_broker(self, broker_id: int) -> None:
        """Restart a broker and wait until all running brokers have it in their metadata."""
        self._broker(broker_id).start()
        self._await_ready()

    def pause_broker(self, broker_id: int) -> None:
        """Send SIGSTOP."""
        self._broker(broker_id).pause()

    def resume_broker(self, broker_id: int) -> None:
        """Send SIGCONT."""
        self._broker(broker_id).resume()

    def stop_controller(self) -> None:
        """Send SIGTERM and, after a timeout, SIGKILL."""
        self._created_nodes.controller.stop()

    def kill_controller(self) -> None:
        """Send SIGKILL."""
        self._created_nodes.controller.kill()

    def start_controller(self) -> None:
        """Restart the controller. Brokers reconnect to it."""
        self._created_nodes.controller.start()

    def logs(self) -> str:
        """Return the end of each node's log."""
        nodes = [] if self._nodes is None else self._nodes.all()
        return "".join(f"--- {node.name} ---\n{end}" for node in nodes if (end := node.log_tail()))

    def close(self) -> None:
        """Stop all brokers together and then the controller.

        A clean shutdown of a broker requires the controller.
        """
        if self._nodes is not None:
            for broker in self._nodes.brokers.values():
                if broker.is_started:
                    broker.terminate()
            for node in reversed(self._nodes.all()):
                node.close()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _first_start(self) -> None:
        """Start all nodes together. If another process has taken a port, retry with new ports."""
        for attempt in range(1, START_ATTEMPTS + 1):
            self._plan = self._planned()
            self._nodes = self._make_nodes(self._plan)
            for node in self._nodes.all():
                node.start()
            try:
                self._await_ready()
                return
            except ClusterStartError as failed:
                if attempt == START_ATTEMPTS or "Address already in use" not in str(failed):
                    raise
                for node in self._nodes.all():
                    node.kill()

    def _planned(self) -> Plan:
        controller_port, *ports = free_ports(len(self._broker_ids) + 1)
        controller = f"{HOST}:{controller_port}"
        listeners = {
            broker_id: f"{HOST}:{port}"
            for broker_id, port in zip(self._broker_ids, ports, strict=True)
        }
        return Plan(
            controller=controller,
            listeners=listeners,
            advertised={i: self._links.to_broker(i, listeners[i]) for i in self._broker_ids},
            controller_addresses={
                i: self._links.to_controller(i, controller) for i in self._broker_ids
            },
        )

    def _await_ready(self) -> None:
        """Wait until each running broker has all running brokers in its metadata."""
        running = {i: node for i, node in self._created_nodes.brokers.items() if node.is_active}
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for broker_id in running:
            try:
                topics.await_brokers(
                    self._plan.listeners[broker_id],
                    broker_ids=running.keys(),
                    deadline_s=deadline_s,
                    give_up=lambda: self._failure(running.values()),
                )
            except TimeoutError as error:
                raise ClusterStartError(
                    f"{self.version}: broker {broker_id}: {error}. End of the logs:\n{self.logs()}"
                ) from None

    def _failure(self, brokers: Iterable[Node]) -> str | None:
        """Return why the brokers cannot become ready, or None."""
        controller = self._created_nodes.controller
        for node in [*brokers, *([controller] if controller.is_started else [])]:
            if reason := node.failure():
                return f"{node.name}: {reason}"
        return None

    def _any_listener(self) -> str:
        for broker_id, node in self._created_nodes.brokers.items():
            if node.is_active:
                return self._plan.listeners[broker_id]
        raise ValueError("no broker is running: start one first")

    @property
    def _created_nodes(self) -> Nodes:
        assert self._nodes is not None, "the constructor creates the nodes"
        return self._nodes

    def _broker(self, broker_id: int) -> Node:
        self._check_id(broker_id)
        return self._created_nodes.brokers[broker_id]

    def _check_id(self, broker_id: int) -> None:
        if broker_id not in self._broker_ids:
            known = ", ".join(map(str, self._broker_ids))
            raise ValueError(f"the cluster has no broker {broker_id}; its brokers are {known}")
