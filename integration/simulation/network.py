"""A simulated network with delays, resets and cut links.

The network transports frames in virtual time as TCP does: in order on one connection, and in any
order across connections. Every frame has a random delay, and a small share of frames has a long
delay. A connection can break and lose the frames in transit in both directions. A link between two
hosts can be cut or slow, in one or both directions. On a cut link, either frames wait or
connections break. Waiting frames arrive after the link is repaired, because TCP retransmits them.
If a client closes a connection, the requests that it has sent still arrive. Requests that the
client retries on another connection can therefore arrive twice and out of order.

Invariants: every request either receives one response or fails once, and always in a later step. A
node processes one request per connection at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, Protocol

from integration.simulation.event_queue import EventQueue

FIRST_CONNECTION_ID: Final = 1_000_000
"""Smaller ids are free for connections outside the network."""

CLIENTS: Final = "clients"
"""All hosts that are not nodes, as one end of a link."""

CONNECT_TIMEOUT_MS: Final = 700
SLOW_MS: Final = 400
"""The maximum extra delay of a slow frame."""
SLOW_SHARE: Final = 0.1
"""The share of delayed frames on a slow link."""


def _up_to(random: Random, largest: int) -> int:
    """Return `random.randint(0, largest)`, but faster."""
    bits = (largest + 1).bit_length()
    while (drawn := random.getrandbits(bits)) > largest:
        pass
    return drawn


class Caller(Protocol):
    """The interface of a client or node that sends requests."""

    def responded(self, request_id: int, frame: bytes) -> None:
        """Handle the response to a request."""

    def failed(self, request_id: int, reason: str) -> None:
        """Handle a request that will not get a response."""


class Server(Protocol):
    """The interface for delivering requests to nodes, which are identified by host name."""

    def is_node(self, host: str) -> bool:
        """Return whether a host is a node of the cluster and not a client."""

    def listens(self, host: str) -> bool:
        """Return whether a host accepts connections."""

    def opened(self, host: str, connection_id: int, peer: str) -> None:
        """Handle a new connection."""

    def received(self, host: str, connection_id: int, frame: bytes) -> None:
        """Handle a request."""

    def closed(self, host: str, connection_id: int) -> None:
        """Handle a closed connection."""


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """A connection from `source` to `target`.

    `in_flight` contains the ids of requests without a response, in order. `waiting` contains the
    requests that the target has received but has not responded to yet. `is_open_at_source` and
    `is_open_at_target` indicate whether the connection is open at each end.
    """

    connection_id: int
    source: str
    target: str
    caller: Caller
    in_flight: deque[int] = field(default_factory=deque)
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    is_serving: bool = False
    is_open_at_source: bool = True
    is_open_at_target: bool = False
    is_refused: bool = False
    to_target_ms: int = 0
    to_source_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConditions:
    """The delays of a network and its probabilities of slow frames and resets."""

    delay_max_ms: int = 3
    slow_chance: float = 0.01
    break_chance: float = 0.0
    reset_max_ms: int = 5


@dataclass(slots=True, kw_only=True)
class _Cut:
    """One direction of a link that is cut or slow until `until_ms`.

    If `slow_ms` is positive, the link is slow; otherwise, it is cut. With `requests_only`,
    responses are not affected.
    """

    until_ms: int
    slow_ms: int = 0
    requests_only: bool = False


class Network:
    """All connections of a cluster."""

    def __init__(
        self,
        event_queue: EventQueue,
        server: Server,
        random: Random,
        network_conditions: NetworkConditions,
    ) -> None:
        self.network_conditions = network_conditions
        self._event_queue = event_queue
        self._server = server
        self._random = random
        self._by_id: dict[int, Connection] = {}
        self._cuts: dict[tuple[str, str], _Cut] = {}
        self._last_id = FIRST_CONNECTION_ID

    def connect(self, source: str, target: str, caller: Caller) -> Connection:
        """Open a connection. If the connection cannot be opened, requests on it fail."""
        self._last_id += 1
        connection = Connection(
            connection_id=self._last_id, source=source, target=target, caller=caller
        )
        self._by_id[connection.connection_id] = connection
        cut = self._cut(source, target) or self._cut(target, source)
        if cut is not None and not cut.slow_ms and not cut.requests_only:
            wait_ms = min(CONNECT_TIMEOUT_MS, cut.until_ms - self._event_queue.now_ms)
            connection.is_refused = True
            self._event_queue.after(wait_ms, lambda: self._abort(connection, "no response"))
        else:
            self._send_to_target(connection, lambda: self._arrive(connection), is_request=False)
        return connection

    def send(self, connection: Connection, request_id: int, frame: bytes) -> None:
        """Send a request on a connection that is open at its source."""
        assert connection.is_open_at_source
        connection.in_flight.append(request_id)
        if connection.is_refused:
            return
        if (
            self.network_conditions.break_chance
            and self._random.random() < self.network_conditions.break_chance
        ):
            self.break_connection(connection)
            return
        self._send_to_target(connection, lambda: self._deliver(connection, request_id, frame))

    def close(self, connection: Connection) -> None:
        """Close a connection at its source. Frames that were already sent still arrive."""
        self._fail(connection, "the client closed the connection")
        if not connection.is_refused:
            self._send_to_target(connection, lambda: self._close_at_target(connection))

    def source_of(self, connection_id: int) -> str | None:
        """Return the source of a connection, or None if the connection is closed."""
        connection = self._by_id.get(connection_id)
        return connection.source if connection is not None else None

    def send_response(self, connection_id: int, frame: bytes | None) -> None:
        """Send the response to the current request. `frame` is None if there is no response."""
        connection = self._by_id.get(connection_id)
        if connection is None or not connection.is_open_at_target:
            return
        request_id, _ = connection.waiting.popleft()
        connection.is_serving = False
        if frame is not None:
            self._send_to_source(connection, lambda: self._respond(connection, request_id, frame))
        if connection.waiting:
            self._event_queue.after(0, lambda: self._serve(connection))

    def hang_up(self, connection_id: int) -> None:
        """Close a connection at its target."""
        connection = self._by_id.get(connection_id)
        if connection is not None and connection.is_open_at_target:
            self._close_at_target(connection)
            self._send_to_source(
                connection, lambda: self._abort(connection, "closed by the server")
            )

    # Faults

    def break_connection(self, connection: Connection) -> None:
        """Reset a connection. Frames in transit are lost in both directions."""
        self._close_at_target(connection)
        self._reset(connection)

    def break_host(self, host: str) -> None:
        """Reset all connections of a process that has ended."""
        for connection in list(self._by_id.values()):
            if connection.source == host:
                connection.is_open_at_source = False
                connection.in_flight.clear()
                self._close_at_target(connection)
            elif connection.target == host:
                connection.is_open_at_target = False
                connection.is_refused = True  # Its opening may still be in transit.
                self._reset(connection)

    def break_some(self, host: str, chance: float) -> None:
        """Reset each connection of a host with a given probability."""
        self.break_where(
            lambda source, target: host in (source, target) and self._random.random() < chance
        )

    def break_where(self, is_chosen: Callable[[str, str], bool]) -> None:
        """Reset the connections for which `is_chosen(source, target)` returns true."""
        for connection in list(self._by_id.values()):
            if is_chosen(connection.source, connection.target):
                self.break_connection(connection)

    def cut(self, one: str, other: str, *, until_ms: int, breaks: bool) -> None:
        """Cut the link between two hosts until the time `until_ms`.

        If `breaks` is true, the connections on the link are reset. Otherwise, their frames are
        delayed.
        """
        self.slow_down(one, other, until_ms=until_ms)
        self.slow_down(other, one, until_ms=until_ms)
        if breaks:
            self.break_where(
                lambda source, target: {self._end(source), self._end(target)} == {one, other}
            )

    def slow_down(
        self,
        source: str,
        target: str,
        *,
        until_ms: int,
        slow_ms: int = 0,
        requests_only: bool = False,
    ) -> None:
        """Delay frames, or only requests, from one host to another until the time `until_ms`.

        If `slow_ms` is positive, only some of the frames are delayed, each by up to `slow_ms`.
        """
        self._cuts[source, target] = _Cut(
            until_ms=until_ms, slow_ms=slow_ms, requests_only=requests_only
        )

    @property
    def has_cuts(self) -> bool:
        """Whether any link is cut or slow."""
        return any(cut.until_ms > self._event_queue.now_ms for cut in self._cuts.values())

    def _end(self, host: str) -> str:
        """Return the end of a link to which a host belongs."""
        return host if self._server.is_node(host) else CLIENTS

    def _cut(self, source: str, target: str) -> _Cut | None:
        if not self._cuts:
            return None
        cut = self._cuts.get((self._end(source), self._end(target)))
        return cut if cut is not None and cut.until_ms > self._event_queue.now_ms else None

    # Frames

    def _delay_ms(self, source: str, target: str, *, is_request: bool) -> int:
        conditions = self.network_conditions
        delay_ms = _up_to(self._random, conditions.delay_max_ms)
        if self._random.random() < conditions.slow_chance:
            delay_ms += self._random.randint(0, SLOW_MS)
        cut = self._cut(source, target)
        if cut is not None and cut.requests_only and not is_request:
            cut = None
        if cut is not None and not cut.slow_ms:
            delay_ms += cut.until_ms - self._event_queue.now_ms
        elif cut is not None and self._random.random() < SLOW_SHARE:
            delay_ms += self._random.randint(cut.slow_ms // 2, cut.slow_ms)
        return delay_ms

    def _send_to_target(
        self, connection: Connection, act: Callable[[], None], *, is_request: bool = True
    ) -> None:
        when_ms = self._event_queue.now_ms + self._delay_ms(
            connection.source, connection.target, is_request=is_request
        )
        connection.to_target_ms = max(connection.to_target_ms, when_ms)
        self._event_queue.at(connection.to_target_ms, act)

    def _send_to_source(self, connection: Connection, act: Callable[[], None]) -> None:
        when_ms = self._event_queue.now_ms + self._delay_ms(
            connection.target, connection.source, is_request=False
        )
        connection.to_source_ms = max(connection.to_source_ms, when_ms)
        self._event_queue.at(connection.to_source_ms, act)

    def _arrive(self, connection: Connection) -> None:
        if connection.is_refused:
            return
        if not self._server.listens(connection.target):
            self._event_queue.after(0, lambda: self._abort(connection, "connection refused"))
            connection.is_refused = True
            return
        connection.is_open_at_target = True
        self._server.opened(connection.target, connection.connection_id, connection.source)

    def _deliver(self, connection: Connection, request_id: int, frame: bytes) -> None:
        if connection.is_open_at_target:
            connection.waiting.append((request_id, frame))
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        if connection.waiting and not connection.is_serving and connection.is_open_at_target:
            connection.is_serving = True
            self._server.received(
                connection.target, connection.connection_id, connection.waiting[0][1]
            )

    def _respond(self, connection: Connection, request_id: int, frame: bytes) -> None:
        if connection.is_open_at_source:
            connection.in_flight.remove(request_id)
            connection.caller.responded(request_id, frame)

    def _close_at_target(self, connection: Connection) -> None:
        was_open, connection.is_open_at_target = connection.is_open_at_target, False
        connection.is_refused = True
        connection.waiting.clear()
        if was_open:
            target, connection_id = connection.target, connection.connection_id
            self._event_queue.after(0, lambda: self._server.closed(target, connection_id))
        if not connection.is_open_at_source:
            self._by_id.pop(connection.connection_id, None)

    def _reset(self, connection: Connection) -> None:
        delay_ms = self._random.randint(0, self.network_conditions.reset_max_ms)
        self._event_queue.after(delay_ms, lambda: self._abort(connection, "reset by peer"))

    def _abort(self, connection: Connection, reason: str) -> None:
        self._by_id.pop(connection.connection_id, None)
        self._fail(connection, reason)

    def _fail(self, connection: Connection, reason: str) -> None:
        connection.is_open_at_source = False
        in_flight = list(connection.in_flight)
        connection.in_flight.clear()
        for request_id in in_flight:
            self._event_queue.after(0, partial(connection.caller.failed, request_id, reason))
