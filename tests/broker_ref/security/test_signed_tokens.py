"""Tests of signed tokens: algorithms, forged tokens, limits of claims, and missing keys."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.security.json_web_keys import ALGORITHMS, InvalidKeySetError, parse_key_set
from broker_ref.security.oauthbearer import InvalidTokenError, unsecured_token
from broker_ref.security.settings import TokenSettings
from broker_ref.security.signed_tokens import (
    MISSING_KEY_ID_MS,
    MISSING_KEY_IDS_MAX,
    KeyCache,
    SignedTokenValidator,
)
from tests.broker_ref.security.tokens import SigningKey, encoded, key_set, rsa_key, signing_key

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
CLAIMS: dict[str, Any] = {"sub": "alice", "iat": NOW_S - 10, "exp": NOW_S + 60}
KEY = signing_key()


def validator(*keys: Mapping[str, object], **settings: Any) -> SignedTokenValidator:
    cache = KeyCache()
    cache.replace(parse_key_set(key_set(*(keys or (KEY.jwk(),)))))
    return SignedTokenValidator(TokenSettings(jwks_url="https://keys.test", **settings), cache)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str) -> None:
    key = signing_key(algorithm)
    others = [signing_key(each, "other").jwk() for each in ("ES256", "ES384", "RS256")]
    validate = validator(*others, key.jwk(alg=algorithm))
    token = validate(key.token(CLAIMS), NOW_MS)
    assert (token.principal_name, token.expires_ms) == ("alice", (NOW_S + 60) * 1000)
    forged = SigningKey(signing_key("ES256").key, "ES256", key.key_id)
    if algorithm == "ES256":
        with pytest.raises(InvalidTokenError):
            validate(forged.token(CLAIMS), NOW_MS)
    signed, _, signature = key.token(CLAIMS).rpartition(".")
    for other in (signature[:-8], "", signature[4:] + "AAAA"):
        with pytest.raises(InvalidTokenError):
            validate(f"{signed}.{other}", NOW_MS)


def test_a_token_that_is_not_signed_with_the_key() -> None:
    """The classic attacks: no algorithm, a public key as a shared secret, another key type."""
    rsa = signing_key("RS256")
    public = json.dumps(rsa.jwk()).encode()

    def forged(algorithm: str) -> str:
        header = {"alg": algorithm, "kid": rsa.key_id}
        signed = ".".join(encoded(json.dumps(part).encode()) for part in (header, CLAIMS))
        return f"{signed}.{encoded(hmac.digest(public, signed.encode(), hashlib.sha256))}"

    secret = {"kty": "oct", "kid": rsa.key_id, "k": encoded(public)}
    validate = validator(rsa.jwk(), secret)
    assert validate(rsa.token(CLAIMS), NOW_MS).principal_name == "alice"
    for token in (
        unsecured_token(CLAIMS),
        unsecured_token(CLAIMS) + "AAAA",
        *(forged(each) for each in ("none", "None", "HS256", "RS256", "PS256", "ES256")),
        rsa.token(CLAIMS, crit=["b64"], b64=False),
        rsa.token(CLAIMS, kid=7),
        rsa.token(CLAIMS, kid="unknown"),
    ):
        with pytest.raises(InvalidTokenError):
            validate(token, NOW_MS)
    # A key with another purpose or algorithm, and a short one.
    short = SigningKey(rsa_key(1024), "RS256", "k1")
    for entry in (rsa.jwk(use="enc"), rsa.jwk(key_ops=["encrypt"]), rsa.jwk(alg="RS512")):
        with pytest.raises(InvalidTokenError):
            validator(KEY.jwk(), entry)(rsa.token(CLAIMS), NOW_MS)
    with pytest.raises(InvalidKeySetError):
        parse_key_set(key_set(short.jwk(), secret))


# `tests/conformance/test_signed_tokens.py` has the claims that Apache Kafka accepts and rejects.
SKEW = {"clock_skew_seconds": 30}
REJECTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"exp": 1e300}),
    ({}, {"exp": float("nan")}),
    ({}, {"nbf": float("nan")}),
    ({}, {"sub": "\ud800"}),
    ({}, {"exp": NOW_S - 30}),
    ({}, {"iat": -1}),
    ({}, {"nbf": NOW_S + 31}),
    ({"audiences": ("kafka", "spark")}, {"aud": {"kafka": 1}}),
    ({}, {"scope": ["a", 1]}),
]
ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"exp": NOW_S - 29, "iat": NOW_S - 60}),
    ({}, {"nbf": NOW_S + 30}),
]


def claims(changes: dict[str, Any]) -> dict[str, object]:
    return {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}


@pytest.mark.parametrize(("settings", "changes"), REJECTED)
def test_rejected_claims(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        validator(**SKEW, **settings)(KEY.token(claims(changes)), NOW_MS)


@pytest.mark.parametrize(("settings", "changes"), ACCEPTED)
def test_accepted_claims(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    token = validator(**SKEW, **settings)(KEY.token(claims(changes)), NOW_MS)
    assert token.principal_name == "alice"


@given(st.text() | st.from_regex(r"[\w-]*\.[\w-]*\.[\w-]*") | st.just("W10.W10.W10"))
def test_malformed_tokens(text: str) -> None:
    with pytest.raises(InvalidTokenError):
        validator()(text, NOW_MS)


@given(st.binary() | st.sampled_from([b"[]", b'{"keys": {}}', b'{"keys": [1, {}, {"kty": "EC"}]}']))
def test_malformed_key_sets(content: bytes) -> None:
    with pytest.raises(InvalidKeySetError):
        parse_key_set(content)


def test_unknown_key_ids_request_new_keys() -> None:
    cache = KeyCache()
    requests: list[int] = []
    cache.request_refresh = lambda: requests.append(1)
    validate = SignedTokenValidator(TokenSettings(jwks_url="https://keys.test"), cache)

    def rejected(key_id: str, now_ms: int) -> int:
        before = len(requests)
        with pytest.raises(InvalidTokenError):
            validate(KEY.token(CLAIMS, kid=key_id), now_ms)
        return len(requests) - before

    assert rejected("k1", NOW_MS) == 1
    assert rejected("k1", NOW_MS + MISSING_KEY_ID_MS - 1) == 0
    assert rejected("k2", NOW_MS) == 1
    assert rejected("k1", NOW_MS + MISSING_KEY_ID_MS) == 1
    assert rejected("x" * 1001, NOW_MS) == 0
    cache.replace(parse_key_set(key_set(KEY.jwk())))
    assert validate(KEY.token(CLAIMS), NOW_MS).principal_name == "alice"
    for number in range(1000):
        rejected(f"random {number}", NOW_MS)
    assert len(cache._missing) == MISSING_KEY_IDS_MAX
