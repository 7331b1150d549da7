"""Tests of an event loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from broker_ref.io.event_loop import EventLoopThread

TIMEOUT_SECONDS = 10.0


def is_closed(client: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1) == b""
    return True


class Aborting(asyncio.Protocol):
    """The protocol of a stopped server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


async def listen() -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(Aborting, "127.0.0.1", 0)


def test_a_connection_that_is_accepted_during_the_stop_is_closed() -> None:
    loop_thread = EventLoopThread("test", call_timeout_seconds=TIMEOUT_SECONDS)
    server = loop_thread.call(listen())
    blocked, connected, closing = (threading.Event() for _ in range(3))
    call_soon, wake = loop_thread.loop.call_soon, loop_thread.loop.call_soon_threadsafe

    def accept() -> None:
        blocked.set()
        connected.wait(TIMEOUT_SECONDS)
        call_soon(call_soon, wait_for_the_stop)  # The loop accepts the connection before it.

    def wait_for_the_stop() -> None:
        closing.wait(TIMEOUT_SECONDS)
        call_soon(server.close)  # asyncio itself leaks a connection if it is called here.

    def signal_stop(callback: Callable[[], object]) -> None:
        wake(callback)
        closing.set()

    wake(accept)
    blocked.wait(TIMEOUT_SECONDS)
    with socket.create_connection(server.sockets[0].getsockname(), TIMEOUT_SECONDS) as client:
        connected.set()
        loop_thread.loop.call_soon_threadsafe = signal_stop  # type: ignore[method-assign, assignment]
        loop_thread.close()
        assert is_closed(client)


def test_a_caller_that_runs_a_loop_of_its_own_as_in_a_notebook() -> None:
    async def cell() -> int:
        loop_thread = EventLoopThread("test", call_timeout_seconds=TIMEOUT_SECONDS)
        result = loop_thread.call(asyncio.sleep(0, result=1))
        loop_thread.close()
        loop_thread.close()  # Has no effect.
        return result

    assert asyncio.run(cell()) == 1
