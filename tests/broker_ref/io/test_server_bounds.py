"""Tests of hostile and slow clients.

The server closes or delays them, and other clients are still served.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from broker_ref.events import ConnectionClosed, ConnectionOpened, FrameReceived
from broker_ref.io.server import ServerLimits
from tests.broker_ref.io.scripted import (
    ScriptedServer,
    framed,
    is_closed,
    receive,
    receive_frame,
    send_and_receive,
    serving,
)

pytestmark = pytest.mark.slow

MIB = 1024 * 1024

TLS_CLIENT_HELLO = bytes.fromhex("16030102000100" + "01fc0303" + "5a" * 64)
GARBAGE = [
    pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 1195725856, id="http"),
    pytest.param(TLS_CLIENT_HELLO, 369295618, id="tls"),
    pytest.param(b"\xff" * 100, -1, id="ones"),
    pytest.param(struct.pack(">i", 2**31 - 1), 2**31 - 1, id="2-gib"),
    pytest.param(struct.pack(">i", -(2**31)), -(2**31), id="most-negative"),
    pytest.param(struct.pack(">i", 100 * MIB + 1), 100 * MIB + 1, id="one-above-the-limit"),
]


@contextlib.contextmanager
def allocations_below(bytes_max: int) -> Iterator[None]:
    """Check that the peak of Python's allocations in the block stays below a limit."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < bytes_max, f"{peak / MIB:.1f} MiB were allocated, limit {bytes_max / MIB:.1f}"


def send_without_waiting(client: socket.socket, data: bytes) -> int:
    """Send the bytes that the server accepts immediately, and return their number."""
    client.setblocking(False)
    sent = 0
    view = memoryview(data)
    with contextlib.suppress(BlockingIOError):
        while sent < len(data):
            sent += client.send(view[sent : sent + MIB])
    client.setblocking(True)
    return sent


