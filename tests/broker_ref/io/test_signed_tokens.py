"""Tests of clients that log in with signed tokens, and of the endpoint with the keys."""

from __future__ import annotations

import asyncio
import http.server
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from broker_ref import Cluster
from broker_ref.io import jwks
from broker_ref.io.settings import BrokerStartError
from broker_ref.security.settings import TokenSettings
from integration.raw import RawConnection
from tests.broker_ref.io.certificates import authority_pem, broker_certificate, write
from tests.broker_ref.security.tokens import SigningKey, key_set, signing_key

TIMEOUT_SECONDS = 60.0
PREFIX = "listener.name.sasl_plaintext.oauthbearer"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KEY = signing_key()


class Endpoint:
    """An HTTP server with a key set. `content` and `status` can be changed at any time."""

    def __init__(self, server: http.server.ThreadingHTTPServer, scheme: str) -> None:
        self.url = f"{scheme}://127.0.0.1:{server.server_port}/keys"
        self.content = key_set(KEY.jwk())
        self.status = 200
        self.requests = 0
        self.released = threading.Event()
        self.released.set()


@contextmanager
def endpoint(*, tls: bool = False) -> Iterator[Endpoint]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.requests += 1
            served.released.wait(TIMEOUT_SECONDS)
            self.send_response(served.status)
            self.send_header("Content-Length", str(len(served.content)))
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(served.content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            broker_certificate().configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        served = Endpoint(server, "https" if tls else "http")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            served.released.set()
            server.shutdown()
            thread.join()


def configs(url: str, *, options: str = "", **others: str) -> dict[str, str]:
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}.sasl.jaas.config": f"{MODULE} required {options};",
        f"{PREFIX}.sasl.server.callback.handler.class": HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.audience": "kafka",
        "connection.failed.authentication.delay.ms": "0",
        **others,
    }


def token(key: SigningKey = KEY, **changes: object) -> str:
    now = int(time.time())
    return key.token({"sub": "alice", "aud": "kafka", "iat": now, "exp": now + 60, **changes})


def log_in(cluster: Cluster, text: str) -> tuple[str, str | None]:
    """Return the error code and message of a login, after the client has confirmed an error."""
    with RawConnection(cluster.address(1, 1), timeout_s=TIMEOUT_SECONDS) as connection:
        connection.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
        data = f"n,,\x01auth=Bearer {text}\x01\x01".encode()
        response = connection.call("sasl_authenticate", 2, auth_bytes=data)
        if response.auth_bytes:
            assert response.auth_bytes == b'{"status":"invalid_token"}'
            response = connection.call("sasl_authenticate", 2, auth_bytes=b"\x01")
            assert connection.closed_by_broker()
        else:
            assert 0 < response.session_lifetime.total_seconds() <= 60
        return response.error_code.name, response.error_message


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tokens_are_validated_and_keys_are_rotated() -> None:
    rejected = ("sasl_authentication_failed", '{"status":"invalid_token"}')
    with endpoint() as keys, Cluster(configs=configs(keys.url)) as cluster:
        cluster.create_topic("t")
        delivered: list[object] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.address(1, 1),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _: (token(), time.time() + 60),
                "log_level": 0,
            }
        )
        producer.produce("t", b"v", on_delivery=lambda e, _: delivered.append(e and str(e)))
        producer.flush(TIMEOUT_SECONDS)
        assert delivered == [None]
        assert log_in(cluster, token(exp=int(time.time()) - 40)) == rejected
        assert log_in(cluster, token(aud="other")) == rejected
        assert keys.requests == 1
        # The endpoint hangs and then fails once. The broker continues to serve clients.
        new = signing_key(key_id="k2")
        keys.released.clear()
        keys.status = 500
        assert log_in(cluster, token(new)) == rejected
        wait_until(lambda: keys.requests == 2)
        assert log_in(cluster, token()) == ("none", "")
        assert log_in(cluster, token(new)) == rejected
        keys.released.set()
        wait_until(lambda: keys.requests > 2)
        keys.content, keys.status = key_set(new.jwk()), 200
        wait_until(lambda: log_in(cluster, token(new))[0] == "none")
        assert log_in(cluster, token()) == rejected


def test_keys_over_https_and_from_a_file(tmp_path: Path) -> None:
    ca = write(tmp_path, "ca.pem", authority_pem())
    file = tmp_path / "keys with spaces.json"
    file.write_bytes(key_set(KEY.jwk()))
    with Cluster(configs=configs(file.as_uri())) as cluster:
        assert log_in(cluster, token())[0] == "none"
    with endpoint(tls=True) as keys:
        trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{ca}"'
        with Cluster(configs=configs(keys.url, options=trust)) as cluster:
            assert log_in(cluster, token())[0] == "none"
        with pytest.raises(BrokerStartError, match="jwks"):  # noqa: SIM117
            with Cluster(configs=configs(keys.url)):
                pass


def test_a_slow_response_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte from time to time is also slow."""
    released = threading.Event()

    def content(*_: object) -> bytes:
        released.wait(TIMEOUT_SECONDS)
        return b""

    monkeypatch.setattr(jwks, "_content", content)
    monkeypatch.setattr(jwks, "REQUEST_TIMEOUT_SECONDS", 0.01)
    refresher = jwks.JwksRefresher(TokenSettings(jwks_url="https://keys.test"))

    async def start() -> None:
        with pytest.raises(jwks.JwksError):
            await refresher.start()

    try:
        asyncio.run(start())
    finally:
        released.set()


def test_a_broker_without_keys_does_not_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"keys": []}')
    with endpoint() as keys:
        keys.status = 302  # To another scheme or a closed port.
        invalid = ("ftp://keys.test", "http://[", "http://\u2100.test", "")
        for url in (keys.url, empty.as_uri(), (tmp_path / "none").as_uri(), *invalid):
            with pytest.raises(BrokerStartError, match=r"jwks\.endpoint\.url"):
                Cluster(configs=configs(url)).start()
    other: dict[str, Any] = {f"{PREFIX}.sasl.server.callback.handler.class": "com.example.Mine"}
    with pytest.raises(BrokerStartError, match=r"com\.example\.Mine"):
        Cluster(configs=configs(empty.as_uri(), **other)).start()
    other = {
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    }
    with pytest.raises(BrokerStartError, match=r"sasl\.mechanism\.inter\.broker\.protocol"):
        Cluster(configs=configs(empty.as_uri(), **other)).start()
