"""A TCP proxy between clients and a broker, or between nodes, that injects faults.

The following faults work with all backends: latency, limited throughput, links that are cut in one
or both directions, closed or refused connections, and faults in individual requests. Rules select
these requests by API and client id. Invariant: bytes are forwarded in order and unchanged. Memory
is bounded by `CHUNK_BYTES` per direction of a connection. `close` ends all threads and tasks, and
closes all sockets. The proxy decodes only the following parts of the Kafka protocol: frame lengths,
request headers and the correlation ids of responses. It also forwards TLS records, but it cannot
recognize requests in TLS records.

Clients connect to the addresses that brokers advertise: see `integration.faults.links`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from broker_ref.io.event_loop import EventLoopThread
from integration.clusters.ports import free_ports
from integration.faults.rules import (
    FIXED_HEADER_BYTES,
    Match,
    RequestHeader,
    Rule,
    RuleAction,
    parse_header,
)

CHUNK_BYTES = 64 * 1024
_HOST = "127.0.0.1"
_CALL_TIMEOUT_S = 30.0
_HOLD_POLL_S = 0.01
_BIND_ATTEMPTS = 5
_TLS_CONTENT_TYPES = range(20, 25)
_TLS_MAJOR_VERSION = 3


class Direction(Enum):
    TO_BROKER = "to the broker"
    TO_CLIENT = "to the client"


BOTH = frozenset(Direction)


class ConnectionDroppedError(Exception):
    """A rule requires the proxy to close this connection."""


class _Connection:
    """A client's connection and the matching connection to the broker.

    `dropped_correlation_id` is the correlation id of the response that must not reach the client.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client_reader, self.client_writer = reader, writer
        self.dropped_correlation_id: int | None = None

    async def connect(self, target: tuple[str, int]) -> None:
        opened = await asyncio.open_connection(*target, limit=CHUNK_BYTES)
        self.broker_reader, self.broker_writer = opened

    def abort(self) -> None:
        self.client_writer.transport.abort()
        if hasattr(self, "broker_writer"):
            self.broker_writer.transport.abort()


