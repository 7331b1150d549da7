"""Tests of connections to slow, faulty and closed brokers."""

from __future__ import annotations

import random
import re
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka.errors import AuthenticationError, BrokerUnreachableError, ProtocolError
from pyspark_kafka.wire.connection import Connection, Request, entity_request, wait_any
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import Api
from tests.pyspark_kafka.wire.scripted import (
    Peer,
    ReceivedRequest,
    Script,
    ScriptedBroker,
    frame,
    response_frame,
)

CLOCK = Clock()
SHORT_S = 0.3
LONG_S = 20.0
METADATA_VERSION = 12
FIND_COORDINATOR_VERSION = 3


def soon(seconds: float = LONG_S) -> float:
    return time.monotonic() + seconds


def opened(broker: ScriptedBroker, clock: Clock = CLOCK, **options: Any) -> Connection:
    dialer = Dialer(client_id="tests", clock=clock, **options)
    return dialer.open(Address.parse(broker.address), broker="broker 7", deadline=soon())


def metadata() -> Request[Any]:
    return entity_request(
        Api.METADATA, METADATA_VERSION, topics=[], include_topic_authorized_operations=False
    )


def find_coordinator() -> Request[Any]:
    return entity_request(Api.FIND_COORDINATOR, FIND_COORDINATOR_VERSION, key="g")


def large(size: int) -> Request[int]:
    return Request(
        api=Api.METADATA,
        version=METADATA_VERSION,
        body=(bytes(size),),
        read=lambda reader: len(reader.view(reader.left, "all")),
        throttle_ms=lambda _: 0,
    )


def respond_to_metadata(
    peer: Peer, request: ReceivedRequest, cluster_id: str = "c", **fields: Any
) -> None:
    peer.respond(request, "metadata", cluster_id=cluster_id, **fields)


def negotiated(script: Script) -> Script:
    def play(peer: Peer) -> None:
        peer.negotiate()
        script(peer)

    return play


def test_requests_are_pipelined() -> None:
    def script(peer: Peer) -> None:
        requests = [peer.read() for _ in range(3)]  # all three before the first response
        for index, one in enumerate(requests):
            respond_to_metadata(peer, one, cluster_id=f"c{index}")
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        in_flight_requests = [connection.send(metadata(), deadline=soon()) for _ in range(3)]
        last = connection.receive(in_flight_requests[2], deadline=soon())
        assert last.cluster_id == "c2"
        assert [p.result().cluster_id for p in in_flight_requests] == ["c0", "c1", "c2"]
        assert connection.in_flight == 0
        assert connection.is_usable
        connection.close()


def test_a_response_in_single_bytes() -> None:
    def script(peer: Peer) -> None:
        for byte in response_frame(peer.read().correlation_id, "metadata", METADATA_VERSION):
            peer.send(bytes([byte]))
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        assert connection.call(metadata(), deadline=soon()).topics == ()
        connection.close()


def test_api_versions_falls_back_to_version_0() -> None:
    versions = []

    def script(peer: Peer) -> None:
        request = peer.read()
        versions.append(request.version)
        # Like Kafka, answer an unsupported version with version 0.
        peer.send(
            response_frame(request.correlation_id, "api_versions", 0, error_code=35, api_keys=[])
        )
        request = peer.read()
        versions.append(request.version)
        peer.respond(
            request,
            "api_versions",
            api_keys=[{"api_key": 3, "min_version": 0, "max_version": 5}],
        )
        peer.hang()

    with ScriptedBroker(script) as broker:
        connection = opened(broker)
        assert connection.versions.choose(Api.METADATA) == 5
        connection.close()
    assert versions == [3, 0]


def _silence(peer: Peer) -> None:
    peer.read()
    peer.hang()


def _close(peer: Peer) -> None:
    peer.read()


