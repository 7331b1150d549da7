"""The nodes of a simulated cluster: a controller and brokers, each with its own disk.

The cluster runs nodes as the asyncio layer of broker_ref does, but in virtual time. It passes
events to nodes, carries out the effects that they return, wakes nodes at their deadlines and stops
nodes that fail. It also starts, kills, stops and pauses nodes and cuts their power. Invariant: all
events of a node come from the event queue, so a run depends only on the seed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from broker_ref.config import BrokerConfig
from broker_ref.events import (
    Channel,
    CloseChannel,
    CloseConnection,
    ConnectionClosed,
    ConnectionOpened,
    Effect,
    Event,
    FrameReceived,
    NoResponse,
    PeerEffect,
    RequestFailed,
    ResponseReceived,
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
from broker_ref.security.listeners import Endpoint
from integration.simulation.disk import INJECTED, CrashedError, SimulatedDisk
from integration.simulation.event_queue import EventQueue
from integration.simulation.network import Connection, Network, NetworkConditions

CONTROLLER: Final = "controller"
PORT: Final = 9092

_NOT_LISTENING: Final = frozenset(
    {BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.UNFENCING}
)

Node = BrokerNode | ControllerNode
OnStep = Callable[[str, Node], None]
Note = Callable[[str], None]


def host_of(broker_id: int) -> str:
    """Return the host name of a broker."""
    return f"broker-{broker_id}"


def seeded_bytes(seed: str | int = 1) -> Callable[[int], bytes]:
    """Return a function that returns the same random bytes in every run."""
    state = hashlib.sha256(str(seed).encode()).digest()

    def draw(count: int) -> bytes:
        nonlocal state
        out = b""
        while len(out) < count:
            state = hashlib.sha256(state).digest()
            out += state
        return out[:count]

    return draw


class UnexplainedFailureError(Exception):
    """A node failed, and no injected disk error explains the failure."""


@dataclass(slots=True)
class Process:
    """A run of a node, which begins when the node starts and ends when it stops or fails.

    `incarnation` distinguishes this run from earlier and later runs of the same node. While the
    node is paused, `kept` contains the events that it has not yet processed. The node's clock is
    `skew_ms` ahead of the event queue.
    """

    node: Node
    incarnation: int
    skew_ms: int
    channels: dict[Channel, Connection] = field(default_factory=dict)
    wake_ms: int | None = None
    kept: list[Event] | None = None
    is_ending: bool = False


class _NodeCaller:
    """The network's `Caller` for one run of a node."""

    def __init__(self, cluster: SimulatedCluster, host: str, incarnation: int) -> None:
        self._cluster = cluster
        self._host = host
        self._incarnation = incarnation

    def responded(self, request_id: int, frame: bytes) -> None:
        event = ResponseReceived(request_id=request_id, frame=frame)
        self._cluster.step(self._host, event, incarnation=self._incarnation)

    def failed(self, request_id: int, reason: str) -> None:
        event = RequestFailed(request_id=request_id, reason=reason)
        self._cluster.step(self._host, event, incarnation=self._incarnation)


