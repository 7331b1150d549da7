"""A TCP proxy between clients and a broker, or between nodes, that injects faults.

Purpose: network faults for any backend: latency, throttling, links that are cut in one or both
directions, closed and refused connections, and faults of single requests by API and client id.
Invariant: bytes pass in order and unchanged, memory is bounded (`CHUNK_BYTES` per direction of a
connection), and `close` leaves no thread, task or socket. What it must not know: the protocol,
except frame lengths, request headers and the correlation ids of responses.

Clients connect to the addresses that brokers advertise: see `integration.faults.links`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar

from integration.clusters.ports import free_ports
from integration.faults.rules import (
    FIXED_HEADER_BYTES,
    Fate,
    Match,
    RequestHeader,
    Rule,
    parse_header,
)

CHUNK_BYTES = 64 * 1024
_HOST = "127.0.0.1"
_CALL_TIMEOUT_S = 30.0
_HOLD_POLL_S = 0.01
_BIND_ATTEMPTS = 5
_Result = TypeVar("_Result")


class Direction(Enum):
    TO_BROKER = "to the broker"
    TO_CLIENT = "to the client"


BOTH = frozenset(Direction)


class ConnectionDroppedError(Exception):
    """A rule closes this connection."""


class _Connection:
    """The two sides of one connection, and the responses that it must not deliver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client_reader, self.client_writer = reader, writer
        self.losing: int | None = None

    async def connect(self, target: tuple[str, int]) -> None:
        opened = await asyncio.open_connection(*target, limit=CHUNK_BYTES)
        self.broker_reader, self.broker_writer = opened

    def abort(self) -> None:
        self.client_writer.transport.abort()
        if hasattr(self, "broker_writer"):
            self.broker_writer.transport.abort()


class TcpProxy:
    """Listens on `address` and forwards everything to `target` (`host:port`), except for faults.

    All methods are thread-safe. A context manager.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._rules: list[Rule] = []
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._delay_s = dict.fromkeys(Direction, 0.0)
        self._bytes_per_second: float | None = None
        self._errors: list[ExceptionGroup[Exception]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"TcpProxy to {target}", daemon=True
        )
        self._thread.start()
        # Set while bytes may pass.
        self._gates = {direction: asyncio.Event() for direction in Direction}
        try:
            self._call(self._open_gates(BOTH))
            self._port = self._call(self._listen_anywhere())
        except BaseException:
            self._stop_loop()
            raise

    @property
    def address(self) -> str:
        """`127.0.0.1:PORT`, the address of the proxy."""
        return f"{_HOST}:{self._port}"

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def delay(self, seconds: float, *, directions: frozenset[Direction] = BOTH) -> None:
        """Delay each frame."""
        for direction in directions:
            self._delay_s[direction] = seconds

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit the throughput of each direction of each connection; None is no limit."""
        self._bytes_per_second = bytes_per_second

    def cut(self, *, directions: frozenset[Direction] = BOTH) -> None:
        """Stop all bytes, including the end of a connection, as if packets were lost.

        New connections are accepted; if the direction to the broker is cut, they never reach it.
        Delayed bytes pass after `uncut` or `heal`.
        """
        self._call(self._close_gates(directions))

    def uncut(self) -> None:
        """Let bytes pass again in both directions; rules stay active."""
        self._call(self._open_gates(BOTH))

    def drop_connections(self) -> None:
        """Close every connection; new ones are accepted."""
        self._call(self._abort_connections())

    def refuse_connections(self) -> None:
        """Close every connection and refuse new ones, as if nobody listened."""
        self._call(self._refuse())

    def drop_requests(self, match: Match, *, times: int | None = 1) -> Rule:
        """Close the connection instead of forwarding a matching request."""
        return self._add(Rule(match, Fate.DROP, times=times))

    def lose_answers(self, match: Match, *, times: int | None = 1) -> Rule:
        """Forward a matching request, and close the connection instead of returning
        its response.
        """
        return self._add(Rule(match, Fate.LOSE_ANSWER, times=times))

    def hold_requests(self, match: Match, *, times: int | None = None) -> Rule:
        """Hold matching requests, and all behind them, until the rule's `end` or `heal`."""
        return self._add(Rule(match, Fate.HOLD, times=times))

    def delay_requests(self, match: Match, seconds: float, *, times: int | None = None) -> Rule:
        """Delay matching requests."""
        return self._add(Rule(match, Fate.GO_ON, times=times, delay_s=seconds))

    def heal(self) -> None:
        """End every rule, delay, throttle and cut, and listen again."""
        for rule in self._rules:
            rule.end()
        self.delay(0)
        self.throttle(None)
        self._call(self._restore())

    def close(self) -> None:
        """Close all connections and stop. Raise the errors of rules' matchers."""
        if self._thread.is_alive():
            for rule in self._rules:
                rule.end()
            self._call(self._refuse())
            self._stop_loop()
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
        # A new list, since the loop's thread may be iterating over the old one.
        self._rules = [*(known for known in self._rules if not known.has_ended), rule]
        return rule

    def _call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_TIMEOUT_S)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

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
        raise AssertionError("the last attempt raises")

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
        """Forward in both directions until both ends are closed, or one direction fails."""
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
        while (length := await _read_length(reader)) is not None:
            start, request = await _read_request_header(reader, length)
            rule = None
            if request is not None:
                rule = next((rule for rule in self._rules if rule.strike(request)), None)
            if rule is not None:
                await self._suffer(rule)
                if rule.fate is Fate.LOSE_ANSWER and request is not None:
                    connection.losing = request.correlation_id
            await self._send_frame(reader, writer, way, length, start)
        await self._gates[way].wait()
        writer.write_eof()

    async def _suffer(self, rule: Rule) -> None:
        await asyncio.sleep(rule.delay_s)
        if rule.fate is Fate.DROP:
            raise ConnectionDroppedError
        while rule.fate is Fate.HOLD and not rule.has_ended:
            await asyncio.sleep(_HOLD_POLL_S)

    async def _pass_responses(self, connection: _Connection) -> None:
        reader, writer = connection.broker_reader, connection.client_writer
        way = Direction.TO_CLIENT
        while (length := await _read_length(reader)) is not None:
            start = await reader.readexactly(min(length, 4))
            if connection.losing is not None and start == struct.pack(">i", connection.losing):
                raise ConnectionDroppedError
            await self._send_frame(reader, writer, way, length, start)
        await self._gates[way].wait()
        # The broker has closed; discard what the client still sends.
        raise ConnectionDroppedError

    async def _send_frame(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Direction,
        length: int,
        start: bytes,
    ) -> None:
        """Forward a frame whose `start` is read, and read the rest while writing."""
        await asyncio.sleep(self._delay_s[way])
        await self._send(writer, way, struct.pack(">i", length) + start)
        left = length - len(start)
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


async def _read_length(reader: asyncio.StreamReader) -> int | None:
    """Read the length of a frame; None at the end of the stream."""
    try:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
    except asyncio.IncompleteReadError:
        return None
    return int(length)


async def _read_request_header(
    reader: asyncio.StreamReader, length: int
) -> tuple[bytes, RequestHeader | None]:
    """Read a request header; return its bytes and None if the frame is not a request."""
    if length < FIXED_HEADER_BYTES:
        return b"", None
    fixed = await reader.readexactly(FIXED_HEADER_BYTES)
    (client_id_length,) = struct.unpack(">h", fixed[-2:])
    if FIXED_HEADER_BYTES + client_id_length > length:
        return fixed, None
    client_id = await reader.readexactly(max(client_id_length, 0))
    return fixed + client_id, parse_header(fixed, client_id)
