"""The simulated cluster without latency, with the faults that tests inject."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.events import (
    CloseConnection,
    Effect,
    Event,
    NoResponse,
    PeerEffect,
    RequestFailed,
    SendFrame,
    SendRequest,
    TimePassed,
)
from broker_ref.faults import Faults
from broker_ref.log.errors import LogError
from broker_ref.log.log_dir import UNKNOWN_LOG_DIR, LogDir
from broker_ref.log.storage import StorageError
from broker_ref.node.broker import BrokerNode
from broker_ref.node.controller import ControllerNode
from broker_ref.node.registration import BrokerState
from integration.simulation.cluster import CONTROLLER, Process, SimulatedCluster, host_of
from integration.simulation.event_queue import EventQueue
from integration.simulation.network import FIRST_CONNECTION_ID, NetworkConditions
from tests.broker_ref.memory_storage import MemoryStorage

NO_LATENCY = NetworkConditions(delay_max_ms=0, slow_chance=0.0, reset_max_ms=0)


class NodeFailedError(Exception):
    """A node could not start."""


class VirtualCluster(SimulatedCluster):
    """A cluster whose messages arrive without delay. Tests decide when the time advances.

    `client_effects` contains the effects for connections that are not in the network.
    """

    def __init__(
        self,
        *configs: BrokerConfig,
        disks: Mapping[str, Any] | None = None,
        seed: int = 1,
        log_dir: LogDir = UNKNOWN_LOG_DIR,
    ) -> None:
        self.faults = Faults()
        self.event_queue = EventQueue()
        self.client_effects: list[Effect] = []
        super().__init__(
            {config.node_id: config for config in configs},
            event_queue=self.event_queue,
            random=Random(seed),
            network_conditions=NO_LATENCY,
            seed=str(seed),
            features={},
            faults=self.faults,
            log_dir=log_dir,
        )
        self.disks.update({host: MemoryStorage() for host in self.hosts} | dict(disks or {}))
        self._node_ids: dict[str | None, int] = {host_of(each): each for each in self.configs}
        self._node_ids[CONTROLLER] = CONTROLLER_ID
        self.faults.listen(self._faults_changed)

    @property
    def now_ms(self) -> int:
        return self.event_queue.now_ms

    @property
    def running(self) -> list[int]:
        return [each for each in self.configs if self.is_running(host_of(each))]

    @property
    def controller(self) -> ControllerNode:
        node = super().controller
        assert node is not None
        return node

    def broker(self, broker_id: int) -> BrokerNode:
        node = super().broker(broker_id)
        assert node is not None
        return node

    def disk(self, host: str) -> MemoryStorage:
        disk = self.disks[host]
        assert isinstance(disk, MemoryStorage)
        return disk

    def start_all(self) -> None:
        """Start all nodes and run until all brokers serve. Raises: NodeFailedError."""
        for host in self.hosts:
            self.start(host)
        self.run_until(lambda: bool(self.failures) or all(map(self.is_serving, self.configs)))
        if self.failures:
            raise NodeFailedError(*self.failures.values())

    def start_broker(self, broker_id: int) -> None:
        self.start(host_of(broker_id))

    def start_controller(self) -> None:
        self.start(CONTROLLER)

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly: it moves its leaderships and flushes its logs."""
        node = self.broker(broker_id)
        node.begin_shutdown()
        self.step(host_of(broker_id), TimePassed())
        self.run_until(lambda: node.state is BrokerState.SHUTTING_DOWN)
        self.kill(host_of(broker_id))
        node.close(self.now_ms)

    def handle(self, broker_id: int, event: Event) -> list[Effect]:
        """Pass an event to a broker and return the effects for its clients."""
        self.step(host_of(broker_id), event)
        self.deliver()
        return self.take_effects()

    def take_effects(self) -> list[Effect]:
        """Return the effects for clients since the last call."""
        effects, self.client_effects = self.client_effects, []
        return effects

    def deliver(self) -> None:
        """Deliver all messages."""
        self.advance(0)

    def advance(self, milliseconds: int) -> None:
        self.event_queue.run_until(self.now_ms + milliseconds)

    def run_until(self, condition: Callable[[], bool], *, limit_ms: int = 120_000) -> None:
        """Advance the time until a condition holds; fail after the limit."""
        limit = self.now_ms + limit_ms
        self.deliver()
        while not condition():
            next_ms = self.event_queue.next_ms
            assert next_ms is not None, "no node has a deadline"
            assert next_ms <= limit, f"the condition did not hold within {limit_ms} ms"
            self.event_queue.run_until(next_ms)

    def _fail_start(self, host: str, error: LogError | StorageError) -> None:
        raise error

    def _fail(self, host: str, reason: str) -> None:
        self.failures[host] = reason

    def _carry_out(self, host: str, process: Process, effect: Effect | PeerEffect) -> None:
        match effect:
            case SendRequest() if self._is_cut(host, effect.channel.host):
                failed = RequestFailed(request_id=effect.request_id, reason="the link is cut")
                incarnation = process.incarnation
                self.event_queue.after(0, lambda: self.step(host, failed, incarnation=incarnation))
            case SendFrame() | NoResponse() | CloseConnection() if (
                effect.connection_id < FIRST_CONNECTION_ID
            ):
                self.client_effects.append(effect)
            case SendFrame() if self._is_cut(host, self.network.source_of(effect.connection_id)):
                self.network.send_response(effect.connection_id, None)
            case _:
                super()._carry_out(host, process, effect)

    def _is_cut(self, source: str, target: str | None) -> bool:
        """Return whether a link is cut. Links of clients are never cut."""
        ids = [self._node_ids.get(host, -1) for host in (source, target)]
        return self.faults.link_is_cut(*ids)

    def _faults_changed(self) -> None:
        """Break the connections of cut links and let all nodes continue, as the I/O layer does."""
        self.network.break_where(self._is_cut)
        for host in self.hosts:
            self.step(host, TimePassed())
        self.deliver()
