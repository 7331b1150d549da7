"""Tests of the native engine's TLS and SASL settings, without a cluster.

They check the conversion of Java's and librdkafka's names, errors on the driver, and tokens.
"""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from integration.clusters.security import Certificates
from pyspark_kafka.client.factory import check_settings, choose_engine, open_client
from pyspark_kafka.client.jaas import TOKEN_PROVIDER
from pyspark_kafka.client.java_names import JAVA_SETTINGS
from pyspark_kafka.client.native import supported_properties
from pyspark_kafka.client.native.client import NativeClient, NativeReadClient
from pyspark_kafka.client.native.oauth import cached, oidc
from pyspark_kafka.client.native.oauth.cached import CachedTokens
from pyspark_kafka.client.native.oauth.oidc import OidcTokens
from pyspark_kafka.client.native.oauth.unsecured import UnsecuredTokens
from pyspark_kafka.client.native.security import Security
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.supported_properties import KNOWN
from pyspark_kafka.errors import AuthenticationError, OptionError
from pyspark_kafka.wire.sasl import OAuthBearerCredentials, PlainCredentials, ScramCredentials
from pyspark_kafka.wire.tls import TlsSettings
from tests.pyspark_kafka.client.records import options

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def no_tokens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "_tokens", {})


def secured(**kafka: Any) -> Security:
    found = NativeSettings.of(options(NOWHERE, **kafka)).security
    assert found is not None
    return found


def jaas(module: str, **pairs: str) -> str:
    given = " ".join(f'{name}="{value}"' for name, value in pairs.items())
    return f"org.apache.kafka.common.security.{module} required {given};"


# --- conversion ---


@pytest.mark.parametrize("protocol", [{}, {"security_protocol": "PLAINTEXT"}])
def test_plaintext_has_no_security(protocol: dict[str, Any]) -> None:
    assert NativeSettings.of(options(NOWHERE, **protocol)).security is None


def test_unsecured_clients_do_not_load_tls() -> None:
    script = """
import sys
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.options.values import ClientOptions
kafka = {"bootstrap.servers": "127.0.0.1:1"}
NativeSettings.of(ClientOptions(bootstrap_servers="127.0.0.1:1", kafka=kafka, group_id="g"))
print(*sys.modules.keys() & {"pyspark_kafka.wire.tls", "pyspark_kafka.wire.sasl", "scramp"})
"""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []


def test_tls_from_librdkafka_names(certificates: Certificates) -> None:
    pem = certificates.issue("client", "client.example")
    found = secured(
        security_protocol="ssl",
        ssl_ca_location=str(certificates.ca),
        ssl_certificate_location=str(pem),
        ssl_key_location=str(pem),
        enable_ssl_certificate_verification="false",
    )
    assert found.credentials is None
    assert found.tls is not None
    assert not found.tls.verifies_certificate
    assert found.tls.client_certificate is not None


@pytest.mark.parametrize("separator", ["\n", " ", "\r\n  "])
def test_tls_from_java_names(certificates: Certificates, separator: str) -> None:
    pem = separator.join(certificates.issue("client", "client.example").read_text().splitlines())
    found = secured(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_jaas_config=jaas("scram.ScramLoginModule", username="alice", password="hush"),
        ssl_endpoint_identification_algorithm="",
        ssl_truststore_certificates=separator.join(certificates.ca.read_text().splitlines()),
        ssl_keystore_certificate_chain=pem,
        ssl_keystore_key=pem,
    )
    assert found.tls is not None
    assert (found.tls.verifies_certificate, found.tls.verifies_host_name) == (True, False)
    expected = ScramCredentials(mechanism="SCRAM-SHA-512", username="alice", password="hush")
    assert found.credentials == expected
    assert "hush" not in repr(found)
    assert "PRIVATE" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_authorities_of_the_system_are_the_default() -> None:
    assert secured(security_protocol="SSL").tls == TlsSettings()
    assert secured(security_protocol="SSL", ssl_ca_location="probe").tls == TlsSettings()


