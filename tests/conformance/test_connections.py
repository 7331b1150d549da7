"""Tests of invalid bytes on a connection, and of many connections."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import ConnectionClosedByBrokerError, RawConnection, encode_request, request

METADATA = encode_request(request("metadata", 9, topics=[]), 1, "conformance")
UNKNOWN_API_KEY = 32_000


@pytest.fixture
def others_are_served(raw_address: str) -> Iterator[None]:
    """Check that an existing and a new connection work after the invalid request."""
    with RawConnection(raw_address) as open_before:
        open_before.call("metadata", 9, topics=[])
        yield
        assert open_before.call("metadata", 9, topics=[]).brokers
    with RawConnection(raw_address) as opened_after:
        assert opened_after.call("metadata", 9, topics=[]).brokers


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", -(2**31)), id="the most negative length"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="length of 2 GiB"),
        pytest.param(
            struct.pack(">i", 100 * 1024 * 1024 + 1), id="beyond socket.request.max.bytes"
        ),
    ],
)
def test_invalid_frames_close_the_connection(
    raw: RawConnection, others_are_served: None, sent: bytes
) -> None:
    raw.send_bytes(sent)
    assert raw.closed_by_broker()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty frame"),
        pytest.param(b"\0", id="one byte"),
        pytest.param(struct.pack(">hhi", 3, 9, 1), id="header cut off"),
        pytest.param(struct.pack(">hhih", 3, 9, 1, 500) + b"name", id="client id cut off"),
        pytest.param(METADATA[:-3], id="body cut off"),
        pytest.param(
            struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1), id="array of two thousand million"
        ),
        pytest.param(struct.pack(">hhihih", 3, 1, 1, -1, 1, 2**15 - 1), id="string beyond the end"),
    ],
)
def test_invalid_request_closes_the_connection(
    raw: RawConnection, others_are_served: None, frame: bytes
) -> None:
    raw.send_frame(frame)
    assert raw.closed_by_broker()


def test_unknown_api_key_closes_the_connection(raw: RawConnection, others_are_served: None) -> None:
    raw.send_frame(struct.pack(">hhih", UNKNOWN_API_KEY, 0, 1, -1))
    assert raw.closed_by_broker()


@pytest.mark.parametrize("version", [-1, 99])
def test_unknown_version_closes_the_connection(
    raw: RawConnection, others_are_served: None, version: int
) -> None:
    raw.send_frame(struct.pack(">hhih", 3, version, 1, -1) + METADATA[10:])
    assert raw.closed_by_broker()


def test_incomplete_frame_does_not_affect_other_connections(
    raw_address: str, others_are_served: None
) -> None:
    with RawConnection(raw_address) as half:
        half.send_bytes(struct.pack(">i", len(METADATA)) + METADATA[:5])
        half.half_close()
        assert half.closed_by_broker()


def test_request_in_many_small_pieces_is_served(raw: RawConnection) -> None:
    requested = request("metadata", 9, topics=[])
    for byte in struct.pack(">i", len(METADATA)) + METADATA:
        raw.send_bytes(bytes([byte]))
    assert raw.receive_frame()[:4] == struct.pack(">i", 1)
    assert raw.send(requested).brokers


def test_requests_sent_at_once_get_responses_in_order(raw: RawConnection) -> None:
    metadata = encode_request(request("metadata", 9, topics=[]), 0, None)
    frames = [
        metadata[:4] + struct.pack(">i", number) + metadata[8:] for number in (5, -3, 2**31 - 1)
    ]
    raw.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    responses = [struct.unpack_from(">i", raw.receive_frame())[0] for _ in frames]
    assert responses == [5, -3, 2**31 - 1]


@pytest.mark.parametrize("client_id", [None, "", "a name with spaces and ünïcödé"])
def test_any_client_id_is_accepted(raw: RawConnection, client_id: str | None) -> None:
    assert raw.send(request("metadata", 9, topics=[]), client_id=client_id).brokers


def test_client_that_disconnects_early_does_not_affect_others(
    raw_address: str, others_are_served: None, topic: Callable[..., str]
) -> None:
    waited_for = topic()
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    with RawConnection(raw_address) as leaver:
        leaver.send_only(
            request(
                "fetch",
                4,
                replica_id=-1,
                max_wait=5_000,
                min_bytes=1,
                max_bytes=1,
                topics=[{"topic": waited_for, "partitions": [partition]}],
            )
        )


@pytest.mark.slow
def test_five_hundred_idle_connections_do_not_block_others(raw_address: str) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(RawConnection(raw_address)) for _ in range(500)]
        with RawConnection(raw_address) as busy:
            assert busy.call("api_versions", 0).error_code == ErrorCode.none
        assert idle[0].call("api_versions", 0).error_code == ErrorCode.none
        assert idle[-1].call("api_versions", 0).error_code == ErrorCode.none


def test_closed_connection_is_not_a_response(raw: RawConnection) -> None:
    raw.send_frame(b"")
    with pytest.raises(ConnectionClosedByBrokerError):
        raw.receive_frame()
