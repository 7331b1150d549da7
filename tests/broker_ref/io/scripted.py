"""A scripted node that takes instructions from frames, and a server for it in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker_ref.events import (
    CloseConnection,
    ConnectionClosed,
    ConnectionId,
    Effect,
    Event,
    FrameReceived,
    LimitFrames,
    NoResponse,
    SendFrame,
    TimePassed,
)
from broker_ref.io.event_loop import EventLoopThread
from broker_ref.io.server import Server, ServerLimits, ServerListener, listen

_Result = TypeVar("_Result")

TIMEOUT_SECONDS = 20.0


@dataclass
class ScriptedNode:
    """A node that echoes frames, except `quiet`, `boom`, `close`, `big N`, `wait MS`, and `login`.

    A login begins with the first `login` of a client and ends with the second one.
    """

    now_ms: Callable[[], int]
    events: list[Event] = field(default_factory=list)
    waiting: dict[ConnectionId, int] = field(default_factory=dict)
    fails_on_time: int = 0
    logging_in: set[ConnectionId] = field(default_factory=set)

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        self.events.append(event)
        match event:
            case FrameReceived():
                return self._respond(event, now_ms)
            case TimePassed():
                if self.fails_on_time:
                    self.fails_on_time -= 1
                    raise RuntimeError("a bug met when time passed")
                due = [waiter for waiter, at_ms in self.waiting.items() if at_ms <= now_ms]
                for waiter in due:
                    del self.waiting[waiter]
                return [SendFrame(connection_id=waiter, frame=b"waited") for waiter in due]
            case ConnectionClosed():
                self.waiting.pop(event.connection_id, None)
        return []

    def next_deadline_ms(self) -> int | None:
        return min(self.waiting.values(), default=None)

    def _respond(self, event: FrameReceived, now_ms: int) -> Sequence[Effect]:
        client = event.connection_id
        match event.frame.split():
            case [b"quiet"]:
                return [NoResponse(connection_id=client)]
            case [b"boom"]:
                raise RuntimeError("a bug in the node")
            case [b"close"]:
                return [CloseConnection(connection_id=client, reason="the node requested it")]
            case [b"login"]:
                self.logging_in ^= {client}
                bytes_max = 1000 if client in self.logging_in else None
                return [
                    LimitFrames(connection_id=client, bytes_max=bytes_max),
                    SendFrame(connection_id=client, frame=event.frame),
                ]
            case [b"big", size]:
                return [SendFrame(connection_id=client, frame=bytes(int(size)))]
            case [b"wait", wait_ms]:
                self.waiting[client] = now_ms + int(wait_ms)
                return []
        return [SendFrame(connection_id=client, frame=event.frame)]

    def seen(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def frames(self) -> list[bytes]:
        return [event.frame for event in self.events if isinstance(event, FrameReceived)]


@dataclass
class ScriptedServer:
    node: ScriptedNode
    server: Server
    address: tuple[str, int]
    loop_thread: EventLoopThread
    waits: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        """Return a client's socket, which the server's context closes at its end."""
        client = socket.create_connection(self.address, TIMEOUT_SECONDS)
        self.waits.append(client)
        return client

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return self.loop_thread.call(coroutine)

    def read(self, value: Callable[[], _Result]) -> _Result:
        async def evaluate() -> _Result:
            return value()

        return self.run(evaluate())

    def until(self, condition: Callable[[], bool]) -> None:
        async def poll() -> None:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not condition():
                    await asyncio.sleep(0.005)

        self.run(poll())


@contextlib.contextmanager
def serving(
    limits: ServerLimits | None = None, *, tls: ssl.SSLContext | None = None
) -> Iterator[ScriptedServer]:
    """Run a server with a `ScriptedNode` on a free port, with its event loop in a thread."""
    loop_thread = EventLoopThread("ScriptedServer", call_timeout_seconds=TIMEOUT_SECONDS)

    async def start() -> ScriptedServer:
        def now_ms() -> int:
            return int(loop_thread.loop.time() * 1000)

        node = ScriptedNode(now_ms=now_ms)
        server = Server(node, now_ms=now_ms, limits=limits or ServerLimits())
        listener = listen("127.0.0.1", 0)
        address = listener.getsockname()
        await server.start(
            [ServerListener(socket=listener, name="SSL" if tls else "PLAINTEXT", tls=tls)]
        )
        return ScriptedServer(node=node, server=server, address=address, loop_thread=loop_thread)

    scripted = loop_thread.call(start())
    try:
        yield scripted
    finally:
        scripted.run(scripted.server.stop())
        for client in scripted.waits:
            client.close()
        loop_thread.close()


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def receive(client: socket.socket, length: int) -> bytes:
    """Return exactly `length` bytes.

    Raises: EOFError if the server closes the connection earlier.
    """
    received = bytearray()
    while len(received) < length:
        chunk = client.recv(min(length - len(received), 1 << 20))
        if not chunk:
            raise EOFError(f"closed after {len(received)} of {length} bytes")
        received += chunk
    return bytes(received)


def receive_frame(client: socket.socket) -> bytes:
    (length,) = struct.unpack(">i", receive(client, 4))
    return receive(client, length)


def send_and_receive(client: socket.socket, frame: bytes) -> bytes:
    client.sendall(framed(frame))
    return receive_frame(client)


def is_closed(client: socket.socket) -> bool:
    """Return whether the server closes the connection without sending anything."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