class TcpProxy:
    """Proxy that listens on `address` and forwards bytes to `target` (`host:port`).

    All methods are thread-safe. The proxy is a context manager.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._rules: list[Rule] = []
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._delay_s = dict.fromkeys(Direction, 0.0)
        self._bytes_per_second: float | None = None
        self._is_closed = False
        self._errors: list[ExceptionGroup[Exception]] = []
        self._loop_thread = EventLoopThread(
            f"TcpProxy to {target}", call_timeout_seconds=_CALL_TIMEOUT_S
        )
        self._call = self._loop_thread.call
        # An event is set while bytes may be forwarded in its direction.
        self._gates = {direction: asyncio.Event() for direction in Direction}
        try:
            self._call(self._open_gates(BOTH))
            self._port = self._call(self._listen_anywhere())
        except BaseException:
            self._loop_thread.close()
            raise

    @property
    def address(self) -> str:
        """The address on which the proxy listens, `127.0.0.1:PORT`."""
        return f"{_HOST}:{self._port}"

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def delay(self, seconds: float, *, directions: frozenset[Direction] = BOTH) -> None:
        """Delay each frame by this number of seconds."""
        for direction in directions:
            self._delay_s[direction] = seconds

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit the throughput of each direction of each connection. None removes the limit."""
        self._bytes_per_second = bytes_per_second

    def cut(self, *, directions: frozenset[Direction] = BOTH) -> None:
        """Stop forwarding bytes and connection closures, as if packets were lost.

        New connections are still accepted, but they do not reach the broker if the direction to the
        broker is cut. The proxy forwards the held bytes after a call to `uncut` or `heal`.
        """
        self._call(self._close_gates(directions))

    def uncut(self) -> None:
        """Forward bytes in both directions again. Rules stay active."""
        self._call(self._open_gates(BOTH))

    def drop_connections(self) -> None:
        """Close all connections. New connections are still accepted."""
        self._call(self._abort_connections())

    def refuse_connections(self) -> None:
        """Close all connections and refuse new ones, as if nothing were listening on the port."""
        self._call(self._refuse())

    def drop_requests(self, match: Match, *, times: int | None = 1) -> Rule:
        """Close the connection instead of forwarding a matching request."""
        return self._add(Rule(match, RuleAction.DROP, times=times))

    def drop_responses(self, match: Match, *, times: int | None = 1) -> Rule:
        """Forward a matching request, and close the connection instead of sending the response."""
        return self._add(Rule(match, RuleAction.DROP_RESPONSE, times=times))

    def hold_requests(self, match: Match, *, times: int | None = None) -> Rule:
        """Hold matching requests and all later requests on their connections.

        The requests are forwarded after a call to the rule's `end` method or to `heal`.
        """
        return self._add(Rule(match, RuleAction.HOLD, times=times))

    def delay_requests(self, match: Match, seconds: float, *, times: int | None = None) -> Rule:
        """Delay matching requests by this number of seconds."""
        return self._add(Rule(match, RuleAction.FORWARD, times=times, delay_s=seconds))

    def heal(self) -> None:
        """End all rules, remove delays and limits, forward bytes again, and accept connections."""
        for rule in self._rules:
            rule.end()
        self.delay(0)
        self.throttle(None)
        self._call(self._restore())

    def close(self) -> None:
        """Close all connections and stop the proxy.

        Raises the first unexpected error of a connection, such as an error from a rule's matcher.
        """
        if not self._is_closed:
            self._is_closed = True
            for rule in self._rules:
                rule.end()
            self._call(self._refuse())
            self._loop_thread.close()
        if self._errors:
            raise self._errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _add(self, rule: Rule) -> Rule:
        # The list is replaced, because the loop's thread may be iterating over the old list.
        self._rules = [*(known for known in self._rules if not known.has_ended), rule]
        return rule

    async def _open_gates(self, directions: frozenset[Direction]) -> None:
        for direction in directions:
            self._gates[direction].set()

    async def _close_gates(self, directions: frozenset[Direction]) -> None:
        for direction in directions:
            self._gates[direction].clear()

    async def _listen_anywhere(self) -> int:
        for attempt in range(1, _BIND_ATTEMPTS + 1):
            (port,) = free_ports(1)
            try:
                await self._listen(port)
            except OSError:
                if attempt == _BIND_ATTEMPTS:
                    raise
            else:
                return port
        raise AssertionError("the last attempt raises OSError")

    async def _listen(self, port: int) -> None:
        self._server = await asyncio.start_server(
            self._accepted, _HOST, port, limit=CHUNK_BYTES, reuse_address=True
        )

    async def _restore(self) -> None:
        await self._open_gates(BOTH)
        if self._server is None:
            await self._listen(self._port)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._abort_connections()

    async def _abort_connections(self) -> None:
        tasks = list(self._connections.values())
        for connection, task in list(self._connections.items()):
            connection.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        task = asyncio.ensure_future(self._serve(connection))
        self._connections[connection] = task
        try:
            await asyncio.wait([task])
        finally:
            del self._connections[connection]

    async def _serve(self, connection: _Connection) -> None:
        """Forward bytes in both directions until both streams have ended or one direction fails."""
        try:
            await self._gates[Direction.TO_BROKER].wait()
            await connection.connect(self._target)
            for writer in (connection.client_writer, connection.broker_writer):
                writer.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pass_requests(connection))
                ways.create_task(self._pass_responses(connection))
        except* (OSError, ConnectionDroppedError, asyncio.IncompleteReadError):
            pass
        except* Exception as group:
            self._errors.append(group)
        finally:
            connection.abort()

    async def _pass_requests(self, connection: _Connection) -> None:
        reader, writer = connection.client_reader, connection.broker_writer
        way = Direction.TO_BROKER
        while (frame := await _read_frame(reader)) is not None:
            start, request = await _read_request_header(reader, frame)
            rule = None
            if request is not None:
                rule = next((rule for rule in self._rules if rule.match_and_count(request)), None)
            if rule is not None:
                await self._apply(rule)
                if rule.action is RuleAction.DROP_RESPONSE and request is not None:
                    connection.dropped_correlation_id = request.correlation_id
            await self._send_frame(reader, writer, way, frame, start)
        await self._gates[way].wait()
        writer.write_eof()

    async def _apply(self, rule: Rule) -> None:
        await asyncio.sleep(rule.delay_s)
        if rule.action is RuleAction.DROP:
            raise ConnectionDroppedError
        while rule.action is RuleAction.HOLD and not rule.has_ended:
            await asyncio.sleep(_HOLD_POLL_S)

    async def _pass_responses(self, connection: _Connection) -> None:
        reader, writer = connection.broker_reader, connection.client_writer
        way = Direction.TO_CLIENT
        while (frame := await _read_frame(reader)) is not None:
            start = await reader.readexactly(min(frame.length, 4))
            if connection.dropped_correlation_id is not None and start == struct.pack(
                ">i", connection.dropped_correlation_id
            ):
                raise ConnectionDroppedError
            await self._send_frame(reader, writer, way, frame, start)
        await self._gates[way].wait()
        # The broker has closed the connection, so later requests from the client are discarded.
        raise ConnectionDroppedError

    async def _send_frame(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Direction,
        frame: _Frame,
        start: bytes,
    ) -> None:
        """Forward a frame in chunks. `start` contains the bytes that were read after the prefix."""
        await asyncio.sleep(self._delay_s[way])
        await self._send(writer, way, frame.prefix + start)
        left = frame.length - len(start)
        while left > 0:
            chunk = await reader.read(min(left, CHUNK_BYTES))
            if not chunk:
                await self._gates[way].wait()
                raise ConnectionDroppedError
            left -= len(chunk)
            await self._send(writer, way, chunk)

    async def _send(self, writer: asyncio.StreamWriter, way: Direction, data: bytes) -> None:
        if self._bytes_per_second is not None:
            await asyncio.sleep(len(data) / self._bytes_per_second)
        await self._gates[way].wait()
        writer.write(data)
        await writer.drain()


