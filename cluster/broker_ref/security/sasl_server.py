"""The interface for the server side of a SASL mechanism, and the PLAIN mechanism.

A mechanism evaluates tokens from a client and returns challenges. Sources:
`javax.security.sasl.SaslServer`, `PlainSaslServer` and `PlainServerCallbackHandler`.
"""

from __future__ import annotations

import hmac
from typing import Final, Protocol

from broker_ref.security.jaas import JaasEntry

PLAIN_TOKENS: Final = 3


class SaslAuthenticationError(Exception):
    """The authentication has failed. The client receives the message of this exception."""


class SaslError(Exception):
    """Authentication has failed; the client receives a generic error message.

    The message of this exception is not sent to the client, because it may reveal, for example,
    whether a user exists.
    """


class SaslServer(Protocol):
    """The server side of a SASL mechanism for one authentication attempt.

    After the last token, `is_complete` is True and `authorization_id` is the client's user name.
    `credential_expires_ms` is the time at which the credential expires, or None if it never
    expires.
    """

    is_complete: bool
    authorization_id: str
    credential_expires_ms: int | None

    def evaluate_response(self, response: bytes, now_ms: int) -> bytes:
        """Return the next challenge. Raises: SaslAuthenticationError, SaslError."""


class PlainSaslServer:
    """The PLAIN mechanism (RFC 4616). The login module options `user_NAME` define the users."""

    def __init__(self, jaas: JaasEntry) -> None:
        self.is_complete = False
        self.authorization_id = ""
        self.credential_expires_ms: int | None = None
        self._jaas = jaas

    def evaluate_response(self, response: bytes, now_ms: int) -> bytes:
        """Check the name and the password of a user."""
        del now_ms
        tokens = response.decode(errors="replace").split("\0", PLAIN_TOKENS)
        if len(tokens) != PLAIN_TOKENS:
            raise SaslAuthenticationError(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(tokens)}"
            )
        requested_id, username, password = tokens
        if not username:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        expected = self._jaas.options.get(f"user_{username}")
        if expected is None or not hmac.compare_digest(password.encode(), expected.encode()):
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        check_authorization_id(requested_id, username)
        self.authorization_id = username
        self.is_complete = True
        return b""


def check_authorization_id(requested: str, username: str) -> None:
    """Raise SaslAuthenticationError if `requested` is neither empty nor `username`."""
    if requested and requested != username:
        raise SaslAuthenticationError(
            "Authentication failed: Client requested an authorization id that is different from "
            "username"
        )
