"""A node that follows instructions in its frames, and a server around it in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
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
    NoResponse,
    SendFrame,
    TimePassed,
)
from broker_ref.io.server import Server, ServerLimits, listen

_Result = TypeVar("_Result")

TIMEOUT_SECONDS = 20.0


@dataclass
class ScriptedNode:
    """Echoes a frame, except for `quiet`, `boom`, `close`, `big N` and `wait MS`."""

    now_ms: Callable[[], int]
    events: list[Event] = field(default_factory=list)
    waiting: dict[ConnectionId, int] = field(default_factory=dict)
    fails_on_time: int = 0

    def handle(self, event: Event, now_ms: int) -> Sequence[Effect]:
        self.events.append(event)
        match event:
            case FrameReceived():
                return self._answer(event, now_ms)
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

    def _answer(self, event: FrameReceived, now_ms: int) -> Sequence[Effect]:
        client = event.connection_id
        match event.frame.split():
            case [b"quiet"]:
                return [NoResponse(connection_id=client)]
            case [b"boom"]:
                raise RuntimeError("a bug in the node")
            case [b"close"]:
                return [CloseConnection(connection_id=client, reason="the node said so")]
            case [b"big", size]:
                return [SendFrame(connection_id=client, frame=bytes(int(size)))]
            case [b"wait", wait_ms]:
                self.waiting[client] = now_ms + int(wait_ms)
                return []
        return [SendFrame(connection_id=client, frame=event.frame)]

    def seen(self, kind: type[Event]) -> int:
        """Return how many events of a type it has handled."""
        return sum(isinstance(event, kind) for event in self.events)

    def frames(self) -> list[bytes]:
        return [event.frame for event in self.events if isinstance(event, FrameReceived)]


@dataclass
class ScriptedServer:
    node: ScriptedNode
    server: Server
    address: tuple[str, int]
    loop: asyncio.AbstractEventLoop
    waits: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        """Return a client's socket, which is closed at the end of the server's context."""
        client = socket.create_connection(self.address, TIMEOUT_SECONDS)
        self.waits.append(client)
        return client

    def run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_SECONDS)

    def read(self, value: Callable[[], _Result]) -> _Result:
        """Evaluate on the server's thread, after all earlier calls."""

        async def evaluate() -> _Result:
            return value()

        return self.run(evaluate())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds on the server's thread."""

        async def poll() -> None:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not condition():
                    await asyncio.sleep(0.005)

        self.run(poll())


@contextlib.contextmanager
def serving(limits: ServerLimits | None = None) -> Iterator[ScriptedServer]:
    """Run a server around a `ScriptedNode` on a free port, with its event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> ScriptedServer:
        def now_ms() -> int:
            return int(loop.time() * 1000)

        node = ScriptedNode(now_ms=now_ms)
        server = Server(node, now_ms=now_ms, limits=limits or ServerLimits())
        listener = listen("127.0.0.1", 0)
        address = listener.getsockname()
        await server.start(listener)
        return ScriptedServer(node=node, server=server, address=address, loop=loop)

    scripted = asyncio.run_coroutine_threadsafe(start(), loop).result(TIMEOUT_SECONDS)
    try:
        yield scripted
    finally:
        scripted.run(scripted.server.stop())
        for client in scripted.waits:
            client.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def framed(*frames: bytes) -> bytes:
    """Return frames as sent over the wire."""
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def receive(client: socket.socket, length: int) -> bytes:
    """Return exactly `length` bytes. Raises: EOFError if the server closes earlier."""
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


def ask(client: socket.socket, frame: bytes) -> bytes:
    client.sendall(framed(frame))
    return receive_frame(client)


def is_closed(client: socket.socket) -> bool:
    """Wait for the server to close the connection without sending anything."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