def _half_a_frame(peer: Peer) -> None:
    data = response_frame(peer.read().correlation_id, "metadata", METADATA_VERSION)
    peer.send(data[: len(data) // 2])


def _half_a_length(peer: Peer) -> None:
    peer.read()
    peer.send(b"\0\0")


def _half_a_frame_then_silence(peer: Peer) -> None:
    _half_a_frame(peer)
    peer.hang()


def _announcing(length: int) -> Script:
    def script(peer: Peer) -> None:
        peer.read()
        peer.send(struct.pack(">i", length) + b"abcdefgh")
        peer.hang()

    return script


def _wrong_correlation_id(peer: Peer) -> None:
    peer.send(response_frame(peer.read().correlation_id + 1000, "metadata", METADATA_VERSION))
    peer.hang()


def _trailing_bytes(peer: Peer) -> None:
    data = response_frame(peer.read().correlation_id, "metadata", METADATA_VERSION)
    peer.send(frame(data[4:] + b"more"))
    peer.hang()


def _huge_array(peer: Peer) -> None:
    """Send throttle time 0 and then 2**31 brokers in a frame of a few bytes."""
    correlation_id = struct.pack(">i", peer.read().correlation_id)
    peer.send(frame(correlation_id + b"\0" + bytes(4) + b"\x80\x80\x80\x80\x08" + bytes(20)))
    peer.hang()


def _invalid_utf8(peer: Peer) -> None:
    data = response_frame(
        peer.read().correlation_id, "metadata", METADATA_VERSION, cluster_id="abc"
    )
    peer.send(data.replace(b"abc", b"\xff\xfe\xfd"))
    peer.hang()


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        (_silence, BrokerUnreachableError, "Metadata v12"),
        (_close, BrokerUnreachableError, "Metadata v12"),
        (_half_a_frame, BrokerUnreachableError, "Metadata v12"),
        (_half_a_length, BrokerUnreachableError, "Metadata v12"),
        (
            _half_a_frame_then_silence,
            BrokerUnreachableError,
            "Metadata v12",
        ),
        (_announcing(2**31 - 1), ProtocolError, r"\b2147483647\b"),
        (_announcing(-1), ProtocolError, r"-1\b"),
        (_announcing(3), ProtocolError, r"\b3\b"),
        (_announcing(0x15030300), AuthenticationError, "TLS alert"),
        (_wrong_correlation_id, ProtocolError, r"\b1001\b"),
        (_trailing_bytes, ProtocolError, r"\b4\b"),
        (_huge_array, ProtocolError, r"MetadataResponse\.brokers"),
        (_invalid_utf8, ProtocolError, r"MetadataResponse\.cluster_id"),
    ],
)
def test_an_error_names_the_broker_and_the_request(
    script: Script, kind: type[Exception], reason: str
) -> None:
    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        began = time.monotonic()
        with pytest.raises(kind, match=reason) as caught:
            connection.call(metadata(), deadline=soon(SHORT_S))
        assert time.monotonic() - began < 5
        assert re.search(r"Metadata v12\b.*broker 7\b", str(caught.value))
        assert not connection.is_usable
        with pytest.raises(kind, match=reason):
            connection.send(metadata(), deadline=soon())


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_an_error_or_a_response(seed: int) -> None:
    data = random.Random(seed).randbytes(64)

    def script(peer: Peer) -> None:
        request = peer.read()
        peer.send(frame(struct.pack(">i", request.correlation_id) + data))
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        try:
            connection.call(metadata(), deadline=soon(SHORT_S))
        except (ProtocolError, BrokerUnreachableError) as error:
            assert re.search(r"Metadata v12\b.*broker 7\b", str(error)), data.hex()  # noqa: PT017
        connection.close()