class SimulatedCluster:
    """The nodes of a cluster, by host name.

    `on_step` is called after every step of a node. `note` is called with each line of the trace.
    `failures` contains the errors of failed nodes, by host name. `faults` and `log_dir` are passed
    to the nodes. Whenever a node starts, a random clock skew of up to `clock_skew_ms_max` is chosen
    for this node.
    """

    def __init__(
        self,
        configs: Mapping[int, BrokerConfig],
        *,
        event_queue: EventQueue,
        random: Random,
        network_conditions: NetworkConditions,
        seed: str,
        features: Mapping[str, int],
        clock_skew_ms_max: int = 0,
        on_step: OnStep = lambda _host, _node: None,
        note: Note = lambda _line: None,
        faults: Faults | None = None,
        log_dir: LogDir = UNKNOWN_LOG_DIR,
    ) -> None:
        self.configs = dict(configs)
        self.disks = {host: SimulatedDisk() for host in self.hosts}
        self.failures: dict[str, str] = {}
        self.network = Network(event_queue, self, random, network_conditions)
        self.digest = 0
        self._event_queue = event_queue
        self._seed = seed
        self._features = dict(features)
        self._clock_skew_ms_max = clock_skew_ms_max
        self._on_step = on_step
        self._note = note
        self._faults = faults
        self._log_dir = log_dir
        self._processes: dict[str, Process] = {}
        self._incarnations = 0

    @property
    def hosts(self) -> list[str]:
        """The host names of all nodes, starting with the controller."""
        return [CONTROLLER, *(host_of(broker_id) for broker_id in self.configs)]

    @property
    def controller(self) -> ControllerNode | None:
        """The controller if it is running, otherwise None."""
        process = self._processes.get(CONTROLLER)
        node = process.node if process is not None else None
        assert node is None or isinstance(node, ControllerNode)
        return node

    def broker(self, broker_id: int) -> BrokerNode | None:
        """Return the broker if it is running, otherwise None."""
        process = self._processes.get(host_of(broker_id))
        node = process.node if process is not None else None
        assert node is None or isinstance(node, BrokerNode)
        return node

    def is_running(self, host: str) -> bool:
        """Return whether a node is running."""
        return host in self._processes

    def is_serving(self, broker_id: int) -> bool:
        """Return whether a broker is in state RUNNING and not paused."""
        process = self._processes.get(host_of(broker_id))
        return (
            process is not None
            and process.kept is None
            and isinstance(process.node, BrokerNode)
            and process.node.state is BrokerState.RUNNING
        )

    # Incarnations

    def start(self, host: str) -> None:
        """Start a node. If the start fails, `failures` contains the error."""
        self._incarnations += 1
        name = f"{self._seed}/{host}/{self._incarnations}"
        random_bytes = seeded_bytes(name)
        limit_ms = self._clock_skew_ms_max
        skew_ms = Random(f"clock {name}").randint(-limit_ms, limit_ms) if limit_ms else 0
        now_ms = self._event_queue.now_ms + skew_ms
        self.failures.pop(host, None)
        self._note(f"{host} starts")
        node: Node
        try:
            if host == CONTROLLER:
                node = ControllerNode(
                    next(iter(self.configs.values())),
                    storage=self.disks[host],
                    now_ms=now_ms,
                    random_bytes=random_bytes,
                    faults=self._faults,
                    features=self._features,
                )
            else:
                broker_id = next(each for each in self.configs if host_of(each) == host)
                node = BrokerNode(
                    self.configs[broker_id],
                    storage=self.disks[host],
                    controller=(CONTROLLER, PORT),
                    now_ms=now_ms,
                    random_bytes=random_bytes,
                    faults=self._faults,
                    log_dir=self._log_dir,
                )
        except CrashedError:
            self._note(f"{host} crashes at its start")
            return
        except (LogError, StorageError) as error:
            self._fail_start(host, error)
            return
        self._processes[host] = Process(node=node, incarnation=self._incarnations, skew_ms=skew_ms)
        if isinstance(node, BrokerNode):
            node.start([Endpoint(listener="PLAINTEXT", host=host, port=PORT)])
        self.step(host, TimePassed())

    def kill(self, host: str) -> None:
        """Kill the process of a node. All data that the process wrote stays on its disk."""
        if self._processes.pop(host, None) is not None:
            self._note(f"{host} ends")
            self.network.break_host(host)

    def lose_power(self, host: str, random: Random) -> None:
        """Cut a machine's power. Its disk loses data that was not flushed."""
        self.kill(host)
        self.disks[host].lose_power(random)

    def stop(self, broker_id: int, then: Callable[[], None]) -> None:
        """Shut down a broker cleanly and then call `then`.

        Does nothing if the broker is not running.
        """
        host = host_of(broker_id)
        process = self._processes.get(host)
        if process is None or not isinstance(process.node, BrokerNode):
            return
        process.node.begin_shutdown()
        self.step(host, TimePassed())
        self._await_stop(host, process, then)

    def _await_stop(self, host: str, process: Process, then: Callable[[], None]) -> None:
        node = process.node
        if self._processes.get(host) is not process or not isinstance(node, BrokerNode):
            return
        if node.state is BrokerState.SHUTTING_DOWN and process.kept is None:
            self.kill(host)
            try:
                node.close(self._event_queue.now_ms + process.skew_ms)
            except (LogError, StorageError, CrashedError) as error:
                self._note(f"{host} could not close its logs: {error!r}")
            then()
        else:
            self._event_queue.after(100, lambda: self._await_stop(host, process, then))

    def pause(self, host: str) -> None:
        """Pause a node. Its connections stay open, but it processes no events."""
        process = self._processes.get(host)
        if process is not None and process.kept is None:
            process.kept = []

    def resume(self, host: str) -> None:
        """Resume a paused node. It processes the events that arrived during the pause."""
        process = self._processes.get(host)
        if process is None or process.kept is None:
            return
        kept, process.kept = process.kept, None
        for event in kept:
            self.step(host, event, incarnation=process.incarnation)
        self.step(host, TimePassed(), incarnation=process.incarnation)

    # Steps

    def step(self, host: str, event: Event, *, incarnation: int | None = None) -> None:
        """Pass an event to a node and carry out the effects."""
        process = self._processes.get(host)
        if process is None or process.is_ending or incarnation not in (None, process.incarnation):
            return
        if process.kept is not None:
            if not isinstance(event, TimePassed):
                process.kept.append(event)
            return
        node = process.node
        try:
            effects = node.handle(event, self._event_queue.now_ms + process.skew_ms)
        except CrashedError:
            self.kill(host)
            return
        for effect in effects:
            self._carry_out(host, process, effect)
        self._on_step(host, node)
        failure = node.failure
        if failure is not None:
            process.is_ending = True
            self._event_queue.after(0, lambda: self._end(host, process, failure))
            return
        deadline_ms = node.next_deadline_ms()
        if deadline_ms is None:
            return
        wake_ms = deadline_ms - process.skew_ms
        if process.wake_ms is None or wake_ms < process.wake_ms:
            process.wake_ms = wake_ms
            self._event_queue.at(wake_ms, lambda: self._wake(host, process, wake_ms))

    def _wake(self, host: str, process: Process, wake_ms: int) -> None:
        if process.wake_ms == wake_ms:
            process.wake_ms = None
            self.step(host, TimePassed(), incarnation=process.incarnation)

    def _end(self, host: str, process: Process, reason: str) -> None:
        if self._processes.get(host) is process:
            self._fail(host, reason)
            self.kill(host)

    def _fail_start(self, host: str, error: LogError | StorageError) -> None:
        self._fail(host, str(error))

    def _fail(self, host: str, reason: str) -> None:
        self.failures[host] = reason
        self._note(f"{host} fails: {reason}")
        if not any(injected in reason for injected in INJECTED):
            raise UnexplainedFailureError(f"{host} failed without an injected fault: {reason}")

    def _carry_out(self, host: str, process: Process, effect: Effect | PeerEffect) -> None:
        match effect:
            case SendRequest():
                self._request(host, process, effect)
            case SendFrame():
                self._mix(host, effect.frame)
                self.network.send_response(effect.connection_id, effect.frame)
            case NoResponse():
                self.network.send_response(effect.connection_id, None)
            case CloseConnection():
                self.network.hang_up(effect.connection_id)
            case CloseChannel():
                connection = process.channels.pop(effect.channel, None)
                if connection is not None and connection.is_open_at_source:
                    self.network.close(connection)

    def _request(self, host: str, process: Process, effect: SendRequest) -> None:
        self._mix(host, effect.frame)
        connection = process.channels.get(effect.channel)
        if connection is None or not connection.is_open_at_source:
            caller = _NodeCaller(self, host, process.incarnation)
            connection = self.network.connect(host, effect.channel.host, caller)
            process.channels[effect.channel] = connection
        self.network.send(connection, effect.request_id, effect.frame)

    def _mix(self, host: str, frame: bytes) -> None:
        """Add a frame to the digest of the run, so that different runs have different digests."""
        self.digest = zlib.crc32(
            frame, zlib.crc32(f"{host}@{self._event_queue.now_ms}".encode(), self.digest)
        )

    # As the network's server

    def is_node(self, host: str) -> bool:
        return host in self.disks

    def listens(self, host: str) -> bool:
        """Return whether a node accepts connections. A broker must be registered and unfenced."""
        process = self._processes.get(host)
        return process is not None and not (
            isinstance(process.node, BrokerNode)
            and (process.node.broker is None or process.node.state in _NOT_LISTENING)
        )

    def opened(self, host: str, connection_id: int, peer: str) -> None:
        opened = ConnectionOpened(connection_id=connection_id, peer=f"{peer}:1", local=(host, PORT))
        self.step(host, opened)

    def received(self, host: str, connection_id: int, frame: bytes) -> None:
        self.step(host, FrameReceived(connection_id=connection_id, frame=frame))

    def closed(self, host: str, connection_id: int) -> None:
        self.step(host, ConnectionClosed(connection_id=connection_id))
