"""A cluster whose nodes are processes or containers: the base of all backends but `reference`.

Purpose: start brokers 1 to n and a controller together, and wait until each broker serves and knows
all others. Invariant: all files are in one temporary directory, all ports on loopback; a node keeps
its port until `close`. What it must not know: how a node is started and configured; a backend
implements that in `_make_nodes`.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from integration.clusters import topics
from integration.clusters.base import ClusterStartError, DirectLinks, Links
from integration.clusters.ports import free_ports

HOST = "127.0.0.1"
CONTROLLER_ID = 3000
START_TIMEOUT_S = 120.0
START_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The listen addresses and the advertised addresses of the nodes."""

    controller: str
    listeners: Mapping[int, str]
    advertised: Mapping[int, str]
    controller_as_seen_by: Mapping[int, str]


class Node(Protocol):
    """A controller or a broker, which can be restarted. Raise `ValueError` in the wrong state."""

    @property
    def name(self) -> str:
        """The name for messages, such as `broker 1`."""

    @property
    def is_started(self) -> bool:
        """Whether it was started and not stopped or killed; it may have exited by itself."""

    @property
    def is_active(self) -> bool:
        """Whether it was started and not paused; it may have exited by itself."""

    def failure(self) -> str | None:
        """The reason why it will never be ready, or None."""

    def start(self) -> None:
        """Start it and return at once."""

    def terminate(self) -> None:
        """Request a clean stop and return at once; `stop` or `kill` must follow."""

    def stop(self) -> None:
        """Stop it cleanly, or by force after a timeout."""

    def kill(self) -> None:
        """Kill it and wait for the end."""

    def pause(self) -> None:
        """Pause it."""

    def resume(self) -> None:
        """Resume it."""

    def log_end(self) -> str:
        """Return its last output."""

    def close(self) -> None:
        """Stop it and remove its remains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """All nodes of a cluster, before their start."""

    controller: Node
    brokers: Mapping[int, Node]

    def all(self) -> list[Node]:
        """The controller, then the brokers."""
        return [self.controller, *self.brokers.values()]


class NodeCluster(ABC):
    """A `Cluster` of nodes; starts in its constructor.

    Raise `ClusterStartError` with the end of its logs if a node does not start.
    """

    def __init__(self, *, brokers: int, links: Links | None, prefix: str) -> None:
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self._broker_ids = tuple(range(1, brokers + 1))
        self._links = links or DirectLinks()
        self._temporary = tempfile.TemporaryDirectory(prefix=prefix)
        self._directory = Path(self._temporary.name)
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
        """Write the nodes' configuration and create them.

        Called again with other ports if another process took one of these.
        """

    @abstractmethod
    def data_directory(self, broker_id: int) -> Path: ...

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return self._broker_ids

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self._plan.advertised[broker_id] for broker_id in self._broker_ids)

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
        """Create a topic and wait until the leaders of its partitions serve them."""
        topics.create_topic(
            self._any_listener(),
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=assignment,
            configs=configs,
        )

    def stop_broker(self, broker_id: int) -> None:
        """Send SIGTERM, or SIGKILL after a timeout."""
        self._broker(broker_id).stop()

    def kill_broker(self, broker_id: int) -> None:
        """Send SIGKILL."""
        self._broker(broker_id).kill()

    def start_broker(self, broker_id: int) -> None:
        """Restart it; return when it serves and every other running broker knows it."""
        self._broker(broker_id).start()
        self._await_ready()

    def pause_broker(self, broker_id: int) -> None:
        """Send SIGSTOP."""
        self._broker(broker_id).pause()

    def resume_broker(self, broker_id: int) -> None:
        """Send SIGCONT."""
        self._broker(broker_id).resume()

    def stop_controller(self) -> None:
        """Send SIGTERM, or SIGKILL after a timeout."""
        self._made.controller.stop()

    def kill_controller(self) -> None:
        """Send SIGKILL."""
        self._made.controller.kill()

    def start_controller(self) -> None:
        """Restart it; brokers reconnect to it."""
        self._made.controller.start()

    def logs(self) -> str:
        """Return the last output of each node."""
        nodes = [] if self._nodes is None else self._nodes.all()
        return "".join(f"--- {node.name} ---\n{end}" for node in nodes if (end := node.log_end()))

    def close(self) -> None:
        """End all nodes: first all brokers together, since they hand over to the controller."""
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
        """Start all nodes together; retry with new ports if another process took one."""
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
            controller_as_seen_by={
                i: self._links.to_controller(i, controller) for i in self._broker_ids
            },
        )

    def _await_ready(self) -> None:
        """Wait until each running broker serves and knows all running ones."""
        running = {i: node for i, node in self._made.brokers.items() if node.is_active}
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
                    f"{self.version}: broker {broker_id}: {error}. The logs end:\n{self.logs()}"
                ) from None

    def _failure(self, brokers: Iterable[Node]) -> str | None:
        """Return the reason why a start can no longer succeed, or None."""
        controller = self._made.controller
        for node in [*brokers, *([controller] if controller.is_started else [])]:
            if reason := node.failure():
                return f"{node.name}: {reason}"
        return None

    def _any_listener(self) -> str:
        for broker_id, node in self._made.brokers.items():
            if node.is_active:
                return self._plan.listeners[broker_id]
        raise ValueError("no broker is running: start one first")

    @property
    def _made(self) -> Nodes:
        assert self._nodes is not None, "the constructor makes them"
        return self._nodes

    def _broker(self, broker_id: int) -> Node:
        self._check_id(broker_id)
        return self._made.brokers[broker_id]

    def _check_id(self, broker_id: int) -> None:
        if broker_id not in self._broker_ids:
            known = ", ".join(map(str, self._broker_ids))
            raise ValueError(f"there is no broker {broker_id} in this cluster; it has {known}")
