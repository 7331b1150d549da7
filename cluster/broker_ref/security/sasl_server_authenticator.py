"""Authenticates a client of a SASL listener (Kafka's `SaslServerAuthenticator`).

Before a client is authenticated, it can only request the supported API versions, choose a mechanism
with SaslHandshake, and send the tokens of that mechanism. After SaslHandshake version 0, each token
is sent as a frame without a header. After later versions of SaslHandshake, each token is sent in a
SaslAuthenticate request. A client can authenticate again on the same connection, as the same
principal with the same mechanism (KIP-368). Invariant: `receive` does not raise on any input.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from broker_ref.frozen import dataclass
from broker_ref.protocol.frames import (
    RequestHeader,
    finish_header,
    read_prefix,
    request_schema,
    response_frame,
)
from broker_ref.protocol.reader import Cursor, MalformedRequestError, read_message
from broker_ref.security.oauthbearer import (
    OAuthBearerSaslServer,
    ValidateToken,
    unsecured_tokens,
)
from broker_ref.security.principals import Principal
from broker_ref.security.sasl_messages import (
    API_VERSIONS_KEY,
    SASL_AUTHENTICATE_KEY,
    SASL_AUTHENTICATE_VERSIONS,
    SASL_HANDSHAKE_KEY,
    SASL_HANDSHAKE_VERSIONS,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from broker_ref.security.sasl_server import (
    PlainSaslServer,
    SaslAuthenticationError,
    SaslError,
    SaslServer,
)
from broker_ref.security.scram import ScramCredential, ScramMechanism, ScramSaslServer
from broker_ref.security.settings import PLAIN, SaslSettings

REAUTHENTICATION_INTERVAL_MIN_MS: Final = 1000

Message = TypeVar("Message")


class SaslState(Enum):
    """The states of Kafka's `SaslServerAuthenticator`."""

    INITIAL_REQUEST = "INITIAL_REQUEST"
    HANDSHAKE_OR_VERSIONS_REQUEST = "HANDSHAKE_OR_VERSIONS_REQUEST"
    HANDSHAKE_REQUEST = "HANDSHAKE_REQUEST"
    AUTHENTICATE = "AUTHENTICATE"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    REAUTH_PROCESS_HANDSHAKE = "REAUTH_PROCESS_HANDSHAKE"
    REAUTH_BAD_MECHANISM = "REAUTH_BAD_MECHANISM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Respond:
    """Send a response frame, or no response if `frame` is None."""

    frame: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """After a delay, send the response, if any, and close the connection."""

    reason: str
    frame: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """Close the connection immediately."""

    reason: str


Outcome = Respond | Fail | Disconnect


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An authenticated client. `expires_ms` is None if the session does not expire."""

    principal: Principal
    mechanism: str
    expires_ms: int | None


class RequestResponder(Protocol):
    """Responds to requests that are not part of SASL. Both methods raise MalformedRequestError."""

    def api_versions(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the response to an ApiVersions request, and whether the request was valid."""

    def illegal_sasl_state(self, frame: bytes) -> bytes | None:
        """Return the error response to a request that is not allowed during authentication.

        Return None if the request has no error response.
        """


SaslServers = Callable[[str], SaslServer]
"""Returns the server side of the mechanism with this name."""


def sasl_servers(
    settings: SaslSettings,
    *,
    credential: Callable[[ScramMechanism, str], ScramCredential | None],
    random_bytes: Callable[[int], bytes],
    validate_token: ValidateToken | None = None,
) -> SaslServers:
    """Return a function that creates the server side of an enabled mechanism.

    `validate_token` validates signed tokens. If it is None, OAUTHBEARER uses unsecured tokens.
    """

    def create(name: str) -> SaslServer:
        scram = ScramMechanism.named(name)
        if scram is not None:
            return ScramSaslServer(
                scram,
                credential=lambda user: credential(scram, user),
                random_bytes=random_bytes,
            )
        jaas = settings.mechanisms[name].jaas
        if name == PLAIN:
            return PlainSaslServer(jaas)
        return OAuthBearerSaslServer(validate_token or unsecured_tokens(jaas))

    return create


