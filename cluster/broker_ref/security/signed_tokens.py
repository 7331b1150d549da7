"""Signed OAUTHBEARER tokens (Kafka's `OAuthBearerValidatorCallbackHandler`).

A token is a JWT whose signature is verified with the keys of a JSON Web Key Set (JWKS). A token
with an unknown key id is rejected and triggers a refresh of the keys, at most once a minute for
each key id. Sources: `BrokerJwtValidator`, `ClaimValidationUtils` and `RefreshingHttpsJwks` in
Apache Kafka, and `JwtConsumer` in jose4j.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker_ref.security.json_web_keys import (
    ALGORITHMS,
    JsonWebKey,
    decode_base64url,
    select_key,
)
from broker_ref.security.oauthbearer import (
    InvalidTokenError,
    Token,
    principal_claim,
    seconds_claim,
)
from broker_ref.security.settings import TokenSettings

MISSING_KEY_IDS_MAX: Final = 16
MISSING_KEY_ID_LENGTH_MAX: Final = 1000
MISSING_KEY_ID_MS: Final = 60_000
"""The minimum time between two refreshes that the same missing key id triggers."""


class KeyCache:
    """The current keys. `request_refresh` is called if a token contains an unknown key id."""

    def __init__(self) -> None:
        self.request_refresh: Callable[[], None] = lambda: None
        self._keys: Sequence[JsonWebKey] = ()
        self._missing: OrderedDict[str, int] = OrderedDict()

    def replace(self, keys: Sequence[JsonWebKey]) -> None:
        """Replace all keys."""
        self._keys = keys
        for key in keys:
            self._missing.pop(key.key_id or "", None)

    def find(self, key_id: str | None, algorithm: str, now_ms: int) -> JsonWebKey | None:
        """Return the key for a token, or None."""
        key = select_key(self._keys, key_id=key_id, algorithm=algorithm)
        if key is None and key_id is not None and len(key_id) <= MISSING_KEY_ID_LENGTH_MAX:
            self._expedite_refresh(key_id, now_ms)
        return key

    def _expedite_refresh(self, key_id: str, now_ms: int) -> None:
        if now_ms < self._missing.get(key_id, now_ms):
            return
        self._missing[key_id] = now_ms + MISSING_KEY_ID_MS
        self._missing.move_to_end(key_id)
        if len(self._missing) > MISSING_KEY_IDS_MAX:
            self._missing.popitem(last=False)
        self.request_refresh()


class SignedTokenValidator:
    """Validates the signed tokens of one listener."""

    def __init__(self, settings: TokenSettings, keys: KeyCache) -> None:
        self._settings = settings
        self._keys = keys

    def __call__(self, text: str, now_ms: int) -> Token:
        """Validate a token and return it. Raises: InvalidTokenError."""
        parts = text.split(".")
        if len(parts) != 3 or not all(parts):
            raise InvalidTokenError("a signed JWT must have 3 parts")
        header, claims = _object(parts[0]), _object(parts[1])
        self._verify(header, text, parts, now_ms)
        expires = self._check_times(claims, now_ms)
        self._check_audience(claims)
        issuer = self._settings.issuer
        if issuer and claims.get("iss") != issuer:
            raise InvalidTokenError("the 'iss' claim is not the expected issuer")
        self._check_scopes(claims)
        subject = principal_claim(claims, self._settings.sub_claim)
        return Token(principal_name=subject.strip(), expires_ms=expires * 1000)

    def _verify(
        self, header: Mapping[str, Any], text: str, parts: Sequence[str], now_ms: int
    ) -> None:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise InvalidTokenError(f"the algorithm {algorithm!r:.40} is not accepted")
        if "crit" in header or not isinstance(key_id, str | None):
            raise InvalidTokenError(
                "the header contains unsupported critical parameters or an invalid key id"
            )
        key = self._keys.find(key_id, algorithm, now_ms)
        if key is None:
            raise InvalidTokenError(f"there is no {algorithm} key with id {key_id!r:.40}")
        try:
            signature = decode_base64url(parts[2])
        except ValueError as error:
            raise InvalidTokenError(f"signature: {error}") from error
        if not key.verifies(algorithm, signature, text.rpartition(".")[0].encode()):
            raise InvalidTokenError("the signature is not valid")

    def _check_times(self, claims: Mapping[str, Any], now_ms: int) -> int:
        issued, expires, begins = (seconds_claim(claims, name) for name in ("iat", "exp", "nbf"))
        skew, now = self._settings.clock_skew_seconds, now_ms // 1000
        if issued is None or expires is None:
            raise InvalidTokenError("the 'iat' or 'exp' claim is missing")
        if now - skew >= int(expires):
            raise InvalidTokenError("the token has expired")
        if begins is not None and (now + skew < int(begins) or expires < begins):
            raise InvalidTokenError("the token is not yet valid")
        if issued < 0 or expires < issued:
            raise InvalidTokenError("the token expires before it was issued")
        return int(expires)

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        audience = claims.get("aud")
        expected = self._settings.audiences
        if audience is None and not expected:
            return
        found = [audience] if isinstance(audience, str) else audience
        if not isinstance(found, list) or not any(each in expected for each in found):
            raise InvalidTokenError("the 'aud' claim contains none of the expected audiences")

    def _check_scopes(self, claims: Mapping[str, Any]) -> None:
        name = self._settings.scope_claim
        scope = claims.get(name)
        scopes = [scope] if isinstance(scope, str) else scope if isinstance(scope, list) else []
        if not all(isinstance(each, str) and each.strip() for each in scopes):
            raise InvalidTokenError(f"the '{name}' claim contains an invalid scope")
        if len({each.strip() for each in scopes}) != len(scopes):
            raise InvalidTokenError(f"the '{name}' claim contains a duplicate scope")


def _object(part: str) -> dict[str, Any]:
    try:
        values = json.loads(decode_base64url(part))
    except (ValueError, RecursionError) as error:
        raise InvalidTokenError("malformed Base64 URL encoded value or JSON") from error
    if not isinstance(values, dict):
        raise InvalidTokenError("malformed JSON")
    return values
