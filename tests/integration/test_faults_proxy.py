"""The faults that the proxy injects, with an echo server and with a Kafka cluster."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from integration.clusters import Cluster
from integration.faults.links import ProxiedLinks, is_follower
from integration.faults.proxy import Direction, TcpProxy
from integration.faults.rules import RequestHeader, of_api
from integration.raw import ConnectionClosedByBrokerError, RawConnection, encode_request, request
from tests.conformance.eventually import eventually

TO_BROKER, TO_CLIENT = frozenset({Direction.TO_BROKER}), frozenset({Direction.TO_CLIENT})
QUIET_S = 0.3
"""The seconds after which a test assumes that no data will arrive."""


class Broker:
    """Server that echoes each frame, starting at its correlation id, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.request_received = threading.Condition()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._answer, args=(connection,)))
            self._threads[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while length := stream.read(4):
                    frame = stream.read(struct.unpack(">i", length)[0])
                    with self.request_received:
                        self.requests.append(frame)
                        self.request_received.notify_all()
                    connection.sendall(struct.pack(">i", len(frame) - 4) + frame[4:])
            except OSError:
                return

    def await_requests(self, count: int) -> None:
        with self.request_received:
            assert self.request_received.wait_for(lambda: len(self.requests) >= count, 10)

    def close(self) -> None:
        if self._server.fileno() < 0:
            return
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self._open:
            if connection.fileno() >= 0:
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def broker() -> Iterator[Broker]:
    served = Broker()
    yield served
    served.close()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[TcpProxy]:
    with TcpProxy(broker.address) as opened:
        yield opened


@pytest.fixture
def connect(proxy: TcpProxy) -> Iterator[Callable[[], RawConnection]]:
    with ExitStack() as opened:
        yield lambda: opened.enter_context(RawConnection(proxy.address, timeout_s=10))


def frame(api: str, correlation_id: int = 1, client_id: str | None = "test") -> bytes:
    """Return a request frame. The server returns it without its first 4 bytes."""
    return encode_request(request(api, 3), correlation_id, client_id)


def call(connection: RawConnection, api: str = "metadata", correlation_id: int = 1) -> None:
    request = frame(api, correlation_id)
    connection.send_frame(request)
    assert connection.receive_frame() == request[4:]


def test_bytes_pass_in_order_and_unchanged(
    connect: Callable[[], RawConnection], broker: Broker
) -> None:
    connection = connect()
    sent = [
        frame("metadata") + bytes(300_000),
        frame("metadata", client_id=None),
        # The proxy must also forward frames that are not requests.
        b"abcd",
        bytes(8) + struct.pack(">h", 30_000) + b"?",
    ]
    for one in sent:
        connection.send_frame(one)
    assert [connection.receive_frame() for _ in sent] == [one[4:] for one in sent]
    assert broker.requests == sent


def test_the_end_of_a_connection_is_forwarded(connect: Callable[[], RawConnection]) -> None:
    connection = connect()
    call(connection)
    connection.half_close()
    assert connection.closed_by_broker()


def test_a_dropped_request_never_arrives_and_the_next_one_does(
    connect: Callable[[], RawConnection], proxy: TcpProxy, broker: Broker
) -> None:
    rule = proxy.drop_requests(of_api("produce"), times=1)
    first = connect()
    call(first, "metadata")
    first.send_frame(frame("produce"))
    assert first.closed_by_broker()
    call(connect(), "produce")
    assert rule.hits == 1
    assert broker.requests == [frame("metadata"), frame("produce")]


def test_a_request_with_a_lost_response_arrives(
    connect: Callable[[], RawConnection], proxy: TcpProxy, broker: Broker
) -> None:
    proxy.drop_responses(of_api("produce"))
    connection = connect()
    connection.send_frame(frame("metadata", 1))
    connection.send_frame(frame("produce", 2))
    assert connection.receive_frame() == frame("metadata", 1)[4:]
    assert connection.closed_by_broker()
    assert broker.requests == [frame("metadata", 1), frame("produce", 2)]


def test_held_requests_keep_their_order_until_the_rule_ends(
    connect: Callable[[], RawConnection], proxy: TcpProxy, broker: Broker
) -> None:
    rule = proxy.hold_requests(of_api("list_offsets"))
    connection = connect()
    connection.send_frame(frame("list_offsets", 1))
    connection.send_frame(frame("metadata", 2))
    rule.await_hits()
    call(connect(), correlation_id=3)
    assert broker.requests == [frame("metadata", 3)]
    rule.end()
    assert [connection.receive_frame() for _ in range(2)] == [
        frame("list_offsets", 1)[4:],
        frame("metadata", 2)[4:],
    ]


def test_a_rule_can_match_the_whole_header(
    connect: Callable[[], RawConnection], proxy: TcpProxy
) -> None:
    seen: list[RequestHeader] = []

    def note(header: RequestHeader) -> bool:
        seen.append(header)
        return False

    proxy.drop_requests(note)
    call(connect(), "metadata", 7)
    assert seen == [
        RequestHeader(api_key=3, api_version=3, correlation_id=7, client_id="test"),
    ]


def test_close_raises_the_errors_of_matchers(broker: Broker) -> None:
    def wrong(header: RequestHeader) -> bool:
        raise LookupError(header.api_key)

    proxy = TcpProxy(broker.address)
    proxy.drop_requests(wrong)
    with RawConnection(proxy.address) as connection:
        connection.send_frame(frame("metadata"))
        assert connection.closed_by_broker()
    with pytest.raises(ExceptionGroup) as raised:
        proxy.close()
    assert raised.group_contains(LookupError, match="3")


def test_followers_are_distinguished_from_clients_and_each_other() -> None:
    def fetch(client_id: str | None) -> RequestHeader:
        return RequestHeader(api_key=1, api_version=17, correlation_id=1, client_id=client_id)

    names = ["broker-2-fetcher-0", "broker-12-fetcher-0", "broker-2", "rdkafka", None]
    assert [is_follower(2)(fetch(name)) for name in names] == [True, False, False, False, False]


def test_a_cut_to_the_broker_holds_requests_until_heal(
    connect: Callable[[], RawConnection], proxy: TcpProxy, broker: Broker
) -> None:
    old = connect()
    call(old)
    proxy.cut(directions=TO_BROKER)
    new = connect()
    for connection in (old, new):
        connection.send_frame(frame("metadata", 2))
        assert silent(connection)
    assert len(broker.requests) == 1
    proxy.heal()
    assert [c.receive_frame() for c in (old, new)] == [frame("metadata", 2)[4:]] * 2


def test_a_cut_to_the_client_holds_only_responses(
    connect: Callable[[], RawConnection], proxy: TcpProxy, broker: Broker
) -> None:
    connection = connect()
    proxy.cut(directions=TO_CLIENT)
    connection.send_frame(frame("metadata"))
    broker.await_requests(1)
    assert silent(connection)
    proxy.heal()
    assert connection.receive_frame() == frame("metadata")[4:]


def test_dropped_connections_close_and_new_ones_work(
    connect: Callable[[], RawConnection], proxy: TcpProxy
) -> None:
    old = connect()
    call(old)
    proxy.drop_connections()
    assert old.closed_by_broker()
    call(connect())
    assert proxy.connection_count == 1


def test_refused_connections_work_on_the_same_port_after_heal(
    connect: Callable[[], RawConnection], proxy: TcpProxy
) -> None:
    old, address = connect(), proxy.address
    call(old)
    proxy.refuse_connections()
    assert old.closed_by_broker()
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.heal()
    assert proxy.address == address
    call(connect())


def test_connections_close_if_the_broker_is_gone(
    connect: Callable[[], RawConnection], broker: Broker, proxy: TcpProxy
) -> None:
    old = connect()
    call(old)
    broker.close()
    assert old.closed_by_broker()
    assert connect().closed_by_broker()
    eventually(lambda: proxy.connection_count == 0)


@pytest.mark.slow
def test_a_delay_holds_every_frame(connect: Callable[[], RawConnection], proxy: TcpProxy) -> None:
    connection = connect()
    proxy.delay(0.1)
    assert seconds(lambda: call(connection)) >= 0.2
    proxy.heal()
    proxy.delay_requests(of_api("list_offsets"), 2.0, times=1)
    assert seconds(lambda: call(connection, "metadata")) < 2.0
    assert seconds(lambda: call(connection, "list_offsets")) >= 2.0
    assert seconds(lambda: call(connection, "list_offsets")) < 2.0


def test_throttled_bytes_are_slow(connect: Callable[[], RawConnection], proxy: TcpProxy) -> None:
    connection = connect()
    proxy.throttle(1_000_000)
    connection.send_frame(frame("metadata") + bytes(200_000))
    assert seconds(connection.receive_frame) >= 0.2


def silent(connection: RawConnection) -> bool:
    """Return whether no data arrives for `QUIET_S` seconds and the connection stays open."""
    connection.set_timeout(QUIET_S)
    try:
        connection.receive_frame()
    except TimeoutError:
        return True
    except ConnectionClosedByBrokerError:
        return False
    finally:
        connection.set_timeout(10)
    return False


def seconds(act: Callable[[], object]) -> float:
    start_s = time.monotonic()
    act()
    return time.monotonic() - start_s


@pytest.mark.slow
@pytest.mark.kafka_only
@pytest.mark.timeout(300)
def test_a_cluster_behind_proxies_is_reached_only_through_them(
    cluster_with: Callable[..., Cluster],
) -> None:
    with ProxiedLinks() as links:
        cluster = cluster_with(brokers=3, links=links)
        assert cluster.bootstrap_servers.split(",") == [
            links.brokers[broker_id].address for broker_id in cluster.broker_ids
        ]
        cluster.create_topic(
            "replicated", assignment=[[1, 2, 3]], configs={"min.insync.replicas": "2"}
        )
        follower = links.brokers[1].hold_requests(is_follower(2))
        follower.await_hits()
        follower.end()
        assert links.controllers[3].connection_count > 0
        links.heal()
        cluster.close()
