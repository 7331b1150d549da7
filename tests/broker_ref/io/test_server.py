"""Tests of the server: framing, order, effects, deadlines and stop."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from broker_ref.events import ConnectionClosed, ConnectionOpened, FrameReceived, TimePassed
from broker_ref.io.connection import IDLE_BUFFER_BYTES
from broker_ref.io.server import ListenError, listen
from tests.broker_ref.io.scripted import (
    framed,
    is_closed,
    receive,
    receive_frame,
    send_and_receive,
    serving,
)

SIZES = [
    0,
    1,
    IDLE_BUFFER_BYTES - 5,
    IDLE_BUFFER_BYTES - 4,
    IDLE_BUFFER_BYTES - 3,
    64 * 1024 - 4,
    64 * 1024 - 3,
    300_000,
    5_000_000,
]


def pattern(length: int) -> bytes:
    """Return bytes in which lost, repeated or moved parts are detectable."""
    return b"".join(index.to_bytes(4, "big") for index in range(length // 4 + 1))[:length]


@pytest.mark.parametrize("size", SIZES)
def test_requests_and_responses_of_any_size(size: int) -> None:
    with serving() as served:
        client = served.connect()
        assert send_and_receive(client, pattern(size)) == pattern(size)
        assert send_and_receive(client, b"next") == b"next"
        assert served.read(lambda: served.server.memory.used_bytes) == 0


def test_requests_sent_in_one_write_get_responses_in_order() -> None:
    frames = [pattern(size) for size in SIZES] + [b"%d" % number for number in range(2000)]
    with serving() as served:
        client = served.connect()
        client.sendall(framed(*frames))
        assert [receive_frame(client) for _ in frames] == frames


def test_a_request_that_arrives_byte_by_byte_is_served() -> None:
    with serving() as served:
        client = served.connect()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(b"slow", b"quiet", b"but sure"):
            client.sendall(bytes([byte]))
        assert receive_frame(client) == b"slow"
        assert receive_frame(client) == b"but sure"


def test_the_node_gets_one_request_of_a_connection_at_a_time() -> None:
    with serving() as served:
        client, other = served.connect(), served.connect()
        client.sendall(framed(b"wait 200", b"second", pattern(100_000)))
        assert send_and_receive(other, b"meanwhile") == b"meanwhile"
        assert b"second" not in served.read(served.node.frames)
        assert receive_frame(client) == b"waited"
        assert receive_frame(client) == b"second"
        assert receive_frame(client) == pattern(100_000)


def test_a_request_without_a_response_does_not_block_the_next() -> None:
    with serving() as served:
        client = served.connect()
        client.sendall(framed(b"quiet", b"quiet", b"loud"))
        assert receive_frame(client) == b"loud"


def test_the_node_is_notified_of_connections() -> None:
    with serving() as served:
        client = served.connect()
        assert send_and_receive(client, b"hello") == b"hello"
        opened = served.read(lambda: served.node.events[0])
        assert opened == ConnectionOpened(
            connection_id=1,
            peer=f"127.0.0.1:{client.getsockname()[1]}",
            local=served.address,
        )
        client.close()
        served.until(lambda: served.node.seen(ConnectionClosed) == 1)


def test_pending_responses_are_sent_before_a_close() -> None:
    with serving() as served:
        client = served.connect()
        client.sendall(framed(b"big 3000000", b"close", b"never served"))
        assert receive_frame(client) == bytes(3_000_000)
        assert is_closed(client)
        assert b"never served" not in served.read(served.node.frames)


def test_a_half_closed_client_gets_its_response_and_is_closed() -> None:
    with serving() as served:
        client = served.connect()
        client.sendall(framed(b"wait 50", b"big 2000000", b"last") + b"\x00\x00")
        client.shutdown(socket.SHUT_WR)
        assert receive_frame(client) == b"waited"
        assert receive_frame(client) == bytes(2_000_000)
        assert receive_frame(client) == b"last"
        assert is_closed(client)


def test_an_exception_in_the_node_closes_one_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as served:
        client, other = served.connect(), served.connect()
        client.sendall(framed(b"before", b"boom", b"after"))
        assert receive_frame(client) == b"before"
        assert is_closed(client)
        assert send_and_receive(other, b"still here") == b"still here"
        served.until(lambda: served.node.seen(ConnectionClosed) == 1)
    failure = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert "FrameReceived" in failure.getMessage()
    assert failure.exc_info is not None
    assert "a bug in the node" in str(failure.exc_info[1])


def test_an_exception_on_time_passed_is_logged_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as served:
        served.node.fails_on_time = 1
        client, other = served.connect(), served.connect()
        client.sendall(framed(b"wait 20"))
        served.until(lambda: served.node.fails_on_time == 0)
        assert send_and_receive(other, b"still here") == b"still here"
        assert receive_frame(client) == b"waited"
    assert "TimePassed" in caplog.text


def test_an_earlier_deadline_overtakes_a_later_one() -> None:
    with serving() as served:
        late, early = served.connect(), served.connect()
        late.sendall(framed(b"wait 3600000"))
        served.until(lambda: served.node.seen(FrameReceived) == 1)
        assert send_and_receive(early, b"wait 10") == b"waited"
        assert served.read(lambda: served.node.seen(TimePassed)) == 1


def test_stop_drops_waiting_requests_and_sends_responses() -> None:
    with serving() as served:
        waiting, reading = served.connect(), served.connect()
        waiting.sendall(framed(b"wait 3600000"))
        reading.sendall(framed(b"big 20000000"))
        served.until(lambda: served.node.seen(FrameReceived) == 2)
        stopping = asyncio.run_coroutine_threadsafe(
            served.server.stop(grace_seconds=20), served.loop_thread.loop
        )
        assert receive_frame(reading) == bytes(20_000_000)
        assert is_closed(reading)
        assert is_closed(waiting)
        stopping.result(20)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(served.address)


def test_stopping_does_not_wait_for_a_client_that_never_reads() -> None:
    with serving() as served:
        client = served.connect()
        client.sendall(framed(b"big 50000000"))
        served.until(lambda: served.node.seen(FrameReceived) == 1)
        served.run(served.server.stop(grace_seconds=0.1))
        with pytest.raises((EOFError, ConnectionResetError)):
            receive(client, 50_000_000)


def test_the_port_can_be_reused_immediately_after_a_stop() -> None:
    with serving() as served:
        client = served.connect()
        assert send_and_receive(client, b"hello") == b"hello"
        served.run(
            served.server.stop()
        )  # The server closes first, so that its socket is in TIME_WAIT.
        listen(*served.address).close()


def test_a_port_in_use_is_named() -> None:
    with serving() as served:
        host, port = served.address
        with pytest.raises(ListenError, match=f"{host}:{port}"):
            listen(host, port)


def test_an_unresolvable_host_is_named() -> None:
    with pytest.raises(ListenError, match=r"'no\.such\.host\.invalid'"):
        listen("no.such.host.invalid", 0)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_named(port: int) -> None:
    with pytest.raises(ListenError, match=rf"{port}\b"):
        listen("127.0.0.1", port)