def test_responses_out_of_order_fail_all_requests() -> None:
    def script(peer: Peer) -> None:
        peer.read()
        second = peer.read()
        peer.respond(second, "find_coordinator", host="h", port=1, error_message=None)
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        first = connection.send(metadata(), deadline=soon())
        second = connection.send(find_coordinator(), deadline=soon())
        expected = r"\b2\b.*FindCoordinator v3\b.*\b1\b.*Metadata v12\b"
        with pytest.raises(ProtocolError, match=f"^FindCoordinator v3.*broker 7.*{expected}"):
            connection.receive(second, deadline=soon())
        with pytest.raises(ProtocolError, match=f"^Metadata v12.*broker 7.*{expected}"):
            first.result()


def test_a_late_response_is_not_that_of_a_later_request() -> None:
    late = threading.Event()

    def script(peer: Peer) -> None:
        request = peer.read()
        late.wait()
        respond_to_metadata(peer, request)
        peer.until_closed()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        with pytest.raises(BrokerUnreachableError, match="Metadata v12"):
            connection.call(metadata(), deadline=soon(SHORT_S))
        late.set()
        with pytest.raises(BrokerUnreachableError, match=r"FindCoordinator v3\b.*broker 7\b"):
            connection.call(find_coordinator(), deadline=soon())


def test_a_timeout_error_names_the_earlier_request() -> None:
    with ScriptedBroker(negotiated(_silence)) as broker:
        connection = opened(broker)
        connection.send(metadata(), deadline=soon())
        with pytest.raises(
            BrokerUnreachableError,
            match=r"FindCoordinator v3 .*Metadata v12",
        ):
            connection.call(find_coordinator(), deadline=soon(SHORT_S))


def test_an_abandoned_response_is_dropped() -> None:
    def script(peer: Peer) -> None:
        for name in ("unwanted", "wanted"):
            respond_to_metadata(peer, peer.read(), cluster_id=name)
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        unwanted = connection.send(metadata(), deadline=soon())
        unwanted.abandon()
        assert connection.call(metadata(), deadline=soon()).cluster_id == "wanted"
        assert unwanted.done
        assert unwanted.result() is None  # a response may have many megabytes
        connection.close()


def _closes_when_idle(peer: Peer) -> None:
    peer.negotiate()


def _sends_without_a_request(peer: Peer) -> None:
    peer.negotiate()
    peer.send(frame(bytes(8)))
    peer.hang()


@pytest.mark.parametrize("script", [_closes_when_idle, _sends_without_a_request])
def test_an_unusable_idle_connection_is_detected(script: Script) -> None:
    with ScriptedBroker(script) as broker:
        connection = opened(broker)
        deadline = soon()
        while connection.is_usable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_broker_that_stops_reading_is_an_error() -> None:
    def script(peer: Peer) -> None:
        peer.negotiate()
        peer.hang()

    with ScriptedBroker(script) as broker:
        connection = opened(broker)
        with pytest.raises(BrokerUnreachableError, match="Metadata v12"):
            connection.send(large(64_000_000), deadline=soon(SHORT_S))
        assert not connection.is_usable


