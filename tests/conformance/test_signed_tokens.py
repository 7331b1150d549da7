"""Tests of signed tokens: which tokens a broker with a JSON Web Key Set accepts."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters.kafka import KafkaCluster
from integration.clusters.reference import ReferenceCluster
from integration.clusters.security import SecuredListener, Security
from integration.raw import RawConnection
from tests.broker_ref.security.tokens import SigningKey, encoded, key_set, signing_key
from tests.conftest import ClusterFactory

TIMEOUT_S = 30.0
BASIC, STRICT, NAMED = "BASIC", "STRICT", "NAMED"
ISSUER = "https://issuer.test"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
SETTINGS = {
    BASIC: {},
    STRICT: {"expected.audience": "kafka,spark", "expected.issuer": ISSUER},
    NAMED: {"sub.claim.name": "user", "scope.claim.name": "scp", "clock.skew.seconds": "1"},
}
SECURITY = Security(
    listeners=tuple(
        SecuredListener(name=name, protocol="SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
        for name in SETTINGS
    )
)
KEY, RSA, PSS = signing_key(), signing_key("RS256", "rsa"), signing_key("PS512", "pss")
CURVES = [signing_key(algorithm, algorithm) for algorithm in ("ES384", "ES512")]
EDDSA = signing_key("EdDSA", "eddsa")
KEYS = [KEY, RSA, PSS, EDDSA, *CURVES]

Secured = ReferenceCluster | KafkaCluster


@pytest.fixture(scope="module")
def secured(cluster_with: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_bytes(key_set(*(key.jwk() for key in KEYS)))
    url = f"file://{path}"
    configs = {}
    for listener, settings in SETTINGS.items():
        prefix = f"listener.name.{listener.lower()}.oauthbearer.sasl"
        configs[f"{prefix}.server.callback.handler.class"] = HANDLER
        for name, value in ({"jwks.endpoint.url": url} | settings).items():
            configs[f"{prefix}.oauthbearer.{name}"] = value
    with pytest.MonkeyPatch.context() as patch:
        # Kafka reads keys only from URLs in this system property.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
        patch.setenv("JAVA_TOOL_OPTIONS", f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {allowed}")
        started = cluster_with(configs, security=SECURITY)
    assert isinstance(started, (ReferenceCluster, KafkaCluster))
    return started


def claims(**changes: Any) -> dict[str, object]:
    """Return claims; times are relative to the current time."""
    now = int(time.time())
    found: dict[str, Any] = {"sub": "alice", "iat": -10, "exp": 300, **changes}
    for name in ("iat", "exp", "nbf"):
        if isinstance(found.get(name), int) and not isinstance(found[name], bool):
            found[name] += now
    return {name: value for name, value in found.items() if value is not None}


def accepts(secured: Secured, token: str, listener: str = BASIC) -> bool:
    """Return whether the broker accepts a token; its error after the confirmation is checked."""
    address = secured.secured.servers(listener)
    with RawConnection(address, timeout_s=TIMEOUT_S) as connection:
        connection.call("sasl_handshake", 1, mechanism="OAUTHBEARER")
        data = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        response = connection.call("sasl_authenticate", 1, auth_bytes=data)
        if not response.auth_bytes:
            return response.error_code is ErrorCode.none
        assert response.error_code is ErrorCode.none
        assert response.auth_bytes == b'{"status":"invalid_token"}'
        response = connection.call("sasl_authenticate", 1, auth_bytes=b"\x01")
        assert response.error_code is ErrorCode.sasl_authentication_failed
        assert response.error_message == '{"status":"invalid_token"}'
        assert connection.closed_by_broker()
        return False


ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    (BASIC, {}),
    (BASIC, {"exp": -15, "iat": -60}),
    (BASIC, {"iat": 200}),
    (BASIC, {"nbf": 20}),
    (BASIC, {"iss": "anyone"}),
    (BASIC, {"scope": "a a"}),
    (BASIC, {"scope": 7}),
    (BASIC, {"sub": " alice "}),
    (STRICT, {"aud": "kafka", "iss": ISSUER}),
    (STRICT, {"aud": ["flink", "spark"], "iss": ISSUER}),
    (NAMED, {"user": "alice", "sub": None, "scp": ["a", "b"], "scope": ["a", "a"]}),
]
REJECTED: list[tuple[str, dict[str, Any]]] = [
    (BASIC, {"exp": None}),
    (BASIC, {"iat": None}),
    (BASIC, {"exp": "soon"}),
    (BASIC, {"exp": True}),
    (BASIC, {"exp": -45, "iat": -60}),
    (BASIC, {"iat": 400}),
    (BASIC, {"nbf": 60}),
    (BASIC, {"nbf": 310, "exp": 305}),
    (BASIC, {"sub": None}),
    (BASIC, {"sub": " "}),
    (BASIC, {"sub": 7}),
    (BASIC, {"aud": "kafka"}),
    (BASIC, {"scope": ""}),
    (BASIC, {"scope": ["a", "a"]}),
    (STRICT, {"iss": ISSUER}),
    (STRICT, {"aud": "flink", "iss": ISSUER}),
    (STRICT, {"aud": "kafka"}),
    (STRICT, {"aud": "kafka", "iss": f"{ISSUER}/"}),
    (NAMED, {}),
    (NAMED, {"user": "alice", "exp": -15, "iat": -60}),
]


@pytest.mark.parametrize(("listener", "changes"), ACCEPTED)
def test_accepted_claims(secured: Secured, listener: str, changes: dict[str, Any]) -> None:
    assert accepts(secured, KEY.token(claims(**changes)), listener)


@pytest.mark.parametrize(("listener", "changes"), REJECTED)
def test_rejected_claims(secured: Secured, listener: str, changes: dict[str, Any]) -> None:
    assert not accepts(secured, KEY.token(claims(**changes)), listener)


@pytest.mark.slow
def test_signatures(secured: Secured) -> None:
    for key in KEYS:
        token = key.token(claims())
        assert accepts(secured, token), key.algorithm
        signed, _, signature = token.rpartition(".")
        other = "A" if signature[0] != "A" else "B"
        assert not accepts(secured, f"{signed}.{other}{signature[1:]}"), key.algorithm
    # The key of RSA also verifies other algorithms.
    assert accepts(secured, SigningKey(RSA.key, "RS384", "rsa").token(claims()))
    assert not accepts(secured, SigningKey(signing_key().key, "ES256", "k1").token(claims()))
    assert not accepts(secured, KEY.token(claims(), kid="unknown"))
    assert not accepts(secured, KEY.token(claims(), crit=["b64"], b64=False))
    assert not accepts(secured, KEY.token(claims(), alg="none"))
    first, second, _ = KEY.token(claims(), alg="none").split(".")
    for token in (f"{first}.{second}.", f"{first}.{second}", f"..{encoded(b'x')}"):
        assert not accepts(secured, token)
