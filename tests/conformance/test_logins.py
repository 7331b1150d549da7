"""Tests of invalid TLS connections and logins: each closes one connection, with Kafka's error code.

`others_are_served` checks that other clients are not affected.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters.kafka import KafkaCluster
from integration.clusters.reference import ReferenceCluster
from integration.clusters.security import SecuredListener, Security
from integration.raw import ConnectionClosedByBrokerError, RawConnection, encode_request, request
from tests.conftest import ClusterFactory

TIMEOUT_S = 30.0
RECEIVE_BYTES_MAX = 10_000
IDLE_MS = 3_000
TLS, SASL, EXPIRING = "TLS", "SASL", "EXPIRING"
SECURITY = Security(
    users={"alice": "alice-secret", "bob": "bob-secret"},
    listeners=(
        SecuredListener(name=TLS, protocol="SSL"),
        SecuredListener(name=SASL, protocol="SASL_PLAINTEXT"),
        SecuredListener(
            name=EXPIRING, protocol="SASL_PLAINTEXT", mechanisms=("PLAIN",), session_ms=60_000
        ),
    ),
)
ALICE, BOB = b"\0alice\0alice-secret", b"\0bob\0bob-secret"
API_VERSIONS = encode_request(request("api_versions", 0), 1, "raw")


@pytest.fixture(scope="module")
def secured(cluster_with: ClusterFactory) -> ReferenceCluster | KafkaCluster:
    started = cluster_with(
        {
            "sasl.server.max.receive.size": str(RECEIVE_BYTES_MAX),
            "connections.max.idle.ms": str(IDLE_MS),
        },
        security=SECURITY,
    )
    assert isinstance(started, (ReferenceCluster, KafkaCluster))
    return started


@pytest.fixture(autouse=True)
def others_are_served(secured: ReferenceCluster | KafkaCluster) -> Iterator[None]:
    """Check that other clients can log in after the invalid connection."""
    yield
    with opened(secured, SASL) as connection:
        log_in(connection, ALICE)
        assert connection.call("metadata", 9, topics=[]).brokers
    with tls(secured) as client:
        client.sendall(framed(API_VERSIONS))
        assert client.recv(4)


def opened(secured: ReferenceCluster | KafkaCluster, listener: str) -> RawConnection:
    return RawConnection(secured.secured.servers(listener), timeout_s=TIMEOUT_S)


def connect(secured: ReferenceCluster | KafkaCluster, listener: str = TLS) -> socket.socket:
    host, _, port = secured.secured.servers(listener).rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def tls(secured: ReferenceCluster | KafkaCluster) -> ssl.SSLSocket:
    return trusting().wrap_socket(connect(secured), server_hostname="localhost")


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def is_closed(client: socket.socket) -> bool:
    """Read until the broker closes the connection; TLS alerts may come first."""
    try:
        while client.recv(1000):
            pass
    except ConnectionError:
        pass
    return True


def log_in(connection: RawConnection, token: bytes) -> tuple[ErrorCode, str | None]:
    assert connection.call("sasl_handshake", 1, mechanism="PLAIN").error_code is ErrorCode.none
    response = connection.call("sasl_authenticate", 1, auth_bytes=token)
    return response.error_code, response.error_message


# TLS -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(framed(API_VERSIONS), id="plaintext"),
        pytest.param(b"\x16\x03\x01\xff\xff" + b"x" * 70_000, id="record beyond the maximum"),
        pytest.param(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00", id="empty client hello"),
        pytest.param(b"\x17\x03\x03\x00\x05hello", id="data before the handshake"),
    ],
)
def test_bytes_that_are_no_handshake(secured: ReferenceCluster | KafkaCluster, sent: bytes) -> None:
    with connect(secured) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(sent)
        assert is_closed(client)


def test_tls_client_of_a_listener_without_tls(secured: ReferenceCluster | KafkaCluster) -> None:
    with (
        connect(secured, SASL) as client,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        trusting().wrap_socket(client)


@pytest.mark.parametrize("damage", ["truncated", "altered", "a plaintext request"])
def test_an_invalid_record_after_the_handshake(
    secured: ReferenceCluster | KafkaCluster, damage: str
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = trusting().wrap_bio(incoming, outgoing)
    with connect(secured) as client:
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(outgoing.read())
                incoming.write(client.recv(10_000))
        client.sendall(outgoing.read())
        session.write(framed(API_VERSIONS))
        record = outgoing.read()
        if damage == "truncated":
            client.sendall(record[:-1])
            client.shutdown(socket.SHUT_WR)
        elif damage == "altered":
            client.sendall(record[:-1] + bytes([record[-1] ^ 1]))
        else:
            client.sendall(framed(API_VERSIONS))
        assert is_closed(client)


def test_renegotiation_is_refused(secured: ReferenceCluster | KafkaCluster) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    address = secured.secured.servers(TLS)
    process = subprocess.Popen(
        [openssl, "s_client", "-connect", address, "-tls1_2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # `R` renegotiates when the handshake is complete.
        while b"Verify return code" not in process.stdout.readline():
            pass
        process.stdin.write(b"R\n")
        process.stdin.flush()
        output = process.stdout.read()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    # Kafka closes the connection; OpenSSL sends an alert, and the client closes it.
    assert b"RENEGOTIATING" in output


# SASL ------------------------------------------------------------------------------------------


def test_a_request_without_a_login(secured: ReferenceCluster | KafkaCluster) -> None:
    with opened(secured, SASL) as connection:
        assert connection.call("api_versions", 0).error_code is ErrorCode.none
        with pytest.raises(ConnectionClosedByBrokerError):
            connection.call("metadata", 9, topics=[])


def test_an_unknown_mechanism(secured: ReferenceCluster | KafkaCluster) -> None:
    with opened(secured, EXPIRING) as connection:
        response = connection.call("sasl_handshake", 1, mechanism="GSSAPI")
        assert response.error_code is ErrorCode.unsupported_sasl_mechanism
        assert response.mechanisms == ("PLAIN",)
        assert connection.closed_by_broker()


def test_a_wrong_password(secured: ReferenceCluster | KafkaCluster) -> None:
    with opened(secured, SASL) as connection:
        error_code, message = log_in(connection, b"\0alice\0wrong")
        assert error_code is ErrorCode.sasl_authentication_failed
        assert message == "Authentication failed: Invalid username or password"
        assert connection.closed_by_broker()


@pytest.mark.parametrize("length", [RECEIVE_BYTES_MAX + 1, 2**31 - 1, -1])
@pytest.mark.parametrize("after_the_handshake", [False, True])
def test_an_oversized_frame(
    secured: ReferenceCluster | KafkaCluster, length: int, after_the_handshake: bool
) -> None:
    with opened(secured, SASL) as connection:
        if after_the_handshake:
            connection.call("sasl_handshake", 1, mechanism="PLAIN")
        connection.send_bytes(struct.pack(">i", length))
        assert connection.closed_by_broker()


def test_another_principal_cannot_continue_a_session(
    secured: ReferenceCluster | KafkaCluster,
) -> None:
    with opened(secured, EXPIRING) as connection:
        assert log_in(connection, ALICE) == (ErrorCode.none, "")
        assert connection.call("metadata", 9, topics=[]).brokers
        error_code, message = log_in(connection, BOB)
        assert error_code is ErrorCode.sasl_authentication_failed
        assert message is not None
        assert "User.alice: User.bob" in message
        assert connection.closed_by_broker()


# Connections that never complete ---------------------------------------------------------------


@pytest.mark.slow
def test_a_login_that_never_ends(secured: ReferenceCluster | KafkaCluster) -> None:
    """It is closed after connections.max.idle.ms."""
    never = [
        (TLS, b""),
        (TLS, b"\x16\x03\x01\x02\x00\x01"),
        (SASL, b""),
        (SASL, b"\0"),
        (SASL, struct.pack(">i", 1000) + b"part"),
    ]
    with ExitStack() as stack:
        start = time.monotonic()
        clients = [stack.enter_context(connect(secured, listener)) for listener, _ in never]
        for client, (_, sent) in zip(clients, never, strict=True):
            client.sendall(sent)
        for client in clients:
            assert is_closed(client)
            assert time.monotonic() - start > IDLE_MS / 1000 / 2
