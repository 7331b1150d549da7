"""Implements SASL mechanisms and the authentication exchange (KIP-43, KIP-152).

`SaslClient` and `authentication` are state machines without I/O. `authentication` yields requests
and receives their responses. Invariant: no error and no `repr` contains a password or a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from pyspark_kafka.errors import AuthenticationError
from pyspark_kafka.tokens import Token
from pyspark_kafka.wire.connection import Authentication, entity_request
from pyspark_kafka.wire.error_codes import format_code
from pyspark_kafka.wire.versions import Api, BrokerVersions

SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_ROUNDS_MAX: Final = 10
_MESSAGE_CHARACTERS_MAX: Final = 500
_MECHANISM_OPTION: Final = "kafka.sasl.mechanism"
_LOGIN_OPTION: Final = "kafka.sasl.jaas.config"
_PROTOCOL_OPTION: Final = "kafka.security.protocol"
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")


class SaslError(Exception):
    """The broker violated the SASL mechanism's protocol or failed to prove its identity."""


class SaslClient(Protocol):
    """The client side of one SASL exchange (`SaslClient` in Java)."""

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Return the response to a challenge, or None if the authentication is complete.

        The first challenge is empty. Raises `SaslError`.
        """


class SaslCredentials(Protocol):
    """A SASL mechanism and its credentials. `advice` names the options to check."""

    @property
    def mechanism(self) -> str: ...

    @property
    def username(self) -> str: ...

    @property
    def advice(self) -> str: ...

    def prepare(self) -> None:
        """Obtain a token before a connection is opened. Raises `KafkaError`.

        Obtaining a token can take longer than the timeout for opening a connection.
        """

    def begin(self) -> SaslClient:
        """Start a SASL exchange. Raises `KafkaError` if a token cannot be obtained."""


def authentication(credentials: SaslCredentials, versions: BrokerVersions) -> Authentication:
    """Yield the authentication requests for a connection. Raises `AuthenticationError`."""
    mechanism = credentials.mechanism
    client = credentials.begin()
    response = yield entity_request(
        Api.SASL_HANDSHAKE, versions.choose(Api.SASL_HANDSHAKE), mechanism=mechanism
    )
    _check_handshake(credentials, response)
    version = versions.choose(Api.SASL_AUTHENTICATE)
    challenge, lifetime_s = b"", 0.0
    for _ in range(_ROUNDS_MAX):
        try:
            answer = client.evaluate_challenge(challenge)
        except SaslError as error:
            raise _failed(credentials, str(error)) from None
        if answer is None:
            return lifetime_s
        response = yield entity_request(Api.SASL_AUTHENTICATE, version, auth_bytes=answer)
        if response.error_code is not ErrorCode.none:
            text = (response.error_message or "").removesuffix(".")[:_MESSAGE_CHARACTERS_MAX]
            reason = f"the broker returned {format_code(response.error_code)}"
            raise _failed(credentials, f"{reason}: {text}" if text else reason)
        if version > 0:
            lifetime_s = response.session_lifetime.total_seconds() or lifetime_s
        challenge = bytes(response.auth_bytes)
    raise _failed(credentials, f"the SASL exchange did not complete within {_ROUNDS_MAX} messages")


def _check_handshake(credentials: SaslCredentials, response: Any) -> None:
    code = response.error_code
    if code is ErrorCode.none:
        return
    if code is ErrorCode.unsupported_sasl_mechanism:
        mechanisms = sorted(response.mechanisms)
        supported = " and ".join(filter(None, (", ".join(mechanisms[:-1]), *mechanisms[-1:])))
        raise AuthenticationError(
            f"the broker does not support SASL mechanism {credentials.mechanism}."
            + (f" It supports {supported}." if supported else ""),
            advice=f"Set '{_MECHANISM_OPTION}' to a mechanism that the broker supports.",
            option=_MECHANISM_OPTION,
        )
    raise AuthenticationError(
        f"the broker rejected the SASL handshake with {format_code(code)}. The listener probably "
        "does not use SASL.",
        advice=f"Set '{_PROTOCOL_OPTION}' to 'PLAINTEXT' or 'SSL', or connect to a SASL listener.",
        option=_PROTOCOL_OPTION,
    )


def _failed(credentials: SaslCredentials, reason: str) -> AuthenticationError:
    return AuthenticationError(
        f"user {credentials.username!r} could not authenticate with {credentials.mechanism} "
        f"({reason}).",
        advice=credentials.advice,
        option=_LOGIN_OPTION,
    )


# --- mechanisms ---


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCredentials:
    """A user name and password for PLAIN (RFC 4616)."""

    username: str
    password: str = field(repr=False)
    mechanism: str = "PLAIN"

    @property
    def advice(self) -> str:
        return _LOGIN_ADVICE

    def prepare(self) -> None:
        pass

    def begin(self) -> SaslClient:
        return _PlainClient(f"\0{self.username}\0{self.password}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentials:
    """A user name and password for SCRAM (RFC 5802, RFC 7677)."""

    mechanism: str
    username: str
    password: str = field(repr=False)

    @property
    def advice(self) -> str:
        return (
            f"{_LOGIN_ADVICE} The user must have credentials for {self.mechanism}. Create them "
            "with kafka-configs.sh --alter --add-config."
        )

    def prepare(self) -> None:
        pass

    def begin(self) -> SaslClient:
        return ScramSaslClient(self.mechanism, self.username, self.password)


class TokenSource(Protocol):
    """A source of tokens.

    `principal` is the owner of the last token and is used in error messages.
    """

    @property
    def principal(self) -> str: ...

    def token(self) -> Token:
        """Return a valid token. Raises `KafkaError`."""

    def discard(self, token: Token) -> None:
        """Discard a token that a broker rejected, so that it is not returned again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthBearerCredentials:
    """A source of tokens for OAUTHBEARER (RFC 7628), with extensions (KIP-342)."""

    source: TokenSource
    mechanism: str = "OAUTHBEARER"

    @property
    def username(self) -> str:
        return self.source.principal

    @property
    def advice(self) -> str:
        return (
            "Check the credentials in 'kafka.sasl.jaas.config' or 'kafka.sasl.oauthbearer.*'. Also "
            "check that the brokers accept tokens with this issuer, audience and scope."
        )

    def prepare(self) -> None:
        self.source.token()

    def begin(self) -> SaslClient:
        token = self.source.token()
        return OAuthBearerSaslClient(
            token.value, token.extensions, lambda: self.source.discard(token)
        )