@dataclass(frozen=True, slots=True)
class _Frame:
    """The prefix of a Kafka frame or of a TLS record, and the number of bytes after the prefix."""

    prefix: bytes
    length: int
    is_tls: bool


async def _read_frame(reader: asyncio.StreamReader) -> _Frame | None:
    """Read and return the prefix of a frame, or None at the end of the stream."""
    try:
        prefix = await reader.readexactly(4)
        # Interpreted as the length of a Kafka frame, these bytes would mean more than 300 MiB.
        if prefix[0] in _TLS_CONTENT_TYPES and prefix[1] == _TLS_MAJOR_VERSION:
            prefix += await reader.readexactly(1)
            return _Frame(prefix, int.from_bytes(prefix[3:]), is_tls=True)
    except asyncio.IncompleteReadError:
        return None
    return _Frame(prefix, int.from_bytes(prefix, signed=True), is_tls=False)


async def _read_request_header(
    reader: asyncio.StreamReader, frame: _Frame
) -> tuple[bytes, RequestHeader | None]:
    """Read a request header. Return its bytes and, if the frame is a request, the parsed header."""
    length = frame.length
    if frame.is_tls or length < FIXED_HEADER_BYTES:
        return b"", None
    fixed = await reader.readexactly(FIXED_HEADER_BYTES)
    (client_id_length,) = struct.unpack(">h", fixed[-2:])
    if FIXED_HEADER_BYTES + client_id_length > length:
        return fixed, None
    client_id = await reader.readexactly(max(client_id_length, 0))
    return fixed + client_id, parse_header(fixed, client_id)
