"""A simulated network with delays, resets and cut links.

Purpose: carry frames in virtual time as TCP does: in order on one connection, in any order across
connections. Every frame has a random delay, some a long one. A connection can break and lose the
frames that are under way in both directions. A link between two hosts can be cut: its frames wait
until it is repaired (TCP retransmits them), or its connections break. A client that closes a
connection does not revoke what it has sent: that arrives late, next to what it sends again on
another connection, so requests arrive twice and out of order. Invariants: every request gets a
response or fails, once, in a later step; a node processes one request per connection at a time.
What it must not know: the contents of frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, Protocol

from integration.simulation.agenda import Agenda

CONNECT_TIMEOUT_MS: Final = 700
SLOW_MS: Final = 400
"""The maximum extra delay of a slow frame."""


class Caller(Protocol):
    """The sender of requests."""

    def responded(self, request_id: int, frame: bytes) -> None:
        """Receive a response."""

    def failed(self, request_id: int, reason: str) -> None:
        """Learn that there will be no response."""


class Server(Protocol):
    """The receiver of requests: the nodes, by host."""

    def listens(self, host: str) -> bool:
        """Whether a host accepts connections."""

    def opened(self, host: str, connection_id: int, peer: str) -> None:
        """Accept a connection."""

    def received(self, host: str, connection_id: int, frame: bytes) -> None:
        """Receive a request."""

    def closed(self, host: str, connection_id: int) -> None:
        """Learn that a connection is closed."""


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """A connection from `source` to `target`; `asked` are the requests without a response, in
    order.
    """

    connection_id: int
    source: str
    target: str
    caller: Caller
    asked: deque[int] = field(default_factory=deque)
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    is_serving: bool = False
    is_open_here: bool = True
    is_open_there: bool = False
    is_refused: bool = False
    to_target_ms: int = 0
    to_source_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Network conditions: the usual delay, and the probabilities of slow frames and of resets."""

    delay_max_ms: int = 3
    slow_chance: float = 0.01
    break_chance: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Cut:
    until_ms: int
    breaks: bool


