"""Tests of the SASL state machine: the handshake, illegal requests, sessions, re-authentication."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from broker_ref.protocol.reader import MalformedRequestError
from broker_ref.security.jaas import JaasEntry
from broker_ref.security.principals import Principal
from broker_ref.security.sasl_server_authenticator import (
    Disconnect,
    Fail,
    Outcome,
    Respond,
    SaslServerAuthenticator,
    SaslState,
    sasl_servers,
)
from broker_ref.security.scram import ScramCredential, ScramMechanism
from broker_ref.security.settings import MechanismSettings, SaslSettings
from integration.raw import decode_response, encode_request, request

NOW_MS = 1_000_000
ALICE = b"\0alice\0secret"
BOB = b"\0bob\0hunter2"
VERSIONS = b"the API versions"
ILLEGAL = b"illegal SASL state"
JAAS = JaasEntry(login_module="M", options={"user_alice": "secret", "user_bob": "hunter2"})


class Responder:
    """Accepts every ApiVersions request that is longer than its header."""

    def api_versions(self, frame: bytes) -> tuple[bytes, bool]:
        return VERSIONS, b"invalid" not in frame

    def illegal_sasl_state(self, frame: bytes) -> bytes | None:
        if b"malformed" in frame:
            raise MalformedRequestError("malformed")
        return ILLEGAL


def no_credential(mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    return None


def authenticator(
    *, max_reauth_ms: int = 0, mechanisms: tuple[str, ...] = ("PLAIN", "OAUTHBEARER")
) -> SaslServerAuthenticator:
    settings = SaslSettings(
        mechanisms={
            name: MechanismSettings(jaas=JAAS, max_reauth_ms=max_reauth_ms) for name in mechanisms
        },
        max_receive_bytes=1000,
    )
    servers = sasl_servers(settings, credential=no_credential, random_bytes=bytes)
    return SaslServerAuthenticator(settings, servers=servers, responder=Responder())


def frame(api: str, version: int, **fields: Any) -> bytes:
    return encode_request(request(api, version, **fields), 7, "client")


def handshake(mechanism: str = "PLAIN", version: int = 1) -> bytes:
    return frame("sasl_handshake", version, mechanism=mechanism)


def token(data: bytes, version: int = 2) -> bytes:
    return frame("sasl_authenticate", version, auth_bytes=data)


def state_of(client: SaslServerAuthenticator) -> SaslState:
    return client.state


def answer(outcome: Outcome, api: str, version: int) -> Any:
    """Return the decoded response of an outcome."""
    assert isinstance(outcome, Respond | Fail)
    assert outcome.frame is not None
    fields = {"auth_bytes": b""} if api == "sasl_authenticate" else {}
    return decode_response(request(api, version, **fields), outcome.frame, 7)


def log_in(client: SaslServerAuthenticator, data: bytes = ALICE, *, now_ms: int = NOW_MS) -> Any:
    assert answer(client.receive(handshake(), now_ms), "sasl_handshake", 1).error_code == 0
    return answer(client.receive(token(data), now_ms), "sasl_authenticate", 2)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login(version: int) -> None:
    client = authenticator()
    assert client.receive(frame("api_versions", 0), NOW_MS) == Respond(frame=VERSIONS)
    response = answer(client.receive(handshake(), NOW_MS), "sasl_handshake", 1)
    assert (response.error_code, response.mechanisms) == (ErrorCode.none, ("PLAIN", "OAUTHBEARER"))
    response = answer(client.receive(token(ALICE, version), NOW_MS), "sasl_authenticate", version)
    assert (response.error_code, response.auth_bytes) == (ErrorCode.none, b"")
    assert client.is_complete
    assert client.session is not None
    assert client.session.principal == Principal("alice")
    assert not client.is_expired(2**62)


def test_after_handshake_version_0_the_tokens_have_no_headers() -> None:
    client = authenticator()
    client.receive(handshake(version=0), NOW_MS)
    assert client.receive(ALICE, NOW_MS) == Respond(frame=b"")
    assert client.is_complete


def test_a_wrong_password_without_headers_gets_no_response() -> None:
    client = authenticator()
    client.receive(handshake(version=0), NOW_MS)
    outcome = client.receive(b"\0alice\0wrong", NOW_MS)
    assert outcome == Fail(reason="Authentication failed: Invalid username or password")


def test_an_invalid_api_versions_request_may_be_repeated() -> None:
    client = authenticator()
    assert client.receive(frame("api_versions", 0) + b"invalid", NOW_MS) == Respond(frame=VERSIONS)
    assert state_of(client) is SaslState.HANDSHAKE_OR_VERSIONS_REQUEST
    assert client.receive(frame("api_versions", 0), NOW_MS) == Respond(frame=VERSIONS)
    assert state_of(client) is SaslState.HANDSHAKE_REQUEST
    assert isinstance(client.receive(frame("api_versions", 0), NOW_MS), Disconnect)


def test_an_unsupported_mechanism_gets_the_enabled_ones() -> None:
    client = authenticator()
    outcome = client.receive(handshake("GSSAPI"), NOW_MS)
    assert isinstance(outcome, Fail)
    response = answer(outcome, "sasl_handshake", 1)
    assert response.error_code is ErrorCode.unsupported_sasl_mechanism
    assert response.mechanisms == ("PLAIN", "OAUTHBEARER")
    assert client.state is SaslState.FAILED


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0secret", "Authentication failed: Invalid username or password"),
        (b"\0\0secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"a\0b\0c\0d", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (
            b"bob\0alice\0secret",
            (
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            ),
        ),
    ],
)
def test_failed_logins_get_kafka_s_messages(sent: bytes, message: str) -> None:
    client = authenticator()
    client.receive(handshake(), NOW_MS)
    outcome = client.receive(token(sent), NOW_MS)
    assert isinstance(outcome, Fail)
    response = answer(outcome, "sasl_authenticate", 2)
    assert response.error_code is ErrorCode.sasl_authentication_failed
    assert response.error_message == message
    assert client.session is None


METADATA = frame("metadata", 1, topics=())


def test_other_requests_are_illegal_before_the_handshake() -> None:
    outcome = authenticator().receive(METADATA, NOW_MS)
    assert outcome == Fail(
        reason="Unexpected Kafka request of type METADATA during SASL handshake."
    )
    outcome = authenticator().receive(token(ALICE), NOW_MS)
    assert isinstance(outcome, Fail)
    assert outcome.frame is None


def test_other_requests_are_illegal_after_the_handshake() -> None:
    client = authenticator()
    client.receive(handshake(), NOW_MS)
    outcome = client.receive(METADATA, NOW_MS)
    assert isinstance(outcome, Fail)
    assert outcome.frame == ILLEGAL


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"", Fail),
        (b"\x60\x82", Fail),  # The beginning of a GSSAPI token.
        (b"\x7f\xff\x00\x00\x00\x00\x00\x00", Fail),
        (b"\x00\x11\x00\x09\x00\x00\x00\x00", Disconnect),
        (b"\x00\x11\x00\x01\x00\x00\x00\x00", Disconnect),
    ],
)
def test_a_first_frame_that_is_not_a_valid_request(sent: bytes, kind: type[Outcome]) -> None:
    assert isinstance(authenticator().receive(sent, NOW_MS), kind)


@given(st.lists(st.binary(max_size=60), max_size=3), st.integers(0, 3))
def test_no_input_raises(frames: list[bytes], prefix: int) -> None:
    client = authenticator(mechanisms=("PLAIN", "OAUTHBEARER", "SCRAM-SHA-256"))
    starts = [[], [handshake()], [handshake("OAUTHBEARER")], [handshake("SCRAM-SHA-256")]]
    for data in (*starts[prefix], *frames):
        if not isinstance(client.receive(data, NOW_MS), Respond) or client.is_complete:
            return


@given(st.binary(max_size=60), st.sampled_from(["PLAIN", "OAUTHBEARER", "SCRAM-SHA-256"]))
def test_no_token_raises(data: bytes, mechanism: str) -> None:
    client = authenticator(mechanisms=(mechanism,))
    client.receive(handshake(mechanism), NOW_MS)
    client.receive(token(data), NOW_MS)


# Sessions and re-authentication ----------------------------------------------------------------


def test_a_session_expires() -> None:
    client = authenticator(max_reauth_ms=5000)
    assert log_in(client).session_lifetime.total_seconds() == 5
    assert not client.is_expired(NOW_MS + 5000)
    assert client.is_expired(NOW_MS + 5001)


def test_re_authentication_extends_the_session() -> None:
    client = authenticator(max_reauth_ms=5000)
    log_in(client)
    assert client.begin_reauthentication(NOW_MS + 4000)
    assert state_of(client) is SaslState.REAUTH_PROCESS_HANDSHAKE
    log_in(client, now_ms=NOW_MS + 4000)
    assert state_of(client) is SaslState.COMPLETE
    assert not client.is_expired(NOW_MS + 9000)


def test_re_authentication_is_refused_twice_in_a_second_and_without_a_limit() -> None:
    unlimited = authenticator()
    log_in(unlimited)
    assert not unlimited.begin_reauthentication(NOW_MS)
    client = authenticator(max_reauth_ms=5000)
    assert not client.begin_reauthentication(NOW_MS)
    log_in(client)
    assert client.begin_reauthentication(NOW_MS)
    log_in(client)
    assert not client.begin_reauthentication(NOW_MS + 999)
    assert client.is_complete
    assert client.begin_reauthentication(NOW_MS + 1000)


def test_the_principal_cannot_change() -> None:
    client = authenticator(max_reauth_ms=5000)
    log_in(client)
    client.begin_reauthentication(NOW_MS)
    response = log_in(client, BOB)
    assert response.error_code is ErrorCode.sasl_authentication_failed
    assert response.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert client.state is SaslState.FAILED


def test_the_mechanism_cannot_change() -> None:
    client = authenticator(max_reauth_ms=5000)
    log_in(client)
    client.begin_reauthentication(NOW_MS)
    response = answer(client.receive(handshake("OAUTHBEARER"), NOW_MS), "sasl_handshake", 1)
    assert response.error_code is ErrorCode.none
    outcome = client.receive(token(ALICE), NOW_MS)
    assert outcome == Fail(
        reason="SASL mechanism 'OAUTHBEARER' requested by client is not supported for "
        "re-authentication of mechanism 'PLAIN'"
    )


def test_a_wrong_password_fails_the_re_authentication() -> None:
    client = authenticator(max_reauth_ms=5000)
    log_in(client)
    client.begin_reauthentication(NOW_MS)
    response = log_in(client, b"\0alice\0wrong")
    assert response.error_code is ErrorCode.sasl_authentication_failed
