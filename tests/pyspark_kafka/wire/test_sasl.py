"""Tests of SASL: the mechanisms with the vectors of their RFCs, the exchange and new sessions."""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pyspark_kafka.errors import AuthenticationError, BrokerUnreachableError
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.connection import Connection, wait_any
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.sasl import (
    OAuthBearerCredentials,
    OAuthBearerSaslClient,
    PlainCredentials,
    SaslCredentials,
    SaslError,
    ScramCredentials,
    ScramSaslClient,
    check_extensions,
    is_kept_by_saslprep,
)
from pyspark_kafka.wire.transport import Address
from tests.pyspark_kafka.wire.scripted import (
    ALL_VERSIONS,
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
)
from tests.pyspark_kafka.wire.test_connection import metadata, soon

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
"""The messages of RFC 7677, section 3: user `user`, password `pencil`."""
PLAIN = PlainCredentials(username="alice", password="hush")
SASL_VERSIONS = {**ALL_VERSIONS, 17: (0, 1), 36: (0, 2)}


# --- mechanisms ---


def test_plain() -> None:
    client = PLAIN.begin()
    assert client.evaluate_challenge(b"") == b"\0alice\0hush"
    assert client.evaluate_challenge(b"") is None


def after_first(mechanism: str = "SCRAM-SHA-256") -> ScramSaslClient:
    client = ScramSaslClient(mechanism, "user", "pencil", NONCE)
    assert client.evaluate_challenge(b"") == f"n,,n=user,r={NONCE}".encode()
    return client


def test_scram_sha_256_as_in_rfc_7677() -> None:
    client = after_first()
    final = client.evaluate_challenge(SERVER_FIRST.encode())
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert final == f"c=biws,r={SERVER_NONCE},p={proof}".encode()
    assert client.evaluate_challenge(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


def test_scram_sha_512_as_rfc_5802_defines_it() -> None:
    def keyed(key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, "sha512")

    salted = hashlib.pbkdf2_hmac(
        "sha512", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096
    )
    bare = f"c=biws,r={SERVER_NONCE}"
    message = f"n=user,r={NONCE},{SERVER_FIRST},{bare}".encode()
    client_key = keyed(salted, b"Client Key")
    signature = keyed(hashlib.sha512(client_key).digest(), message)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verifier = keyed(keyed(salted, b"Server Key"), message)

    client = after_first("SCRAM-SHA-512")
    expected = f"{bare},p={base64.b64encode(proof).decode()}"
    assert client.evaluate_challenge(SERVER_FIRST.encode()) == expected.encode()
    assert client.evaluate_challenge(b"v=" + base64.b64encode(verifier)) is None


@pytest.mark.parametrize(
    "final",
    [
        pytest.param(b"v=" + base64.b64encode(bytes(32)), id="wrong signature"),
        pytest.param(b"", id="no signature"),
        pytest.param(b"e=invalid-proof", id="error"),
        pytest.param(b"\xff", id="not UTF-8"),
    ],
)
def test_a_broker_without_the_password_is_rejected(final: bytes) -> None:
    client = after_first()
    client.evaluate_challenge(SERVER_FIRST.encode())
    with pytest.raises(SaslError):
        client.evaluate_challenge(final)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(SERVER_FIRST.replace(NONCE, "x" * len(NONCE)), id="another nonce"),
        pytest.param(SERVER_FIRST.replace("4096", "1"), id="too few iterations"),
        pytest.param(SERVER_FIRST.replace("4096", "99999999999"), id="too many iterations"),
        pytest.param("", id="empty"),
        pytest.param("r=1,s=!,i=4096", id="malformed"),
    ],
)
def test_an_invalid_first_message_is_rejected(first: str) -> None:
    with pytest.raises(SaslError):
        after_first().evaluate_challenge(first.encode())


def test_names_are_escaped() -> None:
    client = ScramSaslClient("SCRAM-SHA-256", "a,b=c", "pencil", NONCE)
    assert client.evaluate_challenge(b"") == f"n,,n=a=2Cb=3Dc,r={NONCE}".encode()