class Network:
    """All connections of a cluster."""

    def __init__(self, agenda: Agenda, server: Server, random: Random, weather: Weather) -> None:
        self.weather = weather
        self._agenda = agenda
        self._server = server
        self._random = random
        self._by_id: dict[int, Connection] = {}
        self._cuts: dict[frozenset[str], _Cut] = {}
        self._last_id = 0

    def connect(self, source: str, target: str, caller: Caller) -> Connection:
        """Open a connection; if that fails, its requests fail."""
        self._last_id += 1
        connection = Connection(
            connection_id=self._last_id, source=source, target=target, caller=caller
        )
        self._by_id[connection.connection_id] = connection
        cut = self._cut(source, target)
        if cut is not None:
            wait_ms = min(CONNECT_TIMEOUT_MS, cut.until_ms - self._agenda.now_ms)
            connection.is_refused = True
            self._agenda.after(wait_ms, lambda: self._lose(connection, "no answer"))
        else:
            self._send_there(connection, lambda: self._arrive(connection))
        return connection

    def send(self, connection: Connection, request_id: int, frame: bytes) -> None:
        """Send a request on a connection that is open at its source."""
        assert connection.is_open_here
        connection.asked.append(request_id)
        if connection.is_refused:
            return
        if self.weather.break_chance and self._random.random() < self.weather.break_chance:
            self.break_connection(connection)
            return
        self._send_there(connection, lambda: self._deliver(connection, request_id, frame))

    def close(self, connection: Connection) -> None:
        """Close a connection at its source; frames that were sent still arrive later."""
        self._fail(connection, "the connection was given up")
        if not connection.is_refused:
            self._send_there(connection, lambda: self._close_there(connection))

    def answer(self, connection_id: int, frame: bytes | None) -> None:
        """Send the response of the current request; None if it has none."""
        connection = self._by_id.get(connection_id)
        if connection is None or not connection.is_open_there:
            return
        request_id, _ = connection.waiting.popleft()
        connection.is_serving = False
        if frame is not None:
            self._send_here(connection, lambda: self._respond(connection, request_id, frame))
        if connection.waiting:
            self._agenda.after(0, lambda: self._serve(connection))

    def hang_up(self, connection_id: int) -> None:
        """Close a connection at its target."""
        connection = self._by_id.get(connection_id)
        if connection is not None and connection.is_open_there:
            self._close_there(connection)
            self._send_here(connection, lambda: self._lose(connection, "closed by the server"))

    # Faults

    def break_connection(self, connection: Connection) -> None:
        """Reset a connection; frames under way are lost in both directions."""
        self._close_there(connection)
        self._agenda.after(
            self._random.randint(0, 5), lambda: self._lose(connection, "reset by peer")
        )

    def break_host(self, host: str) -> None:
        """Reset all connections of a process that has ended."""
        for connection in list(self._by_id.values()):
            if connection.source == host:
                connection.is_open_here = False
                connection.asked.clear()
                self._close_there(connection)
            elif connection.target == host:
                connection.is_open_there = False
                self._agenda.after(
                    self._random.randint(0, 5), partial(self._lose, connection, "reset by peer")
                )

    def break_some(self, host: str, chance: float) -> None:
        """Reset some connections of a host."""
        for connection in list(self._by_id.values()):
            if host in (connection.source, connection.target) and self._random.random() < chance:
                self.break_connection(connection)

    def cut(self, one: str, other: str, *, until_ms: int, breaks: bool) -> None:
        """Cut the link between two hosts: reset its connections if `breaks`, else
        delay its frames.
        """
        self._cuts[frozenset((one, other))] = _Cut(until_ms=until_ms, breaks=breaks)
        if breaks:
            for connection in list(self._by_id.values()):
                if {connection.source, connection.target} == {one, other}:
                    self.break_connection(connection)

    @property
    def has_cuts(self) -> bool:
        """Whether any link is cut."""
        return any(cut.until_ms > self._agenda.now_ms for cut in self._cuts.values())

    def _cut(self, one: str, other: str) -> _Cut | None:
        cut = self._cuts.get(frozenset((one, other)))
        return cut if cut is not None and cut.until_ms > self._agenda.now_ms else None

    # Frames

    def _delay_ms(self, connection: Connection) -> int:
        delay_ms = self._random.randint(0, self.weather.delay_max_ms)
        if self._random.random() < self.weather.slow_chance:
            delay_ms += self._random.randint(0, SLOW_MS)
        cut = self._cut(connection.source, connection.target)
        if cut is not None:
            delay_ms += cut.until_ms - self._agenda.now_ms
        return delay_ms

    def _send_there(self, connection: Connection, act: Callable[[], None]) -> None:
        when_ms = self._agenda.now_ms + self._delay_ms(connection)
        connection.to_target_ms = max(connection.to_target_ms, when_ms)
        self._agenda.at(connection.to_target_ms, act)

    def _send_here(self, connection: Connection, act: Callable[[], None]) -> None:
        when_ms = self._agenda.now_ms + self._delay_ms(connection)
        connection.to_source_ms = max(connection.to_source_ms, when_ms)
        self._agenda.at(connection.to_source_ms, act)

    def _arrive(self, connection: Connection) -> None:
        if connection.is_refused:
            return
        if not self._server.listens(connection.target):
            self._agenda.after(0, lambda: self._lose(connection, "connection refused"))
            connection.is_refused = True
            return
        connection.is_open_there = True
        self._server.opened(connection.target, connection.connection_id, connection.source)

    def _deliver(self, connection: Connection, request_id: int, frame: bytes) -> None:
        if connection.is_open_there:
            connection.waiting.append((request_id, frame))
            self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        if connection.waiting and not connection.is_serving and connection.is_open_there:
            connection.is_serving = True
            self._server.received(
                connection.target, connection.connection_id, connection.waiting[0][1]
            )

    def _respond(self, connection: Connection, request_id: int, frame: bytes) -> None:
        if connection.is_open_here:
            connection.asked.remove(request_id)
            connection.caller.responded(request_id, frame)

    def _close_there(self, connection: Connection) -> None:
        was_open, connection.is_open_there = connection.is_open_there, False
        connection.is_refused = True
        connection.waiting.clear()
        if was_open:
            target, connection_id = connection.target, connection.connection_id
            self._agenda.after(0, lambda: self._server.closed(target, connection_id))
        if not connection.is_open_here:
            self._by_id.pop(connection.connection_id, None)

    def _lose(self, connection: Connection, reason: str) -> None:
        self._by_id.pop(connection.connection_id, None)
        self._fail(connection, reason)

    def _fail(self, connection: Connection, reason: str) -> None:
        connection.is_open_here = False
        asked = list(connection.asked)
        connection.asked.clear()
        for request_id in asked:
            self._agenda.after(0, partial(connection.caller.failed, request_id, reason))
