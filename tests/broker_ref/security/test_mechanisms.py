"""Tests of SCRAM and OAUTHBEARER: complete logins, invalid messages and invalid tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.security.jaas import JaasEntry
from broker_ref.security.oauthbearer import (
    InvalidTokenError,
    OAuthBearerSaslServer,
    unsecured_token,
    unsecured_tokens,
    validated_token,
)
from broker_ref.security.sasl_client_authenticator import LoginError, sasl_client
from broker_ref.security.sasl_server import SaslAuthenticationError, SaslError, SaslServer
from broker_ref.security.scram import (
    ScramCredential,
    ScramMechanism,
    ScramSaslServer,
    credential_of,
    salted_password,
)

NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000


def credential(mechanism: ScramMechanism, password: str = "pencil") -> ScramCredential:
    salted = salted_password(mechanism, password, salt=b"salt" * 4, iterations=4096)
    return credential_of(mechanism, salt=b"salt" * 4, salted_password=salted, iterations=4096)


def scram_server(
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256, *, user: str = "user"
) -> ScramSaslServer:
    known = {user: credential(mechanism)}
    return ScramSaslServer(mechanism, credential=known.get, random_bytes=lambda n: b"r" * n)


def run(server: SaslServer, mechanism: str, options: dict[str, str]) -> None:
    """Log in with the client side of this package."""
    jaas = JaasEntry(login_module="M", options=options)
    _, new_tokens = sasl_client(
        mechanism, jaas, random_bytes=lambda n: b"c" * n, now_ms=lambda: NOW_MS
    )
    tokens = new_tokens()
    token = next(tokens)
    try:
        while True:
            token = tokens.send(server.evaluate_response(token, NOW_MS))
    except StopIteration:
        pass


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize("user", ["user", "a,b=c", "Müller"])
def test_a_scram_login(mechanism: ScramMechanism, user: str) -> None:
    server = scram_server(mechanism, user=user)
    run(server, mechanism.mechanism_name, {"username": user, "password": "pencil"})
    assert server.is_complete
    assert server.authorization_id == user


def test_credentials_are_those_of_rfc_7677() -> None:
    """The example of RFC 7677 has the user `user` and the password `pencil`."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    mechanism = ScramMechanism.SCRAM_SHA_256
    salted = salted_password(mechanism, "pencil", salt=salt, iterations=4096)
    found = credential_of(mechanism, salt=salt, salted_password=salted, iterations=4096)
    expected = scramp.ScramMechanism().make_auth_info("pencil", iteration_count=4096, salt=salt)
    assert (found.salt, found.stored_key, found.server_key, found.iterations) == expected


def test_the_text_of_a_credential_contains_no_secret() -> None:
    (mechanism, *_) = ScramMechanism
    found = credential_of(mechanism, salt=b"salt", salted_password=b"p", iterations=4096)
    assert not any(
        repr(secret) in repr(found) for secret in (found.salt, found.stored_key, found.server_key)
    )


@pytest.mark.parametrize(("user", "password"), [("user", "wrong"), ("nobody", "pencil")])
def test_a_failed_scram_login(user: str, password: str) -> None:
    server = scram_server()
    with pytest.raises(SaslError):
        run(server, "SCRAM-SHA-256", {"username": user, "password": password})
    assert not server.is_complete


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff", b"n,,n=user", b"y,,n=user,r=abc", b"p=tls-unique,,n=user,r=abc", b"n,,r=abc"],
)
def test_an_invalid_first_scram_message(message: bytes) -> None:
    with pytest.raises(SaslError):
        scram_server().evaluate_response(message, NOW_MS)


def test_a_scram_authorization_id_must_be_the_user() -> None:
    with pytest.raises(SaslAuthenticationError, match="different from username"):
        scram_server().evaluate_response(b"n,a=other,n=user,r=abc", NOW_MS)


@given(st.binary(max_size=80))
def test_an_arbitrary_final_scram_message(message: bytes) -> None:
    server = scram_server()
    server.evaluate_response(b"n,,n=user,r=abc", NOW_MS)
    with pytest.raises(SaslError):
        server.evaluate_response(message, NOW_MS)


# OAUTHBEARER -----------------------------------------------------------------------------------


def oauth_server(**options: str) -> OAuthBearerSaslServer:
    return OAuthBearerSaslServer(unsecured_tokens(JaasEntry(login_module="M", options=options)))


def initial(token: str, *, gs2: str = "n,,", scheme: str = "Bearer", more: str = "") -> bytes:
    return f"{gs2}\x01auth={scheme} {token}\x01{more}\x01".encode()