class SaslServerAuthenticator:
    """The authentication of one connection. `session` is None until the client is authenticated."""

    def __init__(
        self, settings: SaslSettings, *, servers: SaslServers, responder: RequestResponder
    ) -> None:
        self.state = SaslState.INITIAL_REQUEST
        self.session: Session | None = None
        self._settings = settings
        self._servers = servers
        self._responder = responder
        self._server: SaslServer | None = None
        self._mechanism = ""
        self._uses_headers = False
        self._reauthentication_ms: int | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the client is authenticated and is not re-authenticating."""
        return self.state is SaslState.COMPLETE

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the session has expired."""
        expires_ms = None if self.session is None else self.session.expires_ms
        return expires_ms is not None and now_ms > expires_ms

    def begin_reauthentication(self, now_ms: int) -> bool:
        """Start a re-authentication. The caller then passes the SaslHandshake request to `receive`.

        Return False if the session never expires, or if the last re-authentication started less
        than a second ago.
        """
        if self.session is None or self.session.expires_ms is None:
            return False
        last_ms = self._reauthentication_ms
        if last_ms is not None and now_ms - last_ms < REAUTHENTICATION_INTERVAL_MIN_MS:
            return False
        self._reauthentication_ms = now_ms
        self._server = None
        self._uses_headers = False
        self.state = SaslState.REAUTH_PROCESS_HANDSHAKE
        return True

    def receive(self, frame: bytes, now_ms: int) -> Outcome:
        """Evaluate a frame from the client."""
        try:
            outcome = self._receive(frame, now_ms)
        except SaslAuthenticationError as error:
            outcome = Fail(reason=str(error))
        except SaslError as error:
            outcome = Disconnect(reason=f"authentication failed: {error}")
        except MalformedRequestError as error:
            outcome = Disconnect(reason=str(error))
        if not isinstance(outcome, Respond):
            self.state = SaslState.FAILED
        return outcome

    def _receive(self, frame: bytes, now_ms: int) -> Outcome:
        match self.state:
            case SaslState.AUTHENTICATE:
                return self._token(frame, now_ms)
            case SaslState.REAUTH_BAD_MECHANISM:
                assert self.session is not None
                return Fail(
                    reason=f"SASL mechanism '{self._mechanism}' requested by client is not "
                    "supported for re-authentication of mechanism "
                    f"'{self.session.mechanism}'"
                )
            case SaslState.COMPLETE | SaslState.FAILED:
                raise AssertionError(f"No frame is expected in state {self.state.name}.")
        return self._kafka_request(frame)

    # Handshake

    def _kafka_request(self, frame: bytes) -> Outcome:
        is_first = self.state is SaslState.INITIAL_REQUEST
        try:
            header = read_prefix(Cursor(frame))
            if header.api_key not in api_key_map:
                raise MalformedRequestError(f"unknown API key {header.api_key}")
        except MalformedRequestError as error:
            if is_first:
                return Fail(reason=f"the first request is not a Kafka request: {error}")
            raise
        if is_first:
            self.state = SaslState.HANDSHAKE_OR_VERSIONS_REQUEST
        if header.api_key == SASL_HANDSHAKE_KEY:
            return self._handshake(frame)
        if header.api_key != API_VERSIONS_KEY:
            return Fail(
                reason=f"Unexpected Kafka request of type {api_key_map[header.api_key].upper()} "
                "during SASL handshake."
            )
        if self.state is not SaslState.HANDSHAKE_OR_VERSIONS_REQUEST:
            return Disconnect(reason=f"unexpected ApiVersions request in state {self.state.name}")
        response, is_valid = self._responder.api_versions(frame)
        if is_valid:
            self.state = SaslState.HANDSHAKE_REQUEST
        return Respond(frame=response)

    def _handshake(self, frame: bytes) -> Outcome:
        header, request = _decode(frame, SASL_HANDSHAKE_VERSIONS, SaslHandshakeRequest)
        enabled = tuple(self._settings.mechanisms)
        is_enabled = request.mechanism in enabled
        error_code = ErrorCode.none if is_enabled else ErrorCode.unsupported_sasl_mechanism
        response = _encode(header, SaslHandshakeResponse(error_code=error_code, mechanisms=enabled))
        if not is_enabled:
            reason = f"Unsupported SASL mechanism {request.mechanism!r:.100}"
            return Fail(reason=reason, frame=response)
        self._uses_headers = header.api_version >= 1
        self._mechanism = request.mechanism
        if self.session is not None and self.session.mechanism != request.mechanism:
            self.state = SaslState.REAUTH_BAD_MECHANISM
        else:
            self._server = self._servers(request.mechanism)
            self.state = SaslState.AUTHENTICATE
        return Respond(frame=response)

    # Tokens

    def _token(self, frame: bytes, now_ms: int) -> Outcome:
        assert self._server is not None
        if not self._uses_headers:
            challenge = self._server.evaluate_response(frame, now_ms)
            if self._server.is_complete:
                self._complete(self._server, now_ms)
            return Respond(frame=challenge)
        header = read_prefix(Cursor(frame))
        if header.api_key != SASL_AUTHENTICATE_KEY:
            name = api_key_map.get(header.api_key, str(header.api_key)).upper()
            return Fail(
                reason=f"Unexpected Kafka request of type {name} during SASL authentication.",
                frame=self._responder.illegal_sasl_state(frame),
            )
        header, request = _decode(frame, SASL_AUTHENTICATE_VERSIONS, SaslAuthenticateRequest)
        try:
            challenge = self._server.evaluate_response(request.auth_bytes, now_ms)
            lifetime_ms = self._complete(self._server, now_ms) if self._server.is_complete else 0
        except SaslAuthenticationError as error:
            return self._failed(header, message=str(error), reason=str(error))
        except SaslError as error:
            what = "authentication" if self.session is None else "re-authentication"
            message = (
                f"Authentication failed during {what} due to invalid credentials with SASL "
                f"mechanism {self._mechanism}"
            )
            return self._failed(header, message=message, reason=f"{message}: {error}")
        response = SaslAuthenticateResponse(auth_bytes=challenge, session_lifetime_ms=lifetime_ms)
        return Respond(frame=_encode(header, response))

    def _failed(self, header: RequestHeader, *, message: str, reason: str) -> Fail:
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.sasl_authentication_failed, error_message=message
        )
        return Fail(reason=reason, frame=_encode(header, response))

    def _complete(self, server: SaslServer, now_ms: int) -> int:
        """Start a session, and return its lifetime in milliseconds, or 0 if it does not expire."""
        principal = Principal(server.authorization_id)
        previous = self.session
        if previous is not None and previous.principal != principal:
            raise SaslAuthenticationError(
                "Cannot change principals during re-authentication from "
                f"{previous.principal.type}.{previous.principal.name}: "
                f"{principal.type}.{principal.name}"
            )
        limits_ms = []
        if server.credential_expires_ms is not None:
            limits_ms.append(server.credential_expires_ms - now_ms)
        max_reauth_ms = self._settings.mechanisms[self._mechanism].max_reauth_ms
        if max_reauth_ms > 0:
            limits_ms.append(max_reauth_ms)
        lifetime_ms = max(min(limits_ms, default=0), 0)
        self.session = Session(
            principal=principal,
            mechanism=self._mechanism,
            expires_ms=now_ms + lifetime_ms if limits_ms else None,
        )
        self.state = SaslState.COMPLETE
        return lifetime_ms


def _decode(frame: bytes, versions: range, message: type[Message]) -> tuple[RequestHeader, Message]:
    """Decode a request.

    Raises: MalformedRequestError, including for versions that are not supported.
    """
    cursor = Cursor(frame)
    header = read_prefix(cursor)
    if header.api_version not in versions:
        raise MalformedRequestError(
            f"version {header.api_version} of API key {header.api_key} is not supported"
        )
    schema = request_schema(header.api_key, header.api_version)
    header = finish_header(cursor, header, flexible=schema.__flexible__)
    return header, read_message(schema, message, cursor)


def _encode(header: RequestHeader, message: object) -> bytes:
    return response_frame(
        api_key=header.api_key,
        version=header.api_version,
        correlation_id=header.correlation_id,
        message=message,
    )