@pytest.mark.parametrize(("sent", "announced"), GARBAGE)
def test_an_invalid_length_closes_the_connection_before_the_body(
    sent: bytes, announced: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving() as served, allocations_below(2 * MIB):
        client = served.connect()
        client.sendall(sent)
        assert is_closed(client)
        assert send_and_receive(served.connect(), b"still here") == b"still here"
        assert served.read(served.node.frames) == [b"still here"]
    assert str(announced) in caplog.text
    assert "socket.request.max.bytes" in caplog.text


def test_requests_before_the_garbage_get_responses() -> None:
    with serving() as served:
        client = served.connect()
        client.sendall(framed(b"good") + b"\xff\xff\xff\xff")
        assert receive_frame(client) == b"good"
        assert is_closed(client)


def test_a_truncated_request_never_reaches_the_node() -> None:
    with serving() as served:
        client = served.connect()
        client.sendall(struct.pack(">i", 100) + b"only half")
        client.shutdown(socket.SHUT_WR)
        assert is_closed(client)
        served.until(lambda: served.node.seen(ConnectionClosed) == 1)
        assert served.read(served.node.frames) == []


def test_a_reset_connection_is_removed() -> None:
    with serving() as served:
        client = served.connect()
        assert send_and_receive(client, b"hello") == b"hello"
        client.sendall(framed(b"wait 3600000"))
        served.until(lambda: served.node.seen(FrameReceived) == 2)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        served.until(lambda: served.node.seen(ConnectionClosed) == 1)


def test_an_announced_length_costs_nothing() -> None:
    """500 clients announce 100 MiB each and send little; other clients produce normally."""
    with serving() as served, allocations_below(60 * MIB):
        for _ in range(500):
            served.connect().sendall(struct.pack(">i", 100 * MIB) + bytes(9000))
        served.until(lambda: served.node.seen(ConnectionOpened) == 500)
        client = served.connect()
        assert send_and_receive(client, bytes(3 * MIB)) == bytes(3 * MIB)
        assert served.read(lambda: served.server.memory.used_bytes) <= 500 * 72 * 1024


def test_unfinished_requests_share_limited_memory_and_all_complete() -> None:
    limits = ServerLimits(queued_request_bytes_max=8 * MIB, request_bytes_max=5 * MIB)
    body = bytes(5 * MIB)
    with serving(limits) as served:
        clients = [served.connect() for _ in range(20)]
        sent = []
        for client in clients:
            client.sendall(struct.pack(">i", len(body)))
            sent.append(send_without_waiting(client, body[:-1]))
        served.until(lambda: served.server.memory.blocking is not None)
        # Small requests do not use the shared memory.
        assert send_and_receive(served.connect(), b"small") == b"small"
        assert served.read(lambda: served.server.memory.used_bytes) <= (8 + 5) * MIB
        # The oldest request always completes; the others then complete in turn.
        for client, sent_bytes in zip(clients, sent, strict=True):
            client.sendall(body[sent_bytes:])
            assert receive(client, 4 + len(body)) == framed(body)
        assert served.read(lambda: served.server.memory.used_bytes) == 0


def test_a_stalled_request_that_blocks_others_from_memory_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ServerLimits(
        queued_request_bytes_max=4 * MIB, memory_stall_ms_max=200, sweep_interval_ms=20
    )
    with serving(limits) as served:
        stalled = [served.connect() for _ in range(6)]
        for client in stalled:
            client.sendall(struct.pack(">i", 100 * MIB) + bytes(MIB))
        client = served.connect()
        assert send_and_receive(client, bytes(3 * MIB)) == bytes(3 * MIB)
        assert is_closed(stalled[0])
    assert str(limits.queued_request_bytes_max) in caplog.text


def test_500_idle_connections_do_not_block_others() -> None:
    with serving() as served, allocations_below(20 * MIB):
        for _ in range(500):
            served.connect()
        served.until(lambda: served.node.seen(ConnectionOpened) == 500)
        client = served.connect()
        for number in range(200):
            assert send_and_receive(client, b"%d" % number) == b"%d" % number


def test_idle_connections_are_closed_unless_they_wait_for_a_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ServerLimits(connection_idle_ms_max=150, sweep_interval_ms=20)
    with serving(limits) as served:
        idle, waiting = served.connect(), served.connect()
        assert send_and_receive(idle, b"hello") == b"hello"
        waiting.sendall(framed(b"wait 600"))
        assert is_closed(idle)
        assert receive_frame(waiting) == b"waited"
        assert is_closed(waiting)
    assert "connections.max.idle.ms=150" in caplog.text


def test_a_closed_connection_with_a_waiting_request_is_removed_when_idle() -> None:
    limits = ServerLimits(connection_idle_ms_max=150, sweep_interval_ms=20)
    with serving(limits) as served:
        for _ in range(50):
            client = served.connect()
            client.sendall(framed(b"wait 3600000"))
            client.close()
        served.until(lambda: served.node.seen(ConnectionClosed) == 50)


def test_a_trickle_of_bytes_counts_as_activity_as_in_kafka() -> None:
    limits = ServerLimits(connection_idle_ms_max=1500, sweep_interval_ms=20)
    with serving(limits) as served:
        idle, slow = served.connect(), served.connect()
        request = framed(b"a request that takes its time")
        slow.sendall(request[:1])
        idle.settimeout(0.05)
        sent_bytes = 1
        while True:  # The time at which the server closes the idle connection ends the loop.
            try:
                assert idle.recv(1) == b""
                break
            except TimeoutError:
                slow.sendall(request[sent_bytes : sent_bytes + 1])
                sent_bytes += 1
        slow.sendall(request[sent_bytes:])
        assert receive_frame(slow) == b"a request that takes its time"


def test_a_login_is_limited_in_time_even_if_bytes_arrive() -> None:
    limits = ServerLimits(connection_idle_ms_max=300, sweep_interval_ms=20)
    with serving(limits) as served:
        slow, known = served.connect(), served.connect()
        for _ in range(2):
            assert send_and_receive(known, b"login") == b"login"
        assert send_and_receive(slow, b"login") == b"login"
        slow.sendall(framed(b"x" * 1000)[:4])
        slow.settimeout(0.02)
        for _ in range(200):
            assert send_and_receive(known, b"others") == b"others"
            try:
                assert slow.recv(1) == b""
                break
            except TimeoutError:
                slow.sendall(b"x")
            except ConnectionError:
                break
        else:
            pytest.fail("the server has not closed the connection")
        assert send_and_receive(known, b"others") == b"others"


def pipeline_without_reading(served: ScriptedServer, response_bytes: int) -> socket.socket:
    client = served.connect()
    client.sendall(framed(*[b"big %d" % response_bytes] * 200))
    return client


def test_a_client_that_does_not_read_gets_no_further_request_served() -> None:
    with serving() as served, allocations_below(100 * MIB):
        client = pipeline_without_reading(served, 20 * MIB)
        served.until(lambda: served.node.seen(FrameReceived) >= 1)
        other = served.connect()
        for number in range(50):
            assert send_and_receive(other, b"%d" % number) == b"%d" % number
        served_frames = served.read(served.node.frames)
        assert served_frames.count(b"big %d" % (20 * MIB)) == 1
        # The request is delayed, not lost: a client that reads gets all responses in order.
        for _ in range(3):
            assert receive(client, 4 + 20 * MIB) == framed(bytes(20 * MIB))


def test_a_client_that_never_reads_is_closed_after_the_stall_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(ServerLimits(send_stall_ms_max=150, sweep_interval_ms=20)) as served:
        client = pipeline_without_reading(served, 20 * MIB)
        host, port = client.getsockname()
        served.until(lambda: served.node.seen(ConnectionClosed) == 1)
    assert f"{host}:{port}" in caplog.text


@pytest.mark.slow
def test_a_client_that_only_sends_is_closed_after_the_stall_timeout() -> None:
    with serving(ServerLimits(send_stall_ms_max=1500, sweep_interval_ms=20)) as served:
        client = served.connect()
        client.sendall(framed(b"big %d" % (20 * MIB)))
        client.settimeout(0.02)
        for _ in range(500):
            if served.read(lambda: served.node.seen(ConnectionClosed)):
                return
            time.sleep(0.02)  # The sleep sets the client's speed; it does not wait for a condition.
            with contextlib.suppress(OSError):
                client.sendall(b"x")
        pytest.fail("the server has not closed the connection")


def test_a_client_that_reads_slowly_is_not_closed() -> None:
    with serving(ServerLimits(send_stall_ms_max=1500, sweep_interval_ms=20)) as served:
        slow, never = served.connect(), pipeline_without_reading(served, 20 * MIB)
        slow.sendall(framed(b"big %d" % (60 * MIB)))
        received = 0
        while served.read(lambda: served.node.seen(ConnectionClosed)) == 0:
            time.sleep(0.02)  # The sleep sets the client's speed; it does not wait for a condition.
            received += len(receive(slow, min(MIB // 2, 4 + 60 * MIB - received)))
        assert is_closed_or_cut(never)
        assert receive(slow, 4 + 60 * MIB - received)[-1:] == b"\x00"


def is_closed_or_cut(client: socket.socket) -> bool:
    """Return whether the connection is closed or aborted, after reading all bytes."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(MIB):
            pass
    return True


def test_unread_responses_are_limited_by_closing_the_slowest_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving(ServerLimits(unsent_bytes_max=50 * MIB)) as served:
        addresses = []
        for count in range(1, 9):
            addresses.append(pipeline_without_reading(served, 20 * MIB).getsockname())
            served.until(lambda count=count: served.node.seen(FrameReceived) >= count)  # type: ignore[misc]
        served.until(lambda: served.node.seen(ConnectionClosed) >= 4)
        assert send_and_receive(served.connect(), b"big %d" % MIB) == bytes(MIB)
    host, port = addresses[0]
    assert f"{host}:{port}" in caplog.text
