"""A cluster's nodes in one process and virtual time, with a network without latency."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID
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
from broker_ref.log.log_dir import UNKNOWN_LOG_DIR, LogDir
from broker_ref.log.storage import Storage
from broker_ref.node.broker import BrokerNode
from broker_ref.node.controller import ControllerNode
from broker_ref.node.registration import BrokerState
from integration.simulation.cluster import seeded_bytes
from tests.broker_ref.memory_storage import MemoryStorage

START_MS = 1_700_000_000_000
CONTROLLER = ("controller.test", 19093)
FIRST_PEER_CONNECTION = 1_000_000

Address = tuple[str, int]


def address_of(broker_id: int) -> Address:
    """Return the address of a broker in a virtual cluster."""
    return (f"broker-{broker_id}.test", 19092)


class NodeFailedError(Exception):
    """A node could not start."""


@dataclass
class Link:
    """A channel of one node and a connection of another; requests in order."""

    source: Address
    channel: Channel
    connection_id: int
    waiting: deque[SendRequest] = field(default_factory=deque)


class VirtualCluster:
    """A controller and brokers, whose effects for clients are collected by broker.

    A node that cannot continue ends after its last effects, as in the I/O layer; `failures` has the
    reasons.
    """

    def __init__(
        self,
        *configs: BrokerConfig,
        storages: dict[int, Storage] | None = None,
        controller_storage: Storage | None = None,
        now_ms: int = START_MS,
        seed: int = 1,
        log_dir: LogDir = UNKNOWN_LOG_DIR,
    ) -> None:
        self.faults = Faults()
        self.faults.listen(self._faults_changed)
        self.failures: dict[Address, str] = {}
        self.configs = {config.node_id: config for config in configs or (BrokerConfig(),)}
        self.storages: dict[int, Storage] = storages if storages is not None else {}
        self.controller_storage: Storage = controller_storage or MemoryStorage()
        self.now_ms = now_ms
        self.client_effects: dict[int, list[Effect]] = {each: [] for each in self.configs}
        self.cut: set[frozenset[Address]] = set()
        self._seed = seed
        self._log_dir = log_dir
        self._failed: list[Address] = []
        self._nodes: dict[Address, BrokerNode | ControllerNode] = {}
        self._links: dict[tuple[Address, Channel], Link] = {}
        self._queue: deque[tuple[Address, Effect | PeerEffect]] = deque()
        self._next_connection = FIRST_PEER_CONNECTION

    def broker(self, broker_id: int) -> BrokerNode:
        """Return a running broker."""
        node = self._nodes[address_of(broker_id)]
        assert isinstance(node, BrokerNode)
        return node

    @property
    def running(self) -> list[int]:
        """Return the brokers that are running."""
        return [each for each in self.configs if address_of(each) in self._nodes]

    @property
    def controller(self) -> ControllerNode:
        """Return the running controller."""
        node = self._nodes[CONTROLLER]
        assert isinstance(node, ControllerNode)
        return node

    def start(self) -> None:
        """Start all nodes and run until all brokers serve. Raises: NodeFailedError."""
        self.start_controller()
        for broker_id in self.configs:
            self.start_broker(broker_id)
        self.run_until(
            lambda: (
                bool(self.failures)
                or all(self.broker(each).state is BrokerState.RUNNING for each in self.configs)
            )
        )
        if self.failures:
            raise NodeFailedError(*self.failures.values())

    def start_controller(self) -> None:
        self._seed += 1
        self.failures.pop(CONTROLLER, None)
        config = next(iter(self.configs.values()))
        self._nodes[CONTROLLER] = ControllerNode(
            config,
            storage=self.controller_storage,
            now_ms=self.now_ms,
            random_bytes=seeded_bytes(self._seed),
            faults=self.faults,
        )

    def start_broker(self, broker_id: int) -> None:
        """Start a broker, which joins as time advances."""
        self._seed += 1
        storage = self.storages.setdefault(broker_id, MemoryStorage())
        node = BrokerNode(
            self.configs[broker_id],
            storage=storage,
            controller=CONTROLLER,
            now_ms=self.now_ms,
            random_bytes=seeded_bytes(self._seed),
            faults=self.faults,
            log_dir=self._log_dir,
        )
        self.failures.pop(address_of(broker_id), None)
        self._nodes[address_of(broker_id)] = node
        node.start(*address_of(broker_id))
        self._step(address_of(broker_id), TimePassed())
        self.deliver()

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly: it moves its leaderships and flushes its logs."""
        node = self.broker(broker_id)
        node.begin_shutdown()
        self._step(address_of(broker_id), TimePassed())
        self.run_until(lambda: node.state is BrokerState.SHUTTING_DOWN)
        self.crash(address_of(broker_id))
        node.close(self.now_ms)

    def crash(self, address: Address) -> None:
        """Remove a node and break its connections; the caller owns its storage."""
        del self._nodes[address]
        for key, link in list(self._links.items()):
            if address in (link.source, (link.channel.host, link.channel.port)):
                self._break(key)
        self.deliver()

    def handle(self, broker_id: int, event: Event) -> list[Effect]:
        """Pass an event to a broker and return the effects for its clients."""
        self._step(address_of(broker_id), event)
        self.deliver()
        return self.take_effects(broker_id)

    def take_effects(self, broker_id: int) -> list[Effect]:
        """Return the effects for a broker's clients since the last call."""
        effects, self.client_effects[broker_id] = self.client_effects[broker_id], []
        return effects

    def deliver(self) -> None:
        """Perform all pending effects at the current time."""
        while self._queue or self._failed:
            if not self._queue:
                self.crash(self._failed.pop())
                continue
            address, effect = self._queue.popleft()
            match effect:
                case SendRequest():
                    self._request(address, effect)
                case CloseChannel():
                    if (address, effect.channel) in self._links:
                        self._break((address, effect.channel))
                case SendFrame() | NoResponse() | CloseConnection():
                    self._respond(address, effect)

    def next_deadline_ms(self) -> int | None:
        """Return the next deadline of any node."""
        deadlines = [node.next_deadline_ms() for node in self._nodes.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def advance(self, milliseconds: int) -> None:
        """Advance the time, deadline by deadline, as the I/O layer does."""
        target_ms = self.now_ms + milliseconds
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= target_ms:
            self._advance_to(deadline_ms)
        self.now_ms = target_ms

    def run_until(self, condition: Callable[[], bool], *, limit_ms: int = 120_000) -> None:
        """Advance the time until a condition holds; fails after the limit."""
        limit = self.now_ms + limit_ms
        self.deliver()
        while not condition():
            deadline_ms = self.next_deadline_ms()
            assert deadline_ms is not None, "nothing happens any more"
            assert deadline_ms <= limit, f"not so within {limit_ms} ms"
            self._advance_to(deadline_ms)

    def _advance_to(self, deadline_ms: int) -> None:
        self.now_ms = max(self.now_ms, deadline_ms)
        for address, node in list(self._nodes.items()):
            due_ms = node.next_deadline_ms()
            if due_ms is not None and due_ms <= self.now_ms:
                self._step(address, TimePassed())
        self.deliver()

    def _step(self, address: Address, event: Event) -> None:
        node = self._nodes.get(address)
        if node is None or address in self._failed:
            return
        for effect in node.handle(event, self.now_ms):
            self._queue.append((address, effect))
        if node.failure is not None:
            self.failures[address] = node.failure
            self._failed.append(address)

    def _request(self, source: Address, effect: SendRequest) -> None:
        target = (effect.channel.host, effect.channel.port)
        if (
            not self._listens(target)
            or frozenset((source, target)) in self.cut
            or self._is_cut(source, target)
        ):
            self._step(source, RequestFailed(request_id=effect.request_id, reason="no connection"))
            return
        link = self._links.get((source, effect.channel))
        if link is None:
            self._next_connection += 1
            link = Link(source=source, channel=effect.channel, connection_id=self._next_connection)
            self._links[source, effect.channel] = link
            opened = ConnectionOpened(
                connection_id=link.connection_id, peer=f"{source[0]}:{source[1]}", local=target
            )
            self._step(target, opened)
        link.waiting.append(effect)
        if len(link.waiting) == 1:  # A node gets one request of a connection at a time.
            self._serve_next(link)

    def _listens(self, address: Address) -> bool:
        """Return whether a node accepts connections; a broker does when it is unfenced."""
        node = self._nodes.get(address)
        return node is not None and not (
            isinstance(node, BrokerNode)
            and node.state in {BrokerState.STARTING, BrokerState.RECOVERY, BrokerState.UNFENCING}
        )

    def _serve_next(self, link: Link) -> None:
        frame = link.waiting[0].frame
        received = FrameReceived(connection_id=link.connection_id, frame=frame)
        self._step((link.channel.host, link.channel.port), received)

    def _respond(self, address: Address, effect: Effect) -> None:
        link = next(
            (each for each in self._links.values() if each.connection_id == effect.connection_id),
            None,
        )
        if link is None:
            if effect.connection_id < FIRST_PEER_CONNECTION:
                broker_id = next(each for each in self.configs if address_of(each) == address)
                self.client_effects[broker_id].append(effect)
            return
        match effect:
            case SendFrame():
                request_id = link.waiting.popleft().request_id
                if not self._is_cut(address, link.source):
                    response = ResponseReceived(request_id=request_id, frame=effect.frame)
                    self._step(link.source, response)
                if link.waiting and self._links.get((link.source, link.channel)) is link:
                    self._serve_next(link)
            case CloseConnection():
                self._break((link.source, link.channel))
            case NoResponse():
                raise AssertionError("nodes ask nothing that has no answer")

    def _is_cut(self, source: Address, target: Address) -> bool:
        return self.faults.link_is_cut(self._node_id(source), self._node_id(target))

    def _node_id(self, address: Address) -> int:
        if address == CONTROLLER:
            return CONTROLLER_ID
        return next(each for each in self.configs if address_of(each) == address)

    def _faults_changed(self) -> None:
        """Break the channels of cut links and let all nodes continue, as the I/O layer does."""
        for key, link in list(self._links.items()):
            if self._is_cut(link.source, (link.channel.host, link.channel.port)):
                self._break(key)
        for address in list(self._nodes):
            self._step(address, TimePassed())
        self.deliver()

    def _break(self, key: tuple[Address, Channel]) -> None:
        link = self._links.pop(key)
        closed = ConnectionClosed(connection_id=link.connection_id)
        self._step((link.channel.host, link.channel.port), closed)
        for request in link.waiting:
            failed = RequestFailed(request_id=request.request_id, reason="the connection broke")
            self._step(link.source, failed)
