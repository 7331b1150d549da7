"""Authenticates a broker to another broker (Kafka's `SaslClientAuthenticator`).

The client sends SaslHandshake version 1 and then one SaslAuthenticate request for each token. It
re-authenticates before its session expires. Invariant: `receive` raises only LoginError.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import scramp
from kio.schema.errors import ErrorCode

from broker_ref.protocol.frames import read_response, request_frame
from broker_ref.protocol.reader import MalformedRequestError
from broker_ref.security.jaas import JaasEntry
from broker_ref.security.oauthbearer import unsecured_token
from broker_ref.security.sasl_messages import (
    SASL_AUTHENTICATE_KEY,
    SASL_AUTHENTICATE_VERSIONS,
    SASL_HANDSHAKE_KEY,
    SASL_HANDSHAKE_VERSIONS,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from broker_ref.security.scram import NONCE_BYTES
from broker_ref.security.settings import OAUTHBEARER, PLAIN

LOGIN_CORRELATION_ID: Final = -1
"""The correlation id of login requests, which differs from those of all other requests."""

SESSION_FRACTION: Final = 0.85
"""The fraction of a session's lifetime after which the broker logs in again."""

TOKEN_LIFETIME_SECONDS: Final = 3600
"""Kafka's default for `unsecuredLoginLifetimeSeconds`."""

Tokens = Generator[bytes, bytes, None]
"""Yields the client's tokens, and receives the challenges. Raises: LoginError."""

Response = TypeVar("Response")


class LoginError(Exception):
    """The other broker has rejected the login, or its response is not valid."""


def sasl_client(
    mechanism: str,
    jaas: JaasEntry,
    *,
    random_bytes: Callable[[int], bytes],
    now_ms: Callable[[], int],
) -> tuple[str, Callable[[], Tokens]]:
    """Return the mechanism, and a function that generates the SASL tokens for a login."""

    def plain() -> Tokens:
        yield f"\0{jaas.options['username']}\0{jaas.options['password']}".encode()

    def oauthbearer() -> Tokens:
        seconds = now_ms() / 1000
        token = unsecured_token(
            {
                "sub": jaas.options["unsecuredLoginStringClaim_sub"],
                "iat": seconds,
                "exp": seconds + TOKEN_LIFETIME_SECONDS,
            }
        )
        challenge = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        if challenge:
            raise LoginError(f"the token was rejected: {challenge!r:.200}")

    def scram() -> Tokens:
        client: Any = scramp.ScramClient(
            [mechanism],
            jaas.options["username"],
            jaas.options["password"],
            c_nonce=random_bytes(NONCE_BYTES).hex(),
        )
        try:
            client.set_server_first((yield client.get_client_first().encode()).decode())
            client.set_server_final((yield client.get_client_final().encode()).decode())
        except (scramp.ScramException, UnicodeDecodeError) as error:
            raise LoginError(f"invalid SCRAM message: {error}") from error

    return mechanism, {PLAIN: plain, OAUTHBEARER: oauthbearer}.get(mechanism, scram)


class SaslClientAuthenticator:
    """The login on one connection. `client` is the return value of `sasl_client`."""

    def __init__(self, client: tuple[str, Callable[[], Tokens]], *, client_id: str) -> None:
        self._mechanism, self._new_tokens = client
        self._client_id = client_id
        self._tokens: Tokens | None = None
        self._is_in_progress = False
        self._log_in_ms: int | None = 0

    def begin(self) -> bytes | None:
        """Return the first request, or None if a login is in progress."""
        if self._is_in_progress:
            return None
        self._is_in_progress = True
        self._tokens = None
        return self._request(
            SASL_HANDSHAKE_KEY,
            SASL_HANDSHAKE_VERSIONS[-1],
            SaslHandshakeRequest(mechanism=self._mechanism),
        )

    def must_log_in(self, now_ms: int) -> bool:
        """Return whether the broker must log in.

        A login is required if there is no session or the session is about to expire.
        """
        return self._log_in_ms is not None and now_ms >= self._log_in_ms

    def receive(self, frame: bytes, now_ms: int) -> bytes | None:
        """Evaluate a response and return the next request, or None if the login is complete.

        Raises: LoginError.
        """
        try:
            if self._tokens is None:
                return self._handle_handshake(frame)
            return self._handle_challenge(frame, now_ms)
        except MalformedRequestError as error:
            raise LoginError(f"the response cannot be decoded: {error}") from error

    def _handle_handshake(self, frame: bytes) -> bytes:
        response = self._response(
            SASL_HANDSHAKE_KEY, SASL_HANDSHAKE_VERSIONS[-1], SaslHandshakeResponse, frame
        )
        if response.error_code is not ErrorCode.none:
            raise LoginError(
                f"SASL mechanism {self._mechanism} was rejected with {response.error_code.name}; "
                f"the enabled mechanisms are {', '.join(response.mechanisms)}"
            )
        self._tokens = self._new_tokens()
        return self._token(next(self._tokens))

    def _handle_challenge(self, frame: bytes, now_ms: int) -> bytes | None:
        response = self._response(
            SASL_AUTHENTICATE_KEY, SASL_AUTHENTICATE_VERSIONS[-1], SaslAuthenticateResponse, frame
        )
        if response.error_code is not ErrorCode.none:
            raise LoginError(
                f"the login was rejected with {response.error_code.name}: {response.error_message}"
            )
        assert self._tokens is not None
        try:
            return self._token(self._tokens.send(response.auth_bytes))
        except StopIteration:
            pass
        lifetime_ms = response.session_lifetime_ms
        self._log_in_ms = now_ms + int(lifetime_ms * SESSION_FRACTION) if lifetime_ms > 0 else None
        self._is_in_progress = False
        return None

    def _token(self, token: bytes) -> bytes:
        return self._request(
            SASL_AUTHENTICATE_KEY,
            SASL_AUTHENTICATE_VERSIONS[-1],
            SaslAuthenticateRequest(auth_bytes=token),
        )

    def _request(self, api_key: int, version: int, message: object) -> bytes:
        return request_frame(
            api_key=api_key,
            version=version,
            correlation_id=LOGIN_CORRELATION_ID,
            client_id=self._client_id,
            message=message,
        )

    @staticmethod
    def _response(api_key: int, version: int, message: type[Response], frame: bytes) -> Response:
        return read_response(api_key=api_key, version=version, message=message, frame=frame)
