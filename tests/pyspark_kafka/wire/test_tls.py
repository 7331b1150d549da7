"""Tests of the TLS transport against Python's own TLS server in a thread."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from integration.clusters.security import Certificates
from pyspark_kafka.wire.tls import (
    ClientCertificate,
    TlsConnect,
    TlsSettings,
    TlsSettingsError,
)
from pyspark_kafka.wire.transport import Address, Transport, TransportError, wait

LONG_S = 20.0
ServerScript = Callable[[ssl.SSLSocket], None]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("other"))


class Server:
    """Accepts connections one after the other, and runs `script` on each."""

    def __init__(self, script: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("localhost", self._listener.getsockname()[1])
        self._script = script
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError):
                self._script(accepted)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=10)


def server_context(certificate: Path, trusted: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if trusted is not None:
        context.load_verify_locations(trusted)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def tls_server(context: ssl.SSLContext, script: ServerScript) -> Server:
    def play(accepted: socket.socket) -> None:
        with context.wrap_socket(accepted, server_side=True) as encrypted:
            script(encrypted)

    return Server(play)


def until_closed(connection: ssl.SSLSocket) -> None:
    while connection.recv(65_536):
        pass


def echo(connection: ssl.SSLSocket) -> None:
    while data := connection.recv(65_536):
        connection.sendall(data)


def trusting(certificates: Certificates, **options: Any) -> TlsConnect:
    return TlsConnect(TlsSettings(ca_location=str(certificates.ca), **options))


def received(transport: Transport, count: int) -> bytes:
    data = bytearray()
    buffer = memoryview(bytearray(1 << 20))
    until = time.monotonic() + LONG_S
    while len(data) < count and time.monotonic() < until:
        got = transport.receive_into(buffer[: count - len(data)])
        if got is None:
            wait([transport], [], 1.0)
        else:
            data += buffer[:got]
    return bytes(data)


@contextlib.contextmanager
def connected(connect: TlsConnect, server: Server) -> Iterator[Transport]:
    transport = connect(server.address, LONG_S)
    try:
        yield transport
    finally:
        transport.close()


@pytest.fixture(scope="module")
def localhost(certificates: Certificates) -> Path:
    return certificates.issue("localhost", "localhost", "127.0.0.1")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_arrive_in_both_directions(
    version: ssl.TLSVersion, certificates: Certificates, localhost: Path
) -> None:
    context = server_context(localhost)
    context.minimum_version = context.maximum_version = version
    parts = [bytes([n % 251]) * size for n, size in enumerate([1, 5, 100_000, 3, 70_000, 16_384])]
    with (
        tls_server(context, echo) as server,
        connected(trusting(certificates), server) as transport,
    ):
        left = memoryview(b"".join(parts))
        views = [memoryview(part) for part in parts]
        sent, data = 0, b""
        while sent < len(left):
            count = transport.send(views)
            sent += count
            while count:
                taken = min(count, len(views[0]))
                views[0] = views[0][taken:]
                count -= taken
                if not views[0]:
                    views.pop(0)
            data += received(transport, min(sent - len(data), 1))
        data += received(transport, len(left) - len(data))
        assert data == bytes(left)


def test_buffered_bytes_are_read_without_waiting(
    certificates: Certificates, localhost: Path
) -> None:
    def script(connection: ssl.SSLSocket) -> None:
        connection.sendall(b"x" * 16_000)
        until_closed(connection)

    with (
        tls_server(server_context(localhost), script) as server,
        connected(trusting(certificates), server) as transport,
    ):
        assert received(transport, 1) == b"x"
        buffer = memoryview(bytearray(100))
        for _ in range(159):
            assert transport.receive_into(buffer) == 100


def test_a_peer_that_does_not_read_does_not_block_send(
    certificates: Certificates, localhost: Path
) -> None:
    release = threading.Event()

    def script(connection: ssl.SSLSocket) -> None:
        release.wait(LONG_S)

    with (
        tls_server(server_context(localhost), script) as server,
        connected(trusting(certificates), server) as transport,
    ):
        data = [memoryview(bytes(100_000))]
        started = time.monotonic()
        # The kernel moves bytes to the buffers of the peer, so a later call can send more.
        while transport.send(data) or transport.send([*data, *data]):
            assert time.monotonic() - started < LONG_S
        release.set()


def test_sessions_are_resumed(certificates: Certificates, localhost: Path) -> None:
    reused: list[bool | None] = []

    def script(connection: ssl.SSLSocket) -> None:
        reused.append(connection.session_reused)
        connection.sendall(b"x")
        until_closed(connection)

    connect = trusting(certificates)
    with tls_server(server_context(localhost), script) as server:
        for _ in range(3):
            with connected(connect, server) as transport:
                received(transport, 1)
    assert reused == [False, True, True]


def test_the_name_is_sent_to_the_server(certificates: Certificates, localhost: Path) -> None:
    names: list[str | None] = []
    context = server_context(localhost)
    context.sni_callback = lambda _, name, __: names.append(name)
    connect = trusting(certificates)
    with tls_server(context, until_closed) as server:
        connect(server.address, LONG_S).close()
        connect(Address("127.0.0.1", server.address.port), LONG_S).close()
    assert names == ["localhost", None]


# --- failures ---


def failure(connect: TlsConnect, server: Server, timeout_s: float = LONG_S) -> TransportError:
    """Return the error of the handshake or of the first read."""
    started = time.monotonic()

    def attempt() -> None:
        transport = connect(server.address, timeout_s)
        try:
            received(transport, 1)
        finally:
            transport.close()

    with pytest.raises(TransportError) as caught:
        attempt()
    assert time.monotonic() - started < timeout_s + 20
    return caught.value


def test_untrusted_issuer(certificates: Certificates, other: Certificates, localhost: Path) -> None:
    with tls_server(server_context(localhost), until_closed) as server:
        for connect in (trusting(other), TlsConnect(TlsSettings())):
            error = failure(connect, server)
            assert error.is_rejection
            assert error.option == "kafka.ssl.truststore.location"
            assert "not trusted: " in str(error)


def test_a_trusted_certificate_needs_no_issuer(localhost: Path) -> None:
    trusting_it = TlsConnect(TlsSettings(ca_location=str(localhost)))
    with (
        tls_server(server_context(localhost), echo) as server,
        connected(trusting_it, server) as transport,
    ):
        transport.send([memoryview(b"hello")])
        assert received(transport, 5) == b"hello"


def test_expired_certificate(certificates: Certificates) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = certificates.issue("expired", "localhost", not_after=yesterday)
    with tls_server(server_context(expired), until_closed) as server:
        error = failure(trusting(certificates), server)
    assert error.is_rejection
    assert "certificate has expired" in str(error)
    assert "Renew" in (error.advice or "")


def test_wrong_host_name(certificates: Certificates) -> None:
    elsewhere = certificates.issue("elsewhere", "b1.example", "b2.example")
    with tls_server(server_context(elsewhere), until_closed) as server:
        error = failure(trusting(certificates), server)
        assert error.is_rejection
        assert "valid for b1.example, b2.example, but not for 'localhost'" in str(error)
        assert error.option == "kafka.ssl.endpoint.identification.algorithm"
        with connected(trusting(certificates, verifies_host_name=False), server):
            pass


def test_verification_can_be_disabled(other: Certificates, localhost: Path) -> None:
    with (
        tls_server(server_context(localhost), until_closed) as server,
        connected(trusting(other, verifies_certificate=False), server),
    ):
        pass


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificate(
    version: ssl.TLSVersion, certificates: Certificates, other: Certificates, localhost: Path
) -> None:
    context = server_context(localhost, certificates.ca)
    context.maximum_version = version
    own, foreign = (
        ClientCertificate(chain=pem, key=pem)
        for authority in (certificates, other)
        if (pem := authority.issue("client", "client.example").read_text())
    )
    with tls_server(context, echo) as server:
        error = failure(trusting(certificates), server)
        assert error.is_rejection
        assert "requires a client certificate" in str(error)
        error = failure(trusting(certificates, client_certificate=foreign), server)
        assert error.is_rejection
        assert "rejected this client's certificate" in str(error)
        assert error.option == "kafka.ssl.keystore.location"
        with connected(trusting(certificates, client_certificate=own), server) as transport:
            transport.send([memoryview(b"x")])
            assert received(transport, 1) == b"x"


def test_old_protocol(certificates: Certificates, localhost: Path) -> None:
    context = server_context(localhost)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with tls_server(context, until_closed) as server:
        error = failure(trusting(certificates), server)
    assert error.is_rejection
    assert "no TLS version or cipher suite in common" in str(error)


def hang(accepted: socket.socket) -> None:
    while accepted.recv(65_536):
        pass


def drip(accepted: socket.socket) -> None:
    """Send a handshake record one byte at a time."""
    for byte in b"\x16\x03\x03\x40\x00" + bytes(1000):
        accepted.sendall(bytes([byte]))
        time.sleep(0.05)


@pytest.mark.parametrize("script", [hang, drip])
def test_endless_handshake(
    script: Callable[[socket.socket], None], certificates: Certificates
) -> None:
    with Server(script) as server:
        error = failure(trusting(certificates), server, timeout_s=0.5)
    assert "did not complete within 0.5 s" in str(error)
    assert error.option == "kafka.security.protocol"
    assert not error.is_rejection, "the broker may be slow"


@pytest.mark.parametrize(
    ("answer", "expected", "is_rejection"),
    [
        pytest.param(b"", "closed the connection during the TLS", False, id="closed"),
        pytest.param(b"\x16\x03\x03\x40\x00abc", "closed the connection", False, id="truncated"),
        pytest.param(b"\x00\x00\x00\x2a\x00\x00", "does not speak TLS", True, id="Kafka's frame"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n", "does not speak TLS", True, id="HTTP"),
    ],
)
def test_peer_without_tls(
    answer: bytes, expected: str, is_rejection: bool, certificates: Certificates
) -> None:
    def script(accepted: socket.socket) -> None:
        accepted.recv(65_536)
        accepted.sendall(answer)

    with Server(script) as server:
        error = failure(trusting(certificates), server)
    assert expected in str(error)
    assert error.is_rejection == is_rejection
    assert error.option == "kafka.security.protocol"
    assert "'PLAINTEXT'" in (error.advice or "")


def test_truncated_record_after_the_handshake(certificates: Certificates, localhost: Path) -> None:
    def script(connection: ssl.SSLSocket) -> None:
        raw = socket.socket(fileno=connection.detach())
        with raw:
            raw.sendall(b"\x17\x03\x03\x40\x00abc")

    with tls_server(server_context(localhost), script) as server:
        error = failure(trusting(certificates), server)
    assert not error.is_rejection


def test_nobody_listens(certificates: Certificates) -> None:
    with Server(hang) as server:
        pass
    with pytest.raises(TransportError, match="refused"):
        trusting(certificates)(server.address, LONG_S)


# --- settings ---


def encrypted(certificates: Certificates) -> ClientCertificate:
    pem = certificates.issue("encrypted", "client.example")
    key = certificates.encrypted_key(pem, "open sesame")
    return ClientCertificate(chain=pem.read_text(), key=key.read_text(), passphrase="open sesame")


def test_settings_that_work(certificates: Certificates, tmp_path: Path) -> None:
    TlsConnect(TlsSettings(ca_pem="# Zürich\n" + certificates.ca.read_text()))
    TlsConnect(TlsSettings(ca_location=str(tmp_path)))  # a directory, as of `c_rehash`
    TlsConnect(TlsSettings(client_certificate=encrypted(certificates)))


@pytest.mark.parametrize(
    ("passphrase", "expected"), [("wrong", "passphrase .* is wrong"), (None, "no passphrase")]
)
def test_wrong_passphrase(
    passphrase: str | None, expected: str, certificates: Certificates
) -> None:
    good = encrypted(certificates)
    bad = ClientCertificate(chain=good.chain, key=good.key, passphrase=passphrase)
    with pytest.raises(TlsSettingsError, match=expected) as caught:
        TlsConnect(TlsSettings(client_certificate=bad))
    assert caught.value.part == "passphrase"
    assert "sesame" not in repr(TlsSettings(client_certificate=good))
    assert "PRIVATE" not in repr(TlsSettings(client_certificate=good))


def test_settings_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    one, two = (certificates.issue(name, "client.example").read_text() for name in ("a", "b"))
    (tmp_path / "empty.pem").write_text("")
    cases = [
        (TlsSettings(ca_location="/nowhere.pem"), "authorities", "No such file"),
        (TlsSettings(ca_location=str(tmp_path / "empty.pem")), "authorities", "PEM"),
        (TlsSettings(ca_pem="no certificate"), "authorities", "PEM"),
        (TlsSettings(ca_pem="ä"), "authorities", "mpty"),
        (TlsSettings(client_certificate=ClientCertificate(chain=one, key=two)), "key", "match"),
        (
            TlsSettings(client_certificate=ClientCertificate(chain="", key=two)),
            "certificate",
            "PEM",
        ),
        (TlsSettings(client_certificate=ClientCertificate(chain=one, key="")), "key", "PEM"),
    ]
    for settings, part, reason in cases:
        with pytest.raises(TlsSettingsError, match=reason) as caught:
            TlsConnect(settings)
        assert caught.value.part == part, settings