def test_pkcs12_store(certificates: Certificates) -> None:
    store = certificates.pkcs12(certificates.issue("stored", "client.example"), "hush")
    kafka = {"security_protocol": "SSL", "ssl_keystore_location": str(store)}
    found = secured(**kafka, ssl_keystore_type="PKCS12", ssl_keystore_password="hush")
    assert found.tls is not None
    assert found.tls.client_certificate is not None
    assert "BEGIN CERTIFICATE" in found.tls.client_certificate.chain
    with pytest.raises(OptionError, match="password") as caught:
        secured(**kafka, ssl_keystore_password="wrong")
    assert caught.value.option == "kafka.ssl.keystore.password"


def test_pkcs12_store_without_the_package(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = certificates.pkcs12(certificates.issue("stored", "client.example"), "hush")
    monkeypatch.setattr(supported_properties, "find_spec", lambda _: None)
    wanted = options(NOWHERE, security_protocol="SSL", ssl_keystore_location=str(store))
    assert choose_engine(wanted, "consumer") == "librdkafka"
    with pytest.raises(OptionError, match=r"pip install 'pyspark-kafka\[pkcs12\]'"):
        choose_engine(replace(wanted, engine="native"), "consumer")


def test_password_that_scram_would_change() -> None:
    wanted = options(NOWHERE, **SCRAM, sasl_username="alice", sasl_password="hush½")
    assert choose_engine(wanted, "consumer") == "librdkafka"
    with pytest.raises(OptionError, match=r"password .*\(RFC 4013\)") as caught:
        choose_engine(replace(wanted, engine="native"), "consumer")
    assert "hush" not in str(caught.value)


def test_plain() -> None:
    found = secured(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="plain",
        sasl_username="alice",
        sasl_password="hush",
    )
    assert found.tls is None
    assert found.credentials == PlainCredentials(username="alice", password="hush")


# --- errors on the driver ---

SCRAM: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256"}
OAUTH: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
ENDPOINT = {"sasl_oauthbearer_token_endpoint_url": "https://localhost/token"}


@pytest.mark.parametrize(
    ("kafka", "option", "expected"),
    [
        (
            {"security_protocol": "SSL", "ssl_truststore_location": "/no.pem"},
            "ssl.truststore.location",
            "No such file",
        ),
        (
            {"security_protocol": "SSL", "ssl_ca_location": "/no.pem"},
            "ssl.ca.location",
            "No such file",
        ),
        (
            {"security_protocol": "SSL", "ssl_truststore_certificates": "hush"},
            "ssl.truststore.certificates",
            "PEM",
        ),
        (
            {"security_protocol": "SSL", "ssl_keystore_location": "/no.pem"},
            "ssl.keystore.location",
            "No such file",
        ),
        (
            {"security_protocol": "SSL", "ssl_keystore_key": "hush"},
            "ssl.keystore.key",
            "no certificate is set",
        ),
        ({**SCRAM, "sasl_mechanism": "SCRAM-SHA-1"}, "sasl.mechanism", "'SCRAM-SHA-1'"),
        (SCRAM, "sasl.jaas.config", "not set"),
        ({**SCRAM, "sasl_username": "alice"}, "sasl.jaas.config", "not set"),
        (
            {**SCRAM, "sasl_jaas_config": "ScramLoginModule required username=a password='';"},
            "sasl.jaas.config",
            "'sasl.password'.*empty",
        ),
        (OAUTH, "sasl.oauthbearer.token.endpoint.url", "token source"),
        ({**OAUTH, **ENDPOINT}, "sasl.oauthbearer.client.credentials.client.id", "not set"),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "ftp://hush"},
            "sasl.oauthbearer.token.endpoint.url",
            "https:",
        ),
        *(
            (
                {**OAUTH, "sasl_oauthbearer_token_endpoint_url": url},
                "sasl.oauthbearer.token.endpoint.url",
                "https:",
            )
            for url in ("http://idp.example/hush", "http://127.example/hush", "http://[hush")
        ),
        (
            {
                **OAUTH,
                "enable_sasl_oauthbearer_unsecure_jwt": "true",
                "sasl_oauthbearer_config": "hush",
            },
            "sasl.oauthbearer.config",
            "principal=NAME",
        ),
        (
            {
                **OAUTH,
                **ENDPOINT,
                "sasl_oauthbearer_client_id": "me",
                "sasl_oauthbearer_client_secret": "hush",
                "sasl_oauthbearer_extensions": "auth=1",
            },
            "sasl.oauthbearer.extensions",
            "auth",
        ),
        (
            {
                **OAUTH,
                **ENDPOINT,
                "sasl_oauthbearer_client_id": "me",
                "sasl_oauthbearer_client_secret": "hush",
                "https_ca_location": "/no.pem",
            },
            "https.ca.location",
            "No such file",
        ),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "native"])
