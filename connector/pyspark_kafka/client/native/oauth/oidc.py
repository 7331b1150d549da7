"""Tokens from an identity provider, requested with the client credentials grant (KIP-768).

Invariant: no error and no `repr` contains a secret or a token.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_kafka.client.native.oauth.jwt import expiry_of
from pyspark_kafka.errors import AuthenticationError
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.tls import TlsSettings, tls_context

_AUTHORITIES_OPTION: Final = "kafka.https.ca.location"
_ATTEMPT_TIMEOUT_S: Final = 4.0
_TIMEOUT_S: Final = 10.0
_BACKOFFS_S: Final = (0.1, 0.5, 1.0)
_RESPONSE_BYTES_MAX: Final = 1024 * 1024
_UNKNOWN_LIFE_S: Final = 1.0
_HTTP_SERVER_ERROR: Final = 500
_HTTP_TOO_MANY: Final = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcTokens:
    """Requests tokens from an identity provider with client credentials (RFC 6749, 4.4).

    `option` is the option that contains the URL.
    """

    url: str = field(repr=False)
    client_id: str
    secret: str = field(repr=False)
    scope: str | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)
    extensions: tuple[tuple[str, str], ...] = ()
    option: str = "kafka.sasl.oauthbearer.token.endpoint.url"

    def __call__(self) -> Token:
        """Request a token, and retry if the endpoint may be temporarily unavailable."""
        deadline = time.monotonic() + _TIMEOUT_S
        backoffs = iter(_BACKOFFS_S)
        while True:
            left_s = deadline - time.monotonic()
            try:
                value, expires_at = _token(self._response(min(left_s, _ATTEMPT_TIMEOUT_S)))
                return Token(
                    value=value,
                    expires_at=expires_at,
                    principal=self.client_id,
                    extensions=dict(self.extensions),
                )
            except _ResponseError as error:
                backoff_s = next(backoffs, None)
                is_last = backoff_s is None or deadline - time.monotonic() <= backoff_s
                if is_last or not error.is_retriable:
                    raise self._failed(str(error), error.option) from None
            time.sleep(backoff_s or 0.0)

    def _response(self, timeout_s: float) -> bytes:
        """Return the response body. Use a thread, because urllib supports no overall deadline."""
        results: list[bytes | Exception] = []

        def request() -> None:
            try:
                results.append(self._post(timeout_s))
            except Exception as error:
                results.append(error)

        thread = threading.Thread(target=request, name="token endpoint", daemon=True)
        thread.start()
        thread.join(timeout_s)
        result = results[0] if results else TimeoutError()
        if isinstance(result, urllib.error.HTTPError):
            result.close()
            is_retriable = result.code >= _HTTP_SERVER_ERROR or result.code == _HTTP_TOO_MANY
            raise _ResponseError(f"HTTP {result.code} {result.reason}", is_retriable=is_retriable)
        if isinstance(result, TimeoutError):
            raise _ResponseError(f"no response within {timeout_s:.3g} s", is_retriable=True)
        if isinstance(result, urllib.error.URLError):
            if isinstance(result.reason, ssl.SSLCertVerificationError):
                reason = f"its certificate was rejected: {result.reason.verify_message}"
                raise _ResponseError(reason, is_retriable=False, option=_AUTHORITIES_OPTION)
            raise _ResponseError(str(result.reason), is_retriable=True)
        if isinstance(result, Exception):
            raise _ResponseError(type(result).__name__, is_retriable=isinstance(result, OSError))
        return result

    def _post(self, timeout_s: float) -> bytes:
        fields = {"grant_type": "client_credentials"}
        if self.scope:
            fields["scope"] = self.scope
        credentials = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        request = urllib.request.Request(  # noqa: S310, `security` checks the scheme
            self.url,
            data=urllib.parse.urlencode(fields).encode(),
            headers={"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=tls_context(self.tls)), _NoRedirects
        )
        with opener.open(request, timeout=timeout_s) as response:
            return bytes(response.read(_RESPONSE_BYTES_MAX))

    def _failed(self, reason: str, option: str = "") -> AuthenticationError:
        parts = urllib.parse.urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return AuthenticationError(
            f"No token for client {self.client_id!r} could be obtained from "
            f"{parts.scheme}://{host}{parts.path} ({reason}).",
            advice=f"Set '{option}' to the CA certificates for verifying the endpoint, and check "
            f"the host name in '{self.option}'."
            if option
            else f"Check '{self.option}', the client id and the client secret.",
            option=option or self.option,
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Rejects redirects, because urllib would send the credentials to the redirect target."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class _ResponseError(Exception):
    def __init__(self, reason: str, *, is_retriable: bool, option: str = "") -> None:
        super().__init__(reason)
        self.is_retriable = is_retriable
        self.option = option


def _token(body: bytes) -> tuple[str, float]:
    """Parse the response from a token endpoint (RFC 6749, 5.1).

    Return the token and its expiration time.
    """
    try:
        response = json.loads(body)
        value = response["access_token"]
        life_s = float(response.get("expires_in") or 0)
    except (ValueError, TypeError, KeyError, AttributeError):
        reason = "the response contains no 'access_token'"
        raise _ResponseError(reason, is_retriable=False) from None
    if not isinstance(value, str) or not value:
        raise _ResponseError("the 'access_token' is not a string", is_retriable=False)
    return value, expiry_of(value) or time.time() + (life_s or _UNKNOWN_LIFE_S)
