"""OAUTHBEARER (RFC 7628), and unsecured tokens, which Kafka provides for testing.

A token is a JWT whose subject is the principal name. An unsecured token has no signature;
`signed_tokens` validates signed tokens. Sources: `OAuthBearerSaslServer`,
`OAuthBearerClientInitialResponse`, `OAuthBearerUnsecuredJws` and
`OAuthBearerUnsecuredValidatorCallbackHandler` in Apache Kafka.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker_ref.frozen import dataclass
from broker_ref.security.jaas import JaasEntry
from broker_ref.security.sasl_server import SaslAuthenticationError, SaslError
from broker_ref.security.settings import CLOCK_SKEW_OPTION

logger = logging.getLogger(__name__)

CONTROL_A: Final = b"\x01"

_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_INITIAL_RESPONSE: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_NAME}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")

_PRINCIPAL_CLAIM: Final = "unsecuredValidatorPrincipalClaimName"
_SCOPE_CLAIM: Final = "unsecuredValidatorScopeClaimName"
_REQUIRED_SCOPE: Final = "unsecuredValidatorRequiredScope"


class InvalidTokenError(Exception):
    """A token is not valid. `scope` is set if the token lacks a required scope."""

    def __init__(self, reason: str, *, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The principal of a token, and the time at which the token expires."""

    principal_name: str
    expires_ms: int


ValidateToken = Callable[[str, int], Token]
"""Parses and validates a token at a time in milliseconds. Raises: InvalidTokenError."""


def unsecured_tokens(jaas: JaasEntry) -> ValidateToken:
    """Return a function that validates unsecured tokens with the options of the login module."""
    return lambda text, now_ms: validated_token(text, jaas.options, now_ms)


class OAuthBearerSaslServer:
    """One authentication with OAUTHBEARER."""

    def __init__(self, validate: ValidateToken) -> None:
        self.is_complete = False
        self.authorization_id = ""
        self.credential_expires_ms: int | None = None
        self._validate = validate
        self._error: str | None = None

    def evaluate_response(self, response: bytes, now_ms: int) -> bytes:
        """Validate the client's token.

        If the token is not valid, the challenge is a JSON object with the error, and the client
        acknowledges the challenge.
        """
        if response == CONTROL_A and self._error is not None:
            raise SaslAuthenticationError(self._error)
        requested_id, text = _initial_response(response)
        try:
            token = self._validate(text, now_ms)
        except InvalidTokenError as error:
            logger.info("Rejected an invalid OAUTHBEARER token: %s", error)
            status = "invalid_token" if error.scope is None else "insufficient_scope"
            scope = "" if error.scope is None else f', "scope":"{error.scope}"'
            self._error = f'{{"status":"{status}"{scope}}}'
            return self._error.encode()
        if requested_id and requested_id != token.principal_name:
            raise SaslAuthenticationError(
                f"Authentication failed: Client requested an authorization id ({requested_id}) "
                f"that is different from the token's principal name ({token.principal_name})"
            )
        self.authorization_id = token.principal_name
        self.credential_expires_ms = token.expires_ms
        self.is_complete = True
        return b""


def validated_token(text: str, options: Mapping[str, str], now_ms: int) -> Token:
    """Validate a token and return it. Raises: InvalidTokenError."""
    claims = _claims(text)
    name = principal_claim(claims, options.get(_PRINCIPAL_CLAIM, "").strip() or "sub")
    issued, expires = seconds_claim(claims, "iat"), seconds_claim(claims, "exp")
    skew_ms = int(options.get(CLOCK_SKEW_OPTION, "").strip() or 0)
    if expires is None:
        raise InvalidTokenError("No expiration time in JWT")
    if issued is not None and issued * 1000 > now_ms + skew_ms:
        raise InvalidTokenError("The Issued At time is later than the current time")
    if now_ms - skew_ms >= expires * 1000:
        raise InvalidTokenError("The token has expired")
    if issued is not None and expires <= issued:
        raise InvalidTokenError("The Expiration Time is not later than the Issued At time")
    required = options.get(_REQUIRED_SCOPE, "").split()
    scope = claims.get(options.get(_SCOPE_CLAIM, "").strip() or "scope", [])
    present = [scope.strip()] if isinstance(scope, str) else scope
    if not isinstance(present, list) or any(each not in present for each in required):
        raise InvalidTokenError("A required scope is missing", scope=f"[{', '.join(required)}]")
    return Token(principal_name=name, expires_ms=round(expires * 1000))


def unsecured_token(claims: Mapping[str, object]) -> str:
    """Return an unsecured token with these claims."""
    parts = [json.dumps(each, separators=(",", ":")).encode() for each in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


def _initial_response(response: bytes) -> tuple[str, str]:
    """Return the authorization id and the token from the client's first message."""
    match = _INITIAL_RESPONSE.fullmatch(response.decode(errors="replace"))
    if match is None:
        raise SaslError("Invalid OAUTHBEARER client first message")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None:
        raise SaslError("Invalid OAUTHBEARER client first message: invalid 'auth' format")
    if auth["scheme"].lower() != "bearer":
        raise SaslError("Invalid scheme in OAUTHBEARER client first message")
    return match["authzid"] or "", auth["token"]


def _claims(text: str) -> dict[str, Any]:
    parts = text.split(".")
    if len(parts) != 3 or ".." in text:
        raise InvalidTokenError("An unsecured JWT must have 3 parts")
    header, claims, signature = parts
    if _json(header).get("alg") != "none" or signature:
        raise InvalidTokenError("An unsecured JWT must have the algorithm 'none' and no signature")
    return _json(claims)


def _json(part: str) -> dict[str, Any]:
    try:
        decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        values = json.loads(decoded)
    except (binascii.Error, ValueError, RecursionError) as error:
        raise InvalidTokenError("malformed Base64 URL encoded value or JSON") from error
    if not isinstance(values, dict):
        raise InvalidTokenError("malformed JSON")
    return values


def seconds_claim(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a claim that contains a time in seconds, or None if the claim is missing.

    Raises: InvalidTokenError.
    """
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTokenError(f"The '{name}' claim is not a number")
    if not abs(value) <= 2**53:  # Also true for NaN, which Python's JSON decoder accepts.
        raise InvalidTokenError(f"The '{name}' claim is too large or not a number")
    return value


def principal_claim(claims: Mapping[str, Any], name: str) -> str:
    """Return the claim that contains the principal of a token. Raises: InvalidTokenError."""
    value = claims.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidTokenError(f"The '{name}' claim does not contain a principal name")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidTokenError(f"The '{name}' claim is not valid Unicode") from error
    return value