def claims(**others: Any) -> dict[str, Any]:
    return {"sub": "alice", "iat": NOW, "exp": NOW + 60, **others}


def test_an_oauthbearer_login() -> None:
    server = oauth_server()
    run(server, "OAUTHBEARER", {"unsecuredLoginStringClaim_sub": "broker"})
    assert (server.is_complete, server.authorization_id) == (True, "broker")
    assert server.credential_expires_ms == NOW_MS + 3_600_000


def test_extensions_are_accepted() -> None:
    server = oauth_server()
    message = initial(unsecured_token(claims()), gs2="n,a=alice,", more="tenant=a b\x01")
    assert server.evaluate_response(message, NOW_MS) == b""
    assert server.authorization_id == "alice"


def test_an_invalid_token_is_reported_after_the_client_s_confirmation() -> None:
    server = oauth_server()
    message = initial(unsecured_token(claims(exp=NOW)))
    assert server.evaluate_response(message, NOW_MS) == b'{"status":"invalid_token"}'
    with pytest.raises(SaslAuthenticationError, match="invalid_token"):
        server.evaluate_response(b"\x01", NOW_MS)
    assert not server.is_complete


def test_a_missing_scope_is_reported() -> None:
    server = oauth_server(unsecuredValidatorRequiredScope="write read")
    message = initial(unsecured_token(claims(scope=["read"])))
    assert json.loads(server.evaluate_response(message, NOW_MS)) == {
        "status": "insufficient_scope",
        "scope": "[write, read]",
    }


def test_the_client_of_an_invalid_token_fails() -> None:
    with pytest.raises(LoginError, match="invalid_token"):
        run(
            oauth_server(unsecuredValidatorPrincipalClaimName="user"),
            "OAUTHBEARER",
            {"unsecuredLoginStringClaim_sub": "broker"},
        )


TOKEN = unsecured_token({"sub": "alice", "exp": NOW + 60})


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        initial(TOKEN, gs2="y,,"),
        initial(TOKEN, scheme="Basic"),
        initial(TOKEN + "!"),
        initial(TOKEN).rstrip(b"\x01"),
    ],
)
def test_an_invalid_first_oauthbearer_message(message: bytes) -> None:
    with pytest.raises(SaslError):
        oauth_server().evaluate_response(message, NOW_MS)


def test_an_oauthbearer_authorization_id_must_be_the_subject() -> None:
    with pytest.raises(SaslAuthenticationError, match="different from the token's principal"):
        oauth_server().evaluate_response(initial(TOKEN, gs2="n,a=bob,"), NOW_MS)


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a..",
        "!.!.",
        f"{part([])}.{part(claims())}.",
        f"{part({'alg': 'HS256'})}.{part(claims())}.",
        f"{part({'alg': 'none'})}.{part(claims())}.signature",
        unsecured_token({"exp": NOW + 60}),
        unsecured_token({"sub": "alice"}),
        unsecured_token(claims(sub=" ")),
        unsecured_token(claims(sub=7)),
        unsecured_token(claims(exp="soon")),
        unsecured_token(claims(exp=float("inf"))),
        unsecured_token(claims(exp=float("nan"))),
        unsecured_token(claims(iat=float("nan"))),
        unsecured_token(claims(exp=10**400)),
        unsecured_token(claims(sub="\ud800")),
        unsecured_token(claims(exp=True)),
        unsecured_token(claims(iat=NOW + 1)),
        unsecured_token(claims(exp=NOW)),
        unsecured_token(claims(iat=NOW - 5, exp=NOW - 5)),
    ],
)
def test_invalid_tokens_are_rejected(token: str) -> None:
    with pytest.raises(InvalidTokenError):
        validated_token(token, {}, NOW_MS)


def test_clocks_may_differ_by_the_configured_time() -> None:
    options = {"unsecuredValidatorAllowableClockSkewMs": "2000"}
    token = unsecured_token(claims(iat=NOW - 9, exp=NOW - 1))
    assert validated_token(token, options, NOW_MS).expires_ms == NOW_MS - 1000


@given(st.text(max_size=60), st.binary(max_size=40))
def test_arbitrary_tokens_do_not_raise_other_errors(text: str, data: bytes) -> None:
    encoded = base64.urlsafe_b64encode(data).decode()
    for token in (text, f"{part({'alg': 'none'})}.{encoded}."):
        with pytest.raises(InvalidTokenError):
            validated_token(token, {}, NOW_MS)
