"""The asyncio server of one sans-IO node.

Purpose: accept clients, pass the node one request per client at a time, perform its effects (also
requests to other nodes), wake it at its deadlines, and bound the cost of hostile or slow clients.
Invariants: no client can stop the server or block others; an exception in the node closes the
connection that caused it and is logged with its traceback; `stop` leaves no timer or socket. Must
not know: what a request means.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_ref.events import (
    Channel,
    CloseChannel,
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
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
from broker_ref.io.connection import Connection, RequestRefusedError
from broker_ref.io.memory import RequestMemory
from broker_ref.io.peers import Peers

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_ACCEPT_BACKLOG = 1024
_RETRY_AFTER_FAILURE_SECONDS = 1.0


class ListenError(Exception):
    """The server cannot listen on the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits for clients.

    The first and third are broker configs. The second is Kafka's `queued.max.request.bytes`, which
    is unlimited in Kafka by default. In Kafka the others are limited by heap and idle time only.
    """

    request_bytes_max: int = 100 * _MIB  # socket.request.max.bytes
    queued_request_bytes_max: int = 256 * _MIB
    connection_idle_ms_max: int = 600_000  # connections.max.idle.ms
    unsent_bytes_max: int = 512 * _MIB  # Unread responses of all clients.
    send_stall_ms_max: int = 60_000  # A client that reads nothing of its response.
    memory_stall_ms_max: int = 10_000  # An unfinished request that blocks others from memory.
    sweep_interval_ms: int = 1_000


class ServedNode(Protocol):
    """The node, as the server uses it."""

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect | PeerEffect]: ...

    def next_deadline_ms(self) -> int | None: ...


def listen(host: str, port: int) -> socket.socket:
    """Listen on the first address of `host`; port 0 selects a free port. Raises: ListenError."""
    if not 0 <= port <= 65_535:
        raise ListenError(f"Cannot listen on port {port}: a port is from 0 (a free port) to 65535.")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"Cannot resolve the host '{host}' to listen on: {error}") from error
    try:
        # Allows a restart on the same port despite old connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_ACCEPT_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(f"Cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


class Server:
    """Serves one node on one listening socket, within one event loop.

    `on_step` is called whenever the node has handled an event.
    """

    def __init__(
        self,
        node: ServedNode,
        *,
        now_ms: Callable[[], int],
        limits: ServerLimits,
        on_step: Callable[[], None] = lambda: None,
        is_cut: Callable[[Channel], bool] = lambda _: False,
        is_deaf: Callable[[Channel], bool] = lambda _: False,
    ) -> None:
        self.peers = Peers(self._peer_event, is_cut=is_cut, is_deaf=is_deaf)
        self.memory = RequestMemory(bytes_max=limits.queued_request_bytes_max)
        self.request_bytes_max = limits.request_bytes_max
        self._node = node
        self._now_ms = now_ms
        self._limits = limits
        self._on_step = on_step
        self._loop = asyncio.get_running_loop()
        self._connections: dict[ConnectionId, Connection] = {}
        self._next_connection_id = 1
        self._runnable: deque[Connection] = deque()
        self._is_running_requests = False
        self._is_stopping = False
        self._listener: asyncio.Server | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._memory_blocked_since: tuple[ConnectionId, float] | None = None
        self._all_closed = asyncio.Event()

    def poke(self) -> None:
        """Let the node continue after a method call that is not an event."""
        if self._is_stopping:
            return
        self._time_passed()
        self._arm_deadline()

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept from `listener`, which this server now owns."""
        self._listener = await self._loop.create_server(
            self._new_connection, sock=listener, backlog=_ACCEPT_BACKLOG
        )
        self._sweep_timer = self._loop.call_later(self._sweep_seconds(), self._sweep)
        self._arm_deadline()

    def stop_accepting(self) -> None:
        """Refuse new clients; connected ones are still served."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for accepting in listener.sockets:
            self._loop.remove_reader(accepting.fileno())
        # asyncio loses clients that it has accepted in this iteration if the server closes first.
        self._loop.call_soon(listener.close)

    async def stop(self, *, grace_seconds: float = 1.0) -> None:
        """Stop accepting, drop waiting requests, flush responses, close everything.

        Responses that a client has not read after `grace_seconds` are dropped. The node gets no
        events after this returns and can be closed.
        """
        self._halt()
        for connection in list(self._connections.values()):
            connection.close()
        if not await self._wait_all_closed(grace_seconds):
            for connection in list(self._connections.values()):
                connection.abort()
            await self._wait_all_closed(grace_seconds)

    def abort(self) -> None:
        """Drop everything immediately, as the end of a process does."""
        self._halt()
        for connection in list(self._connections.values()):
            connection.abort()

    def _halt(self) -> None:
        self.stop_accepting()
        self._is_stopping = True
        self.peers.close()
        for timer in (self._deadline_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()

    # Called by connections.

    def opened(self, connection: Connection) -> None:
        self._connections[connection.connection_id] = connection
        if self._is_stopping:
            connection.abort()
            return
        self._notify_node(
            ConnectionOpened(
                connection_id=connection.connection_id,
                peer=connection.peer,
                local=connection.local,
            )
        )

    def runnable(self, connection: Connection) -> None:
        """Serve the available requests, in turn between connections."""
        self._runnable.append(connection)
        if self._is_running_requests:
            return
        self._is_running_requests = True
        try:
            while self._runnable:
                self._serve_next(self._runnable.popleft())
        finally:
            self._is_running_requests = False
        self._arm_deadline()

    def closed(self, connection: Connection, error: Exception | None) -> None:
        logger.debug("Connection to %s closed: %s", connection.peer, error or "by either side")
        connection_id = connection.connection_id
        del self._connections[connection_id]
        self._release_memory(connection_id)
        if not self._is_stopping:
            self._notify_node(ConnectionClosed(connection_id=connection_id))
        if not self._connections:
            self._all_closed.set()

    # Requests and effects.

    def _new_connection(self) -> Connection:
        connection = Connection(self, self._next_connection_id)
        self._next_connection_id += 1
        return connection

    def _serve_next(self, connection: Connection) -> None:
        if self._is_stopping:
            return
        try:
            frame = connection.next_request()
        except RequestRefusedError as refused:
            self._close(connection, str(refused))
            return
        if frame is None:
            return
        self._release_memory(connection.connection_id)
        self._notify_node(FrameReceived(connection_id=connection.connection_id, frame=frame))

    def _notify_node(self, event: FrameReceived | ConnectionOpened | ConnectionClosed) -> None:
        try:
            effects = self._node.handle(event, self._now_ms())
        except Exception:
            # A bug in the node must affect only the client that triggered it.
            connection = self._connections.get(event.connection_id)
            logger.exception(
                "The node failed on %s of connection %d (%s); closing this connection",
                type(event).__name__,
                event.connection_id,
                "gone" if connection is None else connection.peer,
            )
            if connection is not None:
                connection.close()
            return
        self._apply(effects)
        if not self._is_running_requests:
            self._arm_deadline()

    def _peer_event(self, event: ResponseReceived | RequestFailed) -> None:
        if self._is_stopping:
            return
        try:
            effects = self._node.handle(event, self._now_ms())
        except Exception:
            logger.exception("The node failed on %s of another node", type(event).__name__)
            return
        self._apply(effects)
        self._arm_deadline()

    def _apply(self, effects: Sequence[Effect | PeerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest | CloseChannel):
                self.peers.apply(effect)
                continue
            connection = self._connections.get(effect.connection_id)
            if connection is None:  # The client has disconnected meanwhile.
                continue
            match effect:
                case SendFrame():
                    connection.respond(effect.frame)
                    if connection.unsent_bytes:
                        self._bound_unsent_bytes()
                case NoResponse():
                    connection.respond(None)
                case CloseConnection():
                    self._close(connection, effect.reason)
        self._on_step()

    def _close(self, connection: Connection, reason: str) -> None:
        logger.info("Closing the connection of %s: %s", connection.peer, reason)
        connection.close()

    def _release_memory(self, connection_id: ConnectionId) -> None:
        for granted in self.memory.release(connection_id):
            self.runnable(self._connections[granted])

    # Deadlines.

    def _arm_deadline(self) -> None:
        """Wake the node at its next deadline; a timer that fires too early is set again."""
        deadline_ms = None if self._is_stopping else self._node.next_deadline_ms()
        if deadline_ms is None:
            return
        delay_seconds = max(deadline_ms - self._now_ms(), 0) / 1000
        when = self._loop.time() + delay_seconds
        if self._deadline_timer is not None and not self._deadline_timer.cancelled():
            if self._deadline_timer.when() <= when:
                return
            self._deadline_timer.cancel()
        self._deadline_timer = self._loop.call_at(when, self._deadline_reached)

    def _deadline_reached(self) -> None:
        self._deadline_timer = None
        now_ms = self._now_ms()
        deadline_ms = self._node.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms or self._time_passed():
            self._arm_deadline()

    def _time_passed(self) -> bool:
        """Notify the node of the time; returns False if it failed, and a retry follows."""
        try:
            effects = self._node.handle(TimePassed(), self._now_ms())
        except Exception:
            logger.exception("The node failed on TimePassed; retrying shortly")
            self._deadline_timer = self._loop.call_later(
                _RETRY_AFTER_FAILURE_SECONDS, self._deadline_reached
            )
            return False
        self._apply(effects)
        return True

    # Limits.

    def _sweep_seconds(self) -> float:
        return self._limits.sweep_interval_ms / 1000

    def _sweep(self) -> None:
        """Close connections that are idle, do not read, or block others from memory."""
        self._sweep_timer = self._loop.call_later(self._sweep_seconds(), self._sweep)
        now_seconds = self._loop.time()
        for connection in list(self._connections.values()):
            connection.note_sending_progress(now_seconds)
            still_ms = (now_seconds - connection.last_progress_seconds) * 1000
            if connection.unsent_bytes and still_ms > self._limits.send_stall_ms_max:
                self._drop(
                    connection,
                    f"it has not read any of {connection.unsent_bytes} bytes of responses for "
                    f"{still_ms / 1000:.0f} s",
                )
            elif (
                still_ms > self._limits.connection_idle_ms_max
                # A client that waits for a response may be idle, unless it may have disconnected.
                and (connection.is_at_end or not connection.is_in_progress)
                and not self.memory.is_waiting(connection.connection_id)
            ):
                self._drop(
                    connection,
                    f"idle for {still_ms / 1000:.0f} s (connections.max.idle.ms = "
                    f"{self._limits.connection_idle_ms_max})",
                )
        self._sweep_memory(now_seconds)

    def _sweep_memory(self, now_seconds: float) -> None:
        blocking = self.memory.blocking
        if blocking is None:
            self._memory_blocked_since = None
        elif self._memory_blocked_since is None or self._memory_blocked_since[0] != blocking:
            self._memory_blocked_since = (blocking, now_seconds)
        elif (now_seconds - self._memory_blocked_since[1]) * 1000 > (
            self._limits.memory_stall_ms_max
        ):
            self._drop(
                self._connections[blocking],
                "its unfinished request blocks others from memory; the limit for all requests is "
                f"{self._limits.queued_request_bytes_max} bytes",
            )

    def _unsent_bytes(self) -> int:
        return sum(connection.unsent_bytes for connection in self._connections.values())

    def _bound_unsent_bytes(self) -> None:
        """Drop the longest stalled clients while too many bytes are unread."""
        if self._unsent_bytes() <= self._limits.unsent_bytes_max:
            return
        slowest_first = sorted(
            (connection for connection in self._connections.values() if connection.unsent_bytes),
            key=lambda connection: connection.last_progress_seconds,
        )
        for connection in slowest_first:
            if self._unsent_bytes() <= self._limits.unsent_bytes_max:
                return
            self._drop(
                connection,
                f"clients have not read {self._unsent_bytes()} bytes of responses; "
                f"{connection.unsent_bytes} of these belong to this client, which has been "
                "stalled longest",
            )

    def _drop(self, connection: Connection, reason: str) -> None:
        logger.warning("Dropping the connection of %s: %s", connection.peer, reason)
        connection.abort()

    async def _wait_all_closed(self, timeout_seconds: float) -> bool:
        self._all_closed.clear()
        if not self._connections:
            return True
        try:
            await asyncio.wait_for(self._all_closed.wait(), timeout_seconds)
        except TimeoutError:
            return False
        return True