def test_an_interrupted_request_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def script(peer: Peer) -> None:
        peer.negotiate()
        peer.hang()

    with ScriptedBroker(script) as broker:
        connection = opened(broker)
        monkeypatch.setattr("pyspark_kafka.wire.connection.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.send(large(64_000_000), deadline=soon())
        with pytest.raises(BrokerUnreachableError, match="Metadata v12"):
            connection.send(metadata(), deadline=soon())


def test_responses_are_read_while_a_large_request_is_sent() -> None:
    size = 32_000_000

    def script(peer: Peer) -> None:
        first = peer.read()
        # Kafka reads the next request after it has written this response.
        peer.send(frame(struct.pack(">i", first.correlation_id) + bytes(size)))
        second = peer.read()
        peer.send(frame(struct.pack(">i", second.correlation_id) + bytes(2)))
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        first = connection.send(large(1), deadline=soon())
        connection.call(large(size), deadline=soon())
        assert first.done
        connection.close()


def test_wait_any_of_several_brokers() -> None:
    go_on = threading.Event()

    def slow(peer: Peer) -> None:
        request = peer.read()
        go_on.wait()
        respond_to_metadata(peer, request, cluster_id="slow")
        peer.hang()

    def fast(peer: Peer) -> None:
        respond_to_metadata(peer, peer.read(), cluster_id="fast")
        peer.hang()

    with ScriptedBroker(negotiated(slow)) as first, ScriptedBroker(negotiated(fast)) as second:
        connections = [opened(first), opened(second)]
        in_flight_requests = [c.send(metadata(), deadline=soon()) for c in connections]
        done = wait_any(in_flight_requests, deadline=soon(), clock=CLOCK)
        assert done == [in_flight_requests[1]]
        left = [in_flight_requests[0]]
        assert wait_any(left, deadline=soon(0.05), clock=CLOCK) == []
        assert connections[0].is_usable  # a timeout of the wait is not a failure
        go_on.set()
        assert wait_any(left, deadline=soon(), clock=CLOCK) == left
        assert in_flight_requests[0].result().cluster_id == "slow"
        for connection in connections:
            connection.close()


def test_wait_any_stops_at_a_complete_response() -> None:
    """Otherwise a large second response would delay the first."""

    def script(peer: Peer) -> None:
        both = [peer.read(), peer.read()]
        ids = [request.correlation_id for request in both]
        peer.send(b"".join(response_frame(one, "metadata", METADATA_VERSION) for one in ids))
        peer.hang()

    with ScriptedBroker(negotiated(script)) as broker:
        connection = opened(broker)
        in_flight_requests = [connection.send(metadata(), deadline=soon()) for _ in range(2)]
        assert wait_any(in_flight_requests, deadline=soon(), clock=CLOCK) == in_flight_requests[:1]
        assert (
            wait_any(in_flight_requests[1:], deadline=soon(), clock=CLOCK) == in_flight_requests[1:]
        )
        connection.close()


def test_a_failed_pending_is_done() -> None:
    with ScriptedBroker(negotiated(_close)) as broker:
        connection = opened(broker)
        pending = connection.send(metadata(), deadline=soon())
        assert wait_any([pending], deadline=soon(), clock=CLOCK) == [pending]
        with pytest.raises(BrokerUnreachableError, match="Metadata v12"):
            pending.result()


def throttled(throttle_time_ms: int) -> Script:
    def script(peer: Peer) -> None:
        respond_to_metadata(peer, peer.read(), throttle_time=throttle_time_ms)
        respond_to_metadata(peer, peer.read())
        peer.hang()

    return negotiated(script)


def test_requests_wait_for_the_throttle_time() -> None:
    slept_s: list[float] = []
    clock = Clock(sleep=slept_s.append)
    with ScriptedBroker(throttled(5_000)) as broker:
        connection = opened(broker, clock)
        connection.call(metadata(), deadline=soon())
        assert slept_s == []
        connection.call(metadata(), deadline=soon())
        assert slept_s == [pytest.approx(5.0, abs=0.5)]
        connection.close()


def test_throttling_beyond_the_deadline_is_an_error() -> None:
    with ScriptedBroker(throttled(60_000)) as broker:
        connection = opened(broker)
        connection.call(metadata(), deadline=soon())
        with pytest.raises(BrokerUnreachableError, match=r"\b[1-6]\d(\.\d*)? s\b"):
            connection.send(metadata(), deadline=soon(1.0))
        assert connection.is_usable
        connection.close()


def _never(peer: Peer) -> None:
    peer.hang()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_never, "ApiVersions v3"),
        (lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "1213486160"),
    ],
)
def test_a_server_without_api_versions_is_an_error(
    script: Callable[[Peer], None], reason: str
) -> None:
    with (
        ScriptedBroker(script) as broker,
        pytest.raises((BrokerUnreachableError, ProtocolError), match=reason),
    ):
        Dialer(client_id="tests", clock=CLOCK).open(
            Address.parse(broker.address), broker="broker 7", deadline=soon(SHORT_S)
        )