def test_text_that_scram_would_change_is_found() -> None:
    assert is_kept_by_saslprep("pässword ,=")
    assert not any(map(is_kept_by_saslprep, ("½", "soft\u00adhyphen", "bell\a")))


def test_oauthbearer() -> None:
    client = OAuthBearerSaslClient("a.b.c", {"cluster": "lkc-1"})
    first = b"n,,\x01auth=Bearer a.b.c\x01cluster=lkc-1\x01\x01"
    assert client.evaluate_challenge(b"") == first
    assert client.evaluate_challenge(b"") is None


def test_oauthbearer_waits_for_the_error() -> None:
    rejections: list[str] = []
    client = OAuthBearerSaslClient("a.b.c", {}, lambda: rejections.append("a.b.c"))
    client.evaluate_challenge(b"")
    assert not rejections
    assert client.evaluate_challenge(b'{"status":"invalid_token"}') == b"\x01"
    assert rejections == ["a.b.c"]
    with pytest.raises(SaslError, match="characters"):
        OAuthBearerSaslClient("a\x01b", {}).evaluate_challenge(b"")


def test_extensions_are_checked() -> None:
    assert check_extensions({"logicalCluster": "lkc-1", "identityPoolId": "p 1"}) is None
    for invalid in ({"auth": "x"}, {"a-b": "x"}, {"a": ""}, {"a": "\x01"}):
        assert check_extensions(invalid)


@dataclass(frozen=True)
class Tokens:
    """A source of one token."""

    principal: str = "alice"

    def token(self) -> Token:
        return Token(value="HUSH", expires_at=math.inf)

    def discard(self, token: Token) -> None:
        assert token == self.token()


@pytest.mark.parametrize(
    "credentials",
    [
        PLAIN,
        ScramCredentials(mechanism="SCRAM-SHA-256", username="alice", password="hush"),
        OAuthBearerCredentials(source=Tokens()),
    ],
)
def test_no_secret_is_shown(credentials: SaslCredentials) -> None:
    assert "hush" not in repr(credentials)
    assert "alice" in repr(credentials)
    assert pickle.loads(pickle.dumps(credentials)).username == "alice"


# --- the exchange ---


def accepted(lifetime_ms: int = 0, challenge: bytes = b"") -> dict[str, Any]:
    return {
        "error_code": 0,
        "error_message": None,
        "auth_bytes": challenge,
        "session_lifetime": lifetime_ms,
    }