def test_invalid_settings(kafka: dict[str, Any], option: str, expected: str, engine: Any) -> None:
    with pytest.raises(OptionError, match=expected) as caught:
        check_settings(options(NOWHERE, engine=engine, **kafka), role="consumer")
    assert caught.value.option == f"kafka.{option}"
    assert "hush" not in str(caught.value)


def test_key_of_another_certificate(certificates: Certificates) -> None:
    one, two = (certificates.issue(name, "client.example") for name in ("one", "two"))
    with pytest.raises(OptionError) as caught:
        secured(
            security_protocol="SSL",
            ssl_certificate_location=str(one),
            ssl_key_location=str(two),
        )
    assert caught.value.option == "kafka.ssl.key.location"


def test_wrong_passphrase(certificates: Certificates) -> None:
    pem = certificates.issue("client", "client.example")
    kafka: dict[str, Any] = {
        "security_protocol": "SSL",
        "ssl_certificate_location": str(pem),
        "ssl_key_location": str(certificates.encrypted_key(pem, "hush")),
    }
    secured(**kafka, ssl_key_password="hush")
    for password in ({}, {"ssl_key_password": "wrong"}):
        with pytest.raises(OptionError, match="passphrase") as caught:
            secured(**kafka, **password)
        assert caught.value.option == "kafka.ssl.key.password"


@pytest.mark.parametrize("role", ["consumer", "producer"])
def test_auto_opens_a_secured_native_client(role: Any) -> None:
    kafka: dict[str, Any] = {
        **SCRAM,
        "sasl_username": "alice",
        "sasl_password": "hush",
        "client_id": "me",
    }
    with open_client(options(NOWHERE, **kafka), role=role) as client:
        assert isinstance(client, NativeClient if role == "producer" else NativeReadClient)
        assert "hush" not in repr(client)


# --- tokens ---


