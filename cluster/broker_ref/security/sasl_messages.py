"""The messages of SaslHandshake (17) and SaslAuthenticate (36)."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass

API_VERSIONS_KEY: Final = 18
SASL_HANDSHAKE_KEY: Final = 17
SASL_HANDSHAKE_VERSIONS: Final = range(2)
SASL_AUTHENTICATE_KEY: Final = 36
SASL_AUTHENTICATE_VERSIONS: Final = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    """The mechanism that the client has chosen."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    """The enabled mechanisms."""

    error_code: ErrorCode = ErrorCode.none
    mechanisms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """A token of the client's mechanism."""

    auth_bytes: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """A challenge. `session_lifetime_ms` is 0 if the client need not authenticate again."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = ""  # Kafka does not use null.
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0