HANDSHAKE = {"error_code": 0, "mechanisms": ["PLAIN"]}
METADATA = {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": []}


def secured(**responses: list[Any]) -> ScriptedResponses:
    """Return a script that accepts authentication unless `responses` say otherwise."""
    defaults: dict[str, list[Any]] = {
        "sasl_handshake": [HANDSHAKE],
        "sasl_authenticate": [accepted()],
        "metadata": [METADATA],
    }
    return ScriptedResponses(**defaults | responses)


def serving(script: ScriptedResponses) -> Callable[[Peer], None]:
    def play(peer: Peer) -> None:
        peer.negotiate(SASL_VERSIONS)
        script.serve(peer)

    return play


def opened(
    broker: ScriptedBroker,
    credentials: SaslCredentials = PLAIN,
    *,
    clock: Clock | None = None,
    timeout_s: float = 20.0,
) -> Connection:
    dialer = Dialer(
        client_id="tests",
        clock=clock or Clock(),
        credentials=credentials,
        connect_timeout_s=timeout_s,
    )
    return dialer.open(Address.parse(broker.address), broker="broker 7", deadline=soon())


def test_a_connection_authenticates_first() -> None:
    script = secured()
    with ScriptedBroker(serving(script)) as broker:
        connection = opened(broker)
        assert connection.call(metadata(), deadline=soon()).cluster_id == "c"
        connection.close()
    assert script.received == ["sasl_handshake", "sasl_authenticate", "metadata"]


REJECTED = {"error_code": 58, "error_message": "invalid credentials", "auth_bytes": b""}


@pytest.mark.parametrize(
    ("responses", "credentials", "expected", "option"),
    [
        pytest.param(
            {"sasl_authenticate": [REJECTED]},
            PLAIN,
            r"broker 7 .*user 'alice' .*PLAIN .*SASL_AUTHENTICATION_FAILED .*invalid credentials"
            r".*'kafka\.sasl\.jaas\.config'",
            "kafka.sasl.jaas.config",
            id="wrong password",
        ),
        pytest.param(
            {"sasl_handshake": [{"error_code": 33, "mechanisms": ["GSSAPI", "PLAIN"]}]},
            ScramCredentials(mechanism="SCRAM-SHA-256", username="alice", password="hush"),
            r"does not support SASL mechanism SCRAM-SHA-256.*GSSAPI.*PLAIN",
            "kafka.sasl.mechanism",
            id="unsupported mechanism",
        ),
        pytest.param(
            {"sasl_handshake": [{"error_code": 34, "mechanisms": []}]},
            PLAIN,
            r"does not use SASL.*'kafka\.security\.protocol'",
            "kafka.security.protocol",
            id="listener without SASL",
        ),
        pytest.param(
            {"sasl_authenticate": [accepted()]},
            ScramCredentials(mechanism="SCRAM-SHA-256", username="alice", password="hush"),
            "invalid SCRAM message",
            "kafka.sasl.jaas.config",
            id="broker skips the proof",
        ),
        pytest.param(
            {"sasl_authenticate": [accepted(challenge=b"{}"), REJECTED]},
            OAuthBearerCredentials(source=Tokens()),
            r"OAUTHBEARER .*invalid credentials",
            "kafka.sasl.jaas.config",
            id="rejected token",
        ),
        pytest.param(
            {"sasl_authenticate": [accepted(challenge=b"{}")]},
            OAuthBearerCredentials(source=Tokens()),
            r"10 messages",
            "kafka.sasl.jaas.config",
            id="endless",
        ),
    ],
)
def test_failed_authentication(
    responses: dict[str, list[Any]], credentials: SaslCredentials, expected: str, option: str
) -> None:
    with (
        ScriptedBroker(serving(secured(**responses))) as broker,
        pytest.raises(AuthenticationError, match=expected) as caught,
    ):
        opened(broker, credentials)
    assert caught.value.option == option
    assert "hush" not in str(caught.value).lower()


@pytest.mark.parametrize("api", ["sasl_handshake", "sasl_authenticate"])
def test_an_authentication_ends_by_the_deadline(api: str) -> None:
    script = secured(**{api: [lambda peer, _: peer.hang()]})
    started = time.monotonic()
    with (
        ScriptedBroker(serving(script)) as broker,
        pytest.raises(BrokerUnreachableError, match=r"\bbroker 7\b"),
    ):
        opened(broker, timeout_s=0.3)
    assert time.monotonic() - started < 20


def test_a_broker_that_closes_at_the_first_request_may_require_sasl() -> None:
    def play(peer: Peer) -> None:
        peer.negotiate()
        peer.read()
        peer.close()

    dialer = Dialer(client_id="tests", clock=Clock())
    with ScriptedBroker(play) as broker:
        connection = dialer.open(Address.parse(broker.address), broker="broker 7", deadline=soon())
        with pytest.raises(BrokerUnreachableError, match=r"'kafka\.security\.protocol'") as caught:
            connection.call(metadata(), deadline=soon())
    assert caught.value.option == "kafka.security.protocol"


# --- sessions ---


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.clock = Clock(now=lambda: time.monotonic() + self.passed_s, random=lambda: 0.5)


def test_the_time_for_a_token_does_not_count_as_connecting() -> None:
    moving = Time()

    class SlowTokens(Tokens):
        def token(self) -> Token:
            moving.passed_s = 15.0
            return super().token()

    with ScriptedBroker(serving(secured())) as broker:
        credentials = OAuthBearerCredentials(source=SlowTokens())
        opened(broker, credentials, clock=moving.clock, timeout_s=10).close()


def test_a_session_is_renewed_before_the_next_request() -> None:
    moving = Time()
    script = secured(sasl_authenticate=[accepted(100_000)])
    with ScriptedBroker(serving(script)) as broker:
        connection = opened(broker, clock=moving.clock)
        moving.passed_s = 89  # of 90 s, which are 90 % of the session
        connection.call(metadata(), deadline=soon(200))
        assert script.count("sasl_handshake") == 1
        moving.passed_s = 91
        for _ in range(2):
            connection.call(metadata(), deadline=soon(200))
        connection.close()
    login = ["sasl_handshake", "sasl_authenticate"]
    assert script.received == [*login, "metadata", *login, "metadata", "metadata"]


def test_requests_in_flight_are_answered_and_later_ones_are_held_back() -> None:
    moving = Time()
    released: list[ReceivedRequest] = []

    def later(peer: Peer, request: ReceivedRequest) -> None:
        """Respond to the first two requests only after the client has begun to authenticate."""
        released.append(request)

    def respond_all(peer: Peer, request: ReceivedRequest) -> None:
        for one in released:
            peer.respond(one, "metadata", **METADATA)
        peer.respond(request, "sasl_handshake", **HANDSHAKE)

    script = secured(
        sasl_handshake=[HANDSHAKE, respond_all],
        sasl_authenticate=[accepted(100_000)],
        metadata=[later, later, METADATA],
    )
    with ScriptedBroker(serving(script)) as broker:
        connection = opened(broker, clock=moving.clock)
        in_flight = [connection.post(metadata()) for _ in range(2)]
        moving.passed_s = 96
        in_flight += [connection.post(metadata()) for _ in range(2)]
        assert connection.in_flight == 5, "four requests, and SaslHandshake"
        while not all(pending.done for pending in in_flight):
            left = [pending for pending in in_flight if not pending.done]
            assert wait_any(left, deadline=soon(200), clock=moving.clock)
        assert [pending.result().cluster_id for pending in in_flight] == ["c"] * 4
        assert connection.is_usable
        connection.close()
    login = ["sasl_handshake", "sasl_authenticate"]
    assert script.received == [*login, "metadata", "metadata", *login, "metadata", "metadata"]


def test_an_idle_connection_past_its_session_is_not_used() -> None:
    moving = Time()
    with ScriptedBroker(serving(secured(sasl_authenticate=[accepted(100_000)]))) as broker:
        connection = opened(broker, clock=moving.clock)
        usable = [connection.is_usable]
        moving.passed_s = 101
        usable.append(connection.is_usable)
        assert usable == [True, False]
        connection.close()


def test_a_session_without_end_is_not_renewed() -> None:
    moving = Time()
    script = secured()
    with ScriptedBroker(serving(script)) as broker:
        connection = opened(broker, clock=moving.clock)
        moving.passed_s = 1e9
        assert connection.is_usable
        connection.call(metadata(), deadline=moving.clock.now() + 20)
        connection.close()
    assert script.count("sasl_handshake") == 1


def test_a_revoked_user_is_an_error_of_all_requests() -> None:
    moving = Time()
    script = secured(sasl_authenticate=[accepted(100_000), REJECTED])
    with ScriptedBroker(serving(script)) as broker:
        connection = opened(broker, clock=moving.clock)
        moving.passed_s = 91
        in_flight = [connection.post(metadata()) for _ in range(2)]
        wait_any(in_flight, deadline=soon(200), clock=moving.clock)
        for pending in in_flight:
            with pytest.raises(AuthenticationError, match="user 'alice' could not authenticate"):
                pending.result()
        assert not connection.is_open


def test_a_broker_that_stops_during_a_new_login_is_unreachable() -> None:
    moving = Time()
    close: Callable[[Peer, ReceivedRequest], None] = lambda peer, _: peer.close()  # noqa: E731
    script = secured(sasl_handshake=[HANDSHAKE, close], sasl_authenticate=[accepted(100_000)])
    with ScriptedBroker(serving(script)) as broker:
        connection = opened(broker, clock=moving.clock)
        connection.call(metadata(), deadline=soon(200))
        moving.passed_s = 91
        with pytest.raises(BrokerUnreachableError):
            connection.call(metadata(), deadline=soon(200))