def claims_of(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    return claims


def test_unsecured_token() -> None:
    tokens = UnsecuredTokens.parse(
        "principal=alice scope=a,b lifeSeconds=60 extension_traceId=7", "kafka.x"
    )
    claims = claims_of(tokens().value)
    assert (claims["sub"], claims["scope"]) == ("alice", ["a", "b"])
    assert claims["exp"] - claims["iat"] == 60
    assert tokens().extensions == {"traceId": "7"}


def test_java_names_of_an_unsecured_token() -> None:
    config = jaas("oauthbearer.OAuthBearerLoginModule", unsecuredLoginStringClaim_sub="alice")
    found = secured(**OAUTH, sasl_jaas_config=config).credentials
    assert isinstance(found, OAuthBearerCredentials)
    assert claims_of(found.source.token().value)["sub"] == "alice"


def jwt(life_s: float, name: str = "alice") -> str:
    claims = json.dumps({"sub": name, "exp": time.time() + life_s}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.sig"


Answer = Callable[[BaseHTTPRequestHandler], None]


def answering(status: int, document: object, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(json.dumps(document).encode())

    return answer


def token_of(life_s: float, name: str = "alice") -> Answer:
    return answering(200, {"access_token": jwt(life_s, name)})


class Endpoint:
    """A token endpoint. The last answer is repeated."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str]] = []
        self.url = ""


@contextmanager
def endpoint(*answers: Answer, context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    state = Endpoint(*answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            state.requests.append((self.headers["Authorization"], body))
            answer = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    scheme = "http" if context is None else "https"
    state.url = f"{scheme}://localhost:{server.server_port}/token"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def tokens_of(at: Endpoint, **more: Any) -> CachedTokens:
    request = OidcTokens(url=at.url, client_id="me", secret="hush", **more)
    return CachedTokens(request=request, option=request.option, name="me")


def test_token_from_an_endpoint() -> None:
    with endpoint(token_of(100)) as at:
        tokens = tokens_of(at, scope="a b")
        assert claims_of(tokens.token().value)["sub"] == "alice"
        assert tokens.token() == tokens_of(at, scope="a b").token(), (
            "the token is cached in the process"
        )
    authorization, body = at.requests[0]
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"me:hush"
    assert body == "grant_type=client_credentials&scope=a+b"
    assert len(at.requests) == 1
    assert "hush" not in repr(tokens)


def test_token_is_refreshed_after_most_of_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.time()
    passed = [0.0]
    monkeypatch.setattr(time, "time", lambda: start + passed[0])
    with endpoint(token_of(100, "first"), token_of(100, "second"), answering(401, {})) as at:
        tokens = tokens_of(at)
        names = []
        for passed[0] in (0, 79, 81):
            names.append(claims_of(tokens.token().value)["sub"])
        assert names == ["first", "first", "second"]
        passed[0] = 99
        assert claims_of(tokens.token().value)["sub"] == "second", "it is still valid"
        passed[0] = 200
        with pytest.raises(AuthenticationError, match="HTTP 401"):
            tokens.token()


def test_opaque_token() -> None:
    with endpoint(answering(200, {"access_token": "opaque", "expires_in": 50})) as at:
        tokens = tokens_of(at)
        assert [tokens.token().value, tokens.token().value] == ["opaque", "opaque"]
    assert len(at.requests) == 1


def test_an_endpoint_that_is_down_for_a_moment() -> None:
    with endpoint(answering(503, {}), token_of(100)) as at:
        assert claims_of(tokens_of(at).token().value)["sub"] == "alice"
    assert len(at.requests) == 2


def silent(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)


def dripping(handler: BaseHTTPRequestHandler) -> None:
    for _ in range(10):
        handler.wfile.write(b"H")
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (answering(401, {"error": "invalid_client"}), "HTTP 401"),
        (answering(500, {}), "HTTP 500"),
        (answering(302, {}, Location="http://127.0.0.1:1/elsewhere"), "HTTP 302"),
        (answering(200, {"error": "hush"}), "no 'access_token'"),
        (answering(200, ["hush"]), "no 'access_token'"),
        (answering(200, {"access_token": 1}), "not a string"),
        (silent, "no response within"),
        (dripping, "no response within"),
    ],
)
def test_failing_endpoint(answer: Answer, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if answer in (silent, dripping):
        monkeypatch.setattr(oidc, "_TIMEOUT_S", 1.0)
        monkeypatch.setattr(oidc, "_ATTEMPT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(oidc, "_BACKOFFS_S", (0.01,))
    started = time.monotonic()
    with (
        endpoint(answer) as at,
        pytest.raises(AuthenticationError, match=expected) as caught,
    ):
        tokens_of(at).token()
    assert time.monotonic() - started < 60
    assert caught.value.option == "kafka.sasl.oauthbearer.token.endpoint.url"
    assert at.url in str(caught.value)
    assert "hush" not in str(caught.value)


def test_endpoint_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "_BACKOFFS_S", (0.01,))
    with endpoint(silent) as at:
        pass
    with pytest.raises(AuthenticationError, match="refused"):
        tokens_of(at).token()


def test_https_endpoint_is_verified(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.issue("endpoint", "localhost"))
    with endpoint(token_of(100), context=context) as at:
        kafka = {
            **OAUTH,
            "sasl_oauthbearer_token_endpoint_url": at.url,
            "sasl_jaas_config": jaas(
                "oauthbearer.OAuthBearerLoginModule", clientId="me", clientSecret="hush"
            ),
        }
        authorities = str(certificates.ca)
        found = secured(**kafka, https_ca_location=authorities).credentials
        assert isinstance(found, OAuthBearerCredentials)
        assert claims_of(found.source.token().value)["sub"] == "alice"
        monkeypatch.setattr(oidc, "_BACKOFFS_S", (30.0,))  # a retry would not end in time
        untrusting = secured(**kafka, ssl_ca_location=authorities).credentials
        assert isinstance(untrusting, OAuthBearerCredentials)
        with pytest.raises(AuthenticationError) as caught:
            untrusting.source.token()
        assert caught.value.option == "kafka.https.ca.location"
        assert at.url in str(caught.value)
        monkeypatch.setenv("SSL_CERT_FILE", authorities)  # the authorities of the system
        assert claims_of(untrusting.source.token().value)["sub"] == "alice"


def test_every_accepted_setting_is_known() -> None:
    assert {*JAVA_SETTINGS} - {TOKEN_PROVIDER} <= KNOWN.keys()