_LOGIN_ADVICE: Final = (
    "Check the user name and the password in 'kafka.sasl.jaas.config', or 'kafka.sasl.username' "
    "and 'kafka.sasl.password'."
)


class _PlainClient:
    def __init__(self, message: bytes) -> None:
        self._message: bytes | None = message

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:  # noqa: ARG002, is empty
        message, self._message = self._message, None
        return message


class ScramSaslClient:
    """The client side of SCRAM, without channel binding. Verifies the broker's signature.

    `nonce` is random unless a test sets it. `username` and `password` must be values that SASLprep
    does not change.
    """

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: str | None = None
    ) -> None:
        from scramp import ScramClient  # noqa: PLC0415, only for SCRAM

        self._client = ScramClient([mechanism], username, password, c_nonce=nonce)
        self._messages = 0

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        from scramp import ScramException  # noqa: PLC0415

        self._messages += 1
        try:
            if self._messages == 1:
                return str(self._client.get_client_first()).encode()
            text = challenge.decode()
            if self._messages == 2:
                self._client.set_server_first(text)
                return str(self._client.get_client_final()).encode()
            self._client.set_server_final(text)
        except (ScramException, ValueError) as error:
            raise SaslError(f"the broker sent an invalid SCRAM message: {error}") from None
        return None


def is_kept_by_saslprep(text: str) -> bool:
    """Return whether `scramp` accepts a user name or password without changing it.

    RFC 5802 requires normalization. Kafka does not normalize these values, but `scramp` does, so a
    value that `scramp` changes would never match the value in Kafka.
    """
    from scramp import ScramException  # noqa: PLC0415
    from scramp.utils import saslprep  # noqa: PLC0415

    try:
        return bool(saslprep(text) == text)
    except ScramException:
        return False


class OAuthBearerSaslClient:
    """The client side of OAUTHBEARER (RFC 7628).

    If the broker rejects the token, the client calls `on_rejection` and sends one more message. The
    broker waits for this message before it ends the exchange.
    """

    def __init__(
        self,
        token: str,
        extensions: Mapping[str, str],
        on_rejection: Callable[[], None] = lambda: None,
    ) -> None:
        self._token = token
        self._extensions = extensions
        self._on_rejection = on_rejection
        self._is_sent = False

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        if self._is_sent:
            if not challenge:
                return None
            self._on_rejection()
            return b"\x01"
        self._is_sent = True
        if not is_bearer_token(self._token):
            raise SaslError("the token contains characters that are not allowed in a bearer token")
        fields = {"auth": f"Bearer {self._token}", **self._extensions}
        pairs = "".join(f"{name}={value}\x01" for name, value in fields.items())
        return f"n,,\x01{pairs}\x01".encode()


def is_bearer_token(token: str) -> bool:
    """Return whether OAUTHBEARER can send this token (RFC 6750, 2.1)."""
    return _TOKEN.fullmatch(token) is not None


def check_extensions(extensions: Mapping[str, str]) -> str | None:
    """Return the reason why OAUTHBEARER cannot send these extensions, or None if it can."""
    for name, value in extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name):
            return f"{json.dumps(name)} is not a valid extension name"
        if not _EXTENSION_VALUE.fullmatch(value):
            return f"the value of extension {name!r} contains invalid characters"
    return None
