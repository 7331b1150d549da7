"""Tests of a node's connections to other nodes: every request ends in one event."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from broker_ref.events import (
    Channel,
    CloseChannel,
    RequestFailed,
    ResponseReceived,
    SendRequest,
)
from broker_ref.io.peers import Peers

TIMEOUT_SECONDS = 20.0
ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Collector:
    def __init__(self) -> None:
        self.events: asyncio.Queue[ResponseReceived | RequestFailed] = asyncio.Queue()

    def take(self, event: ResponseReceived | RequestFailed) -> None:
        self.events.put_nowait(event)

    async def next(self) -> ResponseReceived | RequestFailed:
        return await asyncio.wait_for(self.events.get(), TIMEOUT_SECONDS)


def request(port: int, request_id: int, *, purpose: str = "test", body: bytes = b"") -> SendRequest:
    channel = Channel(node_id=2, host="127.0.0.1", port=port, purpose=purpose)
    frame = struct.pack(">hhi", 3, 9, request_id) + body
    return SendRequest(channel=channel, request_id=request_id, frame=frame)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def response(request_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), request_id) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        frame = await read_frame(reader)
        (request_id,) = struct.unpack_from(">i", frame, 4)
        writer.write(response(request_id, frame[8:]))
        await writer.drain()


def with_server(
    handler: ConnectionHandler, scenario: Callable[[Peers, Collector, int], Awaitable[None]]
) -> None:
    async def run() -> None:
        async def until_it_goes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # The node closed the connection first.
            finally:
                writer.close()

        server = await asyncio.start_server(until_it_goes, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        collector = Collector()
        peers = Peers(collector.take)
        try:
            await scenario(peers, collector, port)
        finally:
            peers.close()
            server.close()
            # The server must also close every connection.
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while others := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(others)
            await asyncio.sleep(0)

    asyncio.run(run())


def test_responses_arrive_in_order() -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        for request_id in range(3):
            peers.apply(request(port, request_id, body=b"x" * request_id * 100_000))
        for request_id in range(3):
            event = await collector.next()
            assert isinstance(event, ResponseReceived)
            assert event.request_id == request_id
            assert event.frame == struct.pack(">i", request_id) + b"x" * request_id * 100_000

    with_server(echo, scenario)


def test_a_refused_connection_fails_the_request() -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        del port
        listener = await asyncio.start_server(echo, "127.0.0.1", 0)
        dead = listener.sockets[0].getsockname()[1]
        listener.close()
        await listener.wait_closed()
        peers.apply(request(dead, 1))
        peers.apply(request(dead, 2))
        for request_id in (1, 2):
            event = await collector.next()
            assert isinstance(event, RequestFailed)
            assert event.request_id == request_id
            assert str(dead) in event.reason

    with_server(echo, scenario)


async def close_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del writer
    await read_frame(reader)


async def respond_with_wrong_id(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_frame(reader)
    writer.write(response(999))
    await reader.read()


async def respond_with_negative_length(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await read_frame(reader)
    writer.write(struct.pack(">ii", -5, 1))
    await reader.read()


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (close_connection, ""),
        (respond_with_wrong_id, "999"),
        (respond_with_negative_length, "-5"),
    ],
)
def test_a_channel_that_breaks_fails_its_requests(handler: ConnectionHandler, reason: str) -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        peers.apply(request(port, 1))
        event = await collector.next()
        assert isinstance(event, RequestFailed)
        assert reason in event.reason

    with_server(handler, scenario)


def test_the_next_request_reopens_a_broken_channel() -> None:
    calls = 0

    async def first_hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await (close_connection if calls == 1 else echo)(reader, writer)

    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        peers.apply(request(port, 1))
        assert isinstance(await collector.next(), RequestFailed)
        peers.apply(request(port, 2))
        assert isinstance(await collector.next(), ResponseReceived)

    with_server(first_hangs_up, scenario)


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del writer
    await reader.read()


def test_closing_a_channel_fails_its_requests() -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        requested = request(port, 1)
        peers.apply(requested)
        other = request(port, 2, purpose="other")
        peers.apply(other)
        peers.apply(CloseChannel(channel=requested.channel))
        event = await collector.next()
        assert isinstance(event, RequestFailed)
        assert event.request_id == 1
        assert collector.events.empty()

    with_server(never, scenario)


def test_requests_on_a_cut_link_fail() -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        del peers
        is_cut = False
        cut_peers = Peers(collector.take, is_cut=lambda _: is_cut)
        try:
            cut_peers.apply(request(port, 1))
            assert isinstance(await collector.next(), ResponseReceived)
            is_cut = True
            cut_peers.cut()
            cut_peers.apply(request(port, 2))
            event = await collector.next()
            assert isinstance(event, RequestFailed)
            assert event.request_id == 2
            is_cut = False
            cut_peers.apply(request(port, 3))
            assert isinstance(await collector.next(), ResponseReceived)
        finally:
            cut_peers.close()

    with_server(echo, scenario)


def test_responses_are_dropped_if_requested() -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        del peers
        drops_responses = True
        received = asyncio.Event()

        def drops(channel: Channel) -> bool:
            del channel
            received.set()
            return drops_responses

        dropping_peers = Peers(collector.take, drops_responses=drops)
        try:
            dropping_peers.apply(request(port, 1))
            await asyncio.wait_for(received.wait(), TIMEOUT_SECONDS)
            drops_responses = False
            dropping_peers.apply(request(port, 2))
            event = await collector.next()
            assert isinstance(event, ResponseReceived)
            assert event.request_id == 2
        finally:
            dropping_peers.close()

    with_server(echo, scenario)


def test_nothing_is_opened_after_close() -> None:
    async def scenario(peers: Peers, collector: Collector, port: int) -> None:
        peers.close()
        peers.apply(request(port, 1))
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert collector.events.empty()

    with_server(echo, scenario)
