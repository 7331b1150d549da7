"""The asyncio server of one sans-IO node.

The server accepts clients, passes their requests to the node, carries out the effects that the node
returns (including requests to other nodes), and calls the node when one of its deadlines expires.
The server also limits the resources that malicious or slow clients can use. Invariants: no client
can stop the server or block other clients. If the node raises an exception, the server logs the
traceback and closes the connection whose request caused the exception. After `stop`, no timer or
socket remains.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
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
    LimitFrames,
    NoResponse,
    PeerEffect,
    RequestFailed,
    ResponseReceived,
    SendFrame,
    SendRequest,
    TimePassed,
)
from broker_ref.frozen import dataclass
from broker_ref.io.connection import FRAME_LENGTH_BYTES, Connection, RequestRefusedError
from broker_ref.io.memory import RequestMemory
from broker_ref.io.peers import Peers
from broker_ref.io.tls import TlsAcceptor
from broker_ref.security.sasl_client_authenticator import SaslClientAuthenticator

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_ACCEPT_BACKLOG = 1024
_RETRY_AFTER_FAILURE_SECONDS = 1.0


class ListenError(Exception):
    """The server cannot listen on an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits on the resources that clients can use.

    `request_bytes_max`, `connection_idle_ms_max` and `failed_handshake_delay_ms` are broker
    configs. `queued_request_bytes_max` is Kafka's `queued.max.request.bytes`, which is unlimited in
    Kafka by default. Kafka has no configs for the other limits.
    """

    request_bytes_max: int = 100 * _MIB  # socket.request.max.bytes
    queued_request_bytes_max: int = 256 * _MIB
    connection_idle_ms_max: int = 600_000  # connections.max.idle.ms
    unsent_bytes_max: int = 512 * _MIB  # Maximum size of unread responses of all clients.
    send_stall_ms_max: int = 60_000  # Maximum time without reading any response bytes.
    memory_stall_ms_max: int = 10_000  # Maximum time that a request can block others.
    handshake_ms_max: int = 10_000  # Maximum time of a TLS handshake.
    failed_handshake_delay_ms: int = 100  # connection.failed.authentication.delay.ms
    sweep_interval_ms: int = 1_000

    @property
    def handshake_seconds_max(self) -> float:
        """Return the maximum time of a TLS handshake in seconds."""
        return min(self.handshake_ms_max, self.connection_idle_ms_max) / 1000


class ServedNode(Protocol):
    """The methods of a node that the server uses."""

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect | PeerEffect]: ...

    def next_deadline_ms(self) -> int | None: ...


def listen(host: str, port: int) -> socket.socket:
    """Listen on the first address of `host`. Port 0 selects a free port. Raises: ListenError."""
    if not 0 <= port <= 65_535:
        raise ListenError(f"Cannot listen on port {port}. Use 1 to 65535, or 0 for a free port.")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"Cannot resolve the listener host '{host}': {error}") from error
    try:
        # Allows a restart on the same port while old connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_ACCEPT_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(f"Cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerListener:
    """A listening socket. `tls` is None if the listener does not use TLS."""

    socket: socket.socket
    name: str = "PLAINTEXT"
    tls: ssl.SSLContext | None = None


class Server:
    """Serves the listeners of one node, within one event loop.

    `on_step` is called after the node has handled an event.
    """

    def __init__(
        self,
        node: ServedNode,
        *,
        now_ms: Callable[[], int],
        limits: ServerLimits,
        on_step: Callable[[], None] = lambda: None,
        is_cut: Callable[[Channel], bool] = lambda _: False,
        drops_responses: Callable[[Channel], bool] = lambda _: False,
        peer_tls: Callable[[Channel], ssl.SSLContext | None] = lambda _: None,
        peer_login: Callable[[Channel], SaslClientAuthenticator | None] = lambda _: None,
    ) -> None:
        self.peers = Peers(
            self._peer_event,
            is_cut=is_cut,
            drops_responses=drops_responses,
            tls=peer_tls,
            login=peer_login,
        )
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
        self._servers: list[asyncio.Server] = []
        self._tls_acceptors: list[TlsAcceptor] = []
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._memory_blocked_since: tuple[ConnectionId, float] | None = None
        self._unsent_bytes_max = 0  # An upper bound for `_unsent_bytes`.
        self._all_closed = asyncio.Event()

    def run_due_work(self) -> None:
        """Run the node's work that is due.

        Call this method after calling a method of the node directly.
        """
        if self._is_stopping:
            return
        self._time_passed()
        self._arm_deadline()

    async def start(self, listeners: Sequence[ServerListener]) -> None:
        """Start accepting connections. The server closes the sockets when it stops."""
        for listener in listeners:
            new_connection = partial(self._new_connection, listener)
            if listener.tls is not None:
                self._tls_acceptors.append(
                    TlsAcceptor(
                        listener.socket,
                        listener.tls,
                        new_connection,
                        handshake_seconds=self._limits.handshake_seconds_max,
                        failure_delay_seconds=self._limits.failed_handshake_delay_ms / 1000,
                    )
                )
            else:
                self._servers.append(
                    await self._loop.create_server(
                        new_connection, sock=listener.socket, backlog=_ACCEPT_BACKLOG
                    )
                )
        self._sweep_timer = self._loop.call_later(self._sweep_seconds(), self._sweep)
        self._arm_deadline()

    def stop_accepting(self) -> None:
        """Refuse new clients. Connected clients are still served."""
        servers, self._servers = self._servers, []
        for server in servers:
            for accepting in server.sockets:
                self._loop.remove_reader(accepting.fileno())
            # If the server were closed now, asyncio would lose clients that it has just accepted.
            self._loop.call_soon(server.close)
        for acceptor in self._tls_acceptors:
            acceptor.stop_accepting()

    async def stop(self, *, grace_seconds: float = 1.0) -> None:
        """Stop the server and close all connections.

        The server accepts no more connections, discards queued requests and sends pending
        responses. Responses that a client has not read within `grace_seconds` are discarded. After
        this method returns, the node receives no more events and can be closed.
        """
        self._halt()
        for connection in list(self._connections.values()):
            connection.close()
        for acceptor in self._tls_acceptors:
            await acceptor.wait_closed()
        if not await self._wait_all_closed(grace_seconds):
            for connection in list(self._connections.values()):
                connection.abort()
            await self._wait_all_closed(grace_seconds)

    def abort(self) -> None:
        """Close everything immediately, as if the process had been killed."""
        self._halt()
        for connection in list(self._connections.values()):
            connection.abort()

    def _halt(self) -> None:
        self.stop_accepting()
        self._is_stopping = True
        for acceptor in self._tls_acceptors:
            acceptor.stop()
        self.peers.close()
        for timer in (self._deadline_timer, self._sweep_timer):
            if timer is not None:
                timer.cancel()

    @property
    def connection_count(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

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
                listener=connection.listener,
                certificate=connection.certificate,
            )
        )

    def runnable(self, connection: Connection) -> None:
        """Serve available requests from the connections in turn."""
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
        logger.debug("The connection to %s is closed (%s)", connection.peer, error or "no error")
        connection_id = connection.connection_id
        del self._connections[connection_id]
        self._release_memory(connection_id)
        if not self._is_stopping:
            self._notify_node(ConnectionClosed(connection_id=connection_id))
        if not self._connections:
            self._all_closed.set()

    # Requests and effects.

    def _new_connection(self, listener: ServerListener) -> Connection:
        connection = Connection(self, self._next_connection_id, listener=listener.name)
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
                "The node failed to handle %s from connection %d (%s). Closing the connection",
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
            logger.exception("The node failed to handle %s from another node", type(event).__name__)
            return
        self._apply(effects)
        self._arm_deadline()

    def _apply(self, effects: Sequence[Effect | PeerEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendRequest | CloseChannel):
                self.peers.apply(effect)
                continue
            connection = self._connections.get(effect.connection_id)
            if connection is None:  # The client has disconnected.
                continue
            match effect:
                case SendFrame():
                    if effect.close_reason is not None:
                        logger.info(
                            "Closing the connection to %s: %s", connection.peer, effect.close_reason
                        )
                    connection.respond(effect.frame, closes=effect.close_reason is not None)
                    if connection.unsent_bytes:
                        self._bound_unsent_bytes(len(effect.frame) + FRAME_LENGTH_BYTES)
                case NoResponse():
                    connection.respond(None)
                case LimitFrames():
                    connection.limit_requests(effect.bytes_max)
                case CloseConnection():
                    self._close(connection, effect.reason)
        self._on_step()

    def _close(self, connection: Connection, reason: str) -> None:
        logger.info("Closing the connection to %s: %s", connection.peer, reason)
        connection.close()

    def _release_memory(self, connection_id: ConnectionId) -> None:
        for granted in self.memory.release(connection_id):
            self.runnable(self._connections[granted])

    # Deadlines.

    def _arm_deadline(self) -> None:
        """Set a timer for the node's next deadline. A timer that fires too early is set again."""
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
        """Send `TimePassed` to the node.

        Return False if the node failed and a retry is scheduled.
        """
        try:
            effects = self._node.handle(TimePassed(), self._now_ms())
        except Exception:
            logger.exception("The node failed to handle TimePassed. The server will retry")
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
        """Close connections that are idle, do not read responses, or block other requests."""
        self._sweep_timer = self._loop.call_later(self._sweep_seconds(), self._sweep)
        now_seconds = self._loop.time()
        for connection in list(self._connections.values()):
            connection.update_sending_progress(now_seconds)
            still_ms = (now_seconds - connection.last_progress_seconds) * 1000
            if connection.unsent_bytes and still_ms > self._limits.send_stall_ms_max:
                self._drop(
                    connection,
                    f"the client has {connection.unsent_bytes} bytes of unread responses, and has "
                    f"read nothing for {still_ms / 1000:.0f} s",
                )
            elif (
                still_ms > self._limits.connection_idle_ms_max
                # A client may be idle while it waits for a response, unless it closed its sending
                # side.
                and (connection.is_at_end or not connection.is_in_progress)
                and not self.memory.is_waiting(connection.connection_id)
            ):
                self._drop(
                    connection,
                    f"the connection was idle for {still_ms / 1000:.0f} s "
                    f"(connections.max.idle.ms={self._limits.connection_idle_ms_max})",
                )
            elif (
                connection.login_began_seconds is not None
                and (now_seconds - connection.login_began_seconds) * 1000
                > self._limits.connection_idle_ms_max
            ):
                self._drop(
                    connection,
                    "the client has not completed its login "
                    f"(connections.max.idle.ms={self._limits.connection_idle_ms_max})",
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
                "its incomplete request blocks other requests that need memory. The memory limit "
                f"for all requests is {self._limits.queued_request_bytes_max} bytes",
            )

    def _unsent_bytes(self) -> int:
        return sum(connection.unsent_bytes for connection in self._connections.values())

    def _bound_unsent_bytes(self, added_bytes: int) -> None:
        """Limit the total size of unread responses.

        If the limit is exceeded, drop the clients that have been stalled the longest. An upper
        bound of the total size is compared with the limit first, because calculating the exact size
        visits all connections.
        """
        self._unsent_bytes_max += added_bytes
        if self._unsent_bytes_max <= self._limits.unsent_bytes_max:
            return
        self._unsent_bytes_max = self._unsent_bytes()
        if self._unsent_bytes_max <= self._limits.unsent_bytes_max:
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
                f"all clients together have {self._unsent_bytes()} bytes of unread responses. This "
                f"client has {connection.unsent_bytes} bytes and has been stalled the longest",
            )

    def _drop(self, connection: Connection, reason: str) -> None:
        logger.warning("Dropping the connection to %s: %s", connection.peer, reason)
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
