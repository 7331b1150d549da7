"""Authenticates the clients of SASL listeners before their requests are served.

Passes the frames from a client to its `SaslServerAuthenticator` until the client is authenticated,
and again during re-authentication (KIP-368). Invariants: no other request from a client is served
before the client is authenticated. As in Kafka, the response to a failed authentication is delayed
by `connection.failed.authentication.delay.ms`, and the connection is then closed. If a request
arrives after the session has expired, the connection is closed. Source: `KafkaChannel` and
`SocketServer.Processor`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from broker_ref.events import (
    CloseConnection,
    ConnectionId,
    ConnectionOpened,
    FrameReceived,
    LimitFrames,
    NoResponse,
    SendFrame,
)
from broker_ref.node.dispatch import Client, Dispatcher
from broker_ref.protocol.frames import read_prefix
from broker_ref.protocol.reader import Cursor, MalformedRequestError
from broker_ref.schedule import Schedule
from broker_ref.security.hosts import host_address
from broker_ref.security.oauthbearer import ValidateToken
from broker_ref.security.principals import ANONYMOUS, Principal, distinguished_name
from broker_ref.security.sasl_messages import SASL_HANDSHAKE_KEY
from broker_ref.security.sasl_server_authenticator import (
    Disconnect,
    Fail,
    Respond,
    SaslServerAuthenticator,
    sasl_servers,
)
from broker_ref.security.scram import ScramCredential, ScramMechanism
from broker_ref.security.settings import ListenerSettings

logger = logging.getLogger(__name__)


def new_client(event: ConnectionOpened, listeners: Mapping[str, ListenerSettings]) -> Client:
    """Return the client of a new connection, before any SASL authentication. Raises: ValueError.

    If the client has a certificate, its principal is derived from the certificate. On a SASL
    listener, the certificate is ignored, so its subject does not have to match a mapping rule.
    """
    settings = listeners.get(event.listener)
    principal = ANONYMOUS
    if event.certificate is not None and settings is not None and settings.sasl is None:
        principal = Principal(settings.mapper.name(distinguished_name(event.certificate)))
    host = host_address(event.peer.rpartition(":")[0])
    return Client(host=host, listener=event.listener, principal=principal)


class Authentication:
    """The authenticators of all connections to SASL listeners of one node."""

    def __init__(
        self,
        *,
        listeners: Mapping[str, ListenerSettings],
        failure_delay_ms: int,
        dispatcher: Dispatcher,
        schedule: Schedule,
        credential: Callable[[ScramMechanism, str], ScramCredential | None],
        random_bytes: Callable[[int], bytes],
        token_validators: Mapping[str, ValidateToken] = MappingProxyType({}),
    ) -> None:
        """Store the SASL settings and mechanisms of the listeners.

        `token_validators` contains the validators of signed tokens, keyed by listener name.
        """
        self._sasl = {name: each.sasl for name, each in listeners.items() if each.sasl is not None}
        self._servers = {
            name: sasl_servers(
                each,
                credential=credential,
                random_bytes=random_bytes,
                validate_token=token_validators.get(name),
            )
            for name, each in self._sasl.items()
        }
        self._failure_delay_ms = failure_delay_ms
        self._dispatcher = dispatcher
        self._schedule = schedule
        self._connections: dict[ConnectionId, tuple[SaslServerAuthenticator, Client]] = {}

    def opened(self, connection_id: ConnectionId, client: Client) -> None:
        """Start authenticating a client if its listener uses SASL."""
        settings = self._sasl.get(client.listener)
        if settings is None:
            return
        authenticator = SaslServerAuthenticator(
            settings, servers=self._servers[client.listener], responder=self._dispatcher
        )
        self._connections[connection_id] = (authenticator, client)
        self._limit_frames(connection_id, settings.max_receive_bytes)

    def closed(self, connection_id: ConnectionId) -> None:
        """Remove the authenticator of a client that has disconnected."""
        self._connections.pop(connection_id, None)

    def admits(self, event: FrameReceived, now_ms: int) -> bool:
        """Handle the frame if it is part of the authentication.

        Return True if the dispatcher must handle the frame.
        """
        found = self._connections.get(event.connection_id)
        if found is None:
            return True
        authenticator, client = found
        if authenticator.is_complete:
            if not (_is_handshake(event.frame) and authenticator.begin_reauthentication(now_ms)):
                if authenticator.is_expired(now_ms):
                    self._close(event.connection_id, "the client's session has expired")
                    return False
                return True
            settings = self._sasl[client.listener]
            self._limit_frames(event.connection_id, settings.max_receive_bytes)
        self._authenticate(event, authenticator, client, now_ms)
        return False

    def _authenticate(
        self,
        event: FrameReceived,
        authenticator: SaslServerAuthenticator,
        client: Client,
        now_ms: int,
    ) -> None:
        connection_id = event.connection_id
        match authenticator.receive(event.frame, now_ms):
            case Respond(frame=None):
                self._dispatcher.add_effect(NoResponse(connection_id=connection_id))
            case Respond(frame=bytes() as frame):
                self._dispatcher.add_effect(SendFrame(connection_id=connection_id, frame=frame))
            case Disconnect(reason=reason):
                self._close(connection_id, reason)
            case Fail(reason=reason, frame=frame):
                self._fail(connection_id, reason, frame, now_ms)
        if authenticator.is_complete and authenticator.session is not None:
            principal = authenticator.session.principal
            logger.debug("Client %s is authenticated as %s", client.host, principal)
            self._dispatcher.opened(connection_id, dataclasses.replace(client, principal=principal))
            self._limit_frames(connection_id, None)

    def _fail(
        self, connection_id: ConnectionId, reason: str, frame: bytes | None, now_ms: int
    ) -> None:
        reason = f"authentication failed: {reason}"

        def close(_: int) -> None:
            if connection_id not in self._connections:
                return
            if frame is None:
                self._close(connection_id, reason)
            else:
                self._dispatcher.add_effect(
                    SendFrame(connection_id=connection_id, frame=frame, close_reason=reason)
                )

        if self._failure_delay_ms:
            self._schedule.at(now_ms + self._failure_delay_ms, close)
        else:
            close(now_ms)

    def _close(self, connection_id: ConnectionId, reason: str) -> None:
        self._dispatcher.add_effect(CloseConnection(connection_id=connection_id, reason=reason))

    def _limit_frames(self, connection_id: ConnectionId, bytes_max: int | None) -> None:
        self._dispatcher.add_effect(LimitFrames(connection_id=connection_id, bytes_max=bytes_max))


def _is_handshake(frame: bytes) -> bool:
    try:
        return read_prefix(Cursor(frame)).api_key == SASL_HANDSHAKE_KEY
    except MalformedRequestError:
        return False
