"""Decodes frames, calls handlers and sends responses, for brokers and the controller.

A request that cannot be completed immediately waits in a purgatory. Invariants: each frame results
in exactly one effect, immediately or later, and no frame causes `serve` to raise an exception.
Effects are stored until `take_effects` is called, so an exception in one request does not discard
the response to another request. Source: `kafka.server.KafkaApis.handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Call, CloseConnectionResponse, NoOpResponse, Wait
from broker_ref.events import (
    CloseConnection,
    ConnectionId,
    Effect,
    FrameReceived,
    NoResponse,
    SendFrame,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.error_responses import error_frame
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.frames import (
    RequestHeader,
    finish_header,
    read_prefix,
    request_schema,
    response_frame,
)
from broker_ref.protocol.reader import Cursor, MalformedRequestError, read_message
from broker_ref.replication.purgatory import Completion, Failed, Purgatory
from broker_ref.security.authorizer import AuthHelper, StandardAuthorizer
from broker_ref.security.principals import ANONYMOUS, Principal
from broker_ref.security.sasl_messages import API_VERSIONS_KEY

Encode = Callable[[bytes], bytes]
"""A function that wraps a response frame before it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client: its address without a port, and the listener to which it is connected.

    If `is_node` is True, the client is a node of the cluster, and is allowed to perform all
    operations.
    """

    host: str = ""
    listener: str = "PLAINTEXT"
    principal: Principal = ANONYMOUS
    is_node: bool = False


UNKNOWN_CLIENT: Final = Client()

_UNAUTHENTICATED_ELEMENTS_MAX: Final = 1_000
"""The maximum number of array elements in a request that is not allowed during the login.

The error response contains the elements again, so a larger request would cost much CPU time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request whose response is pending, with its connection, header and client.

    If `drops_response` is True, the connection is closed and the response is not sent.
    """

    connection_id: ConnectionId
    header: RequestHeader
    client: Client = UNKNOWN_CLIENT
    wrap: Encode | None = None
    drops_response: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded request with its API, its message and the original frame."""

    pending: PendingRequest
    api: Api[Any]
    message: Any
    frame: bytes


class Dispatcher:
    """Serves the requests that one node receives.

    `context` is the first argument of handlers. `unsupported` returns the response to an
    ApiVersions request with an unsupported version. `authorizer` checks whether a client is allowed
    to perform an operation. If `authorizer` is None, all operations are allowed. `admit` receives
    each decoded request and calls `handle` to serve it.
    """

    def __init__(
        self,
        apis: Mapping[int, Api[Any]],
        context: object,
        *,
        unsupported: Callable[[], object],
        authorizer: StandardAuthorizer | None = None,
    ) -> None:
        self._apis = apis
        self._context = context
        self._unsupported = unsupported
        self._authorizer = authorizer
        self.admit: Callable[[Request, int], None] = self.handle
        self._purgatory: Purgatory[PendingRequest] = Purgatory()
        self._effects: list[Effect] = []
        self._clients: dict[ConnectionId, Client] = {}

    def opened(self, connection_id: ConnectionId, client: Client) -> None:
        """Store a client that has connected, or whose principal has changed."""
        self._clients[connection_id] = client

    def serve(
        self,
        event: FrameReceived,
        now_ms: int,
        *,
        wrap: Encode | None = None,
        drops_response: bool = False,
        client: Client | None = None,
    ) -> None:
        """Serve a request frame. The response may be sent later.

        `wrap`, `drops_response` and `client` set fields of the `PendingRequest`. By default,
        `client` is the client that opened the connection.
        """
        connection_id = event.connection_id
        try:
            cursor = Cursor(event.frame)
            header = read_prefix(cursor)
            api = self._apis.get(header.api_key)
            if api is None or header.api_version not in api.versions:
                self._refuse_version(connection_id, api, header)
                return
            header, message = _decode(api, header, cursor)
        except MalformedRequestError as error:
            self.close_connection(connection_id, str(error))
            return
        pending = PendingRequest(
            connection_id=connection_id,
            header=header,
            client=client or self._clients.get(connection_id, UNKNOWN_CLIENT),
            wrap=wrap,
            drops_response=drops_response,
        )
        self.admit(Request(pending=pending, api=api, message=message, frame=event.frame), now_ms)

    def permits(self, request: Request) -> bool:
        """Return whether the client may send a request; if not, respond with an error code."""
        return self._permits(request, self.auth(request.pending.client))

    def _permits(self, request: Request, auth: AuthHelper) -> bool:
        try:
            for requirement in request.api.requires:
                requirement.check(auth, request.message)
        except ApiError as error:
            self.refuse(request, error.error_code, error.message)
            return False
        return True

    def auth(self, client: Client) -> AuthHelper:
        """Return the helper that checks what a client is authorized to do."""
        return AuthHelper(
            authorizer=None if client.is_node else self._authorizer,
            principal=client.principal,
            host=client.host,
        )

    def handle(self, request: Request, now_ms: int) -> None:
        """Call the handler of a request if the client may send the request."""
        header = request.pending.header
        client = request.pending.client
        auth = self.auth(client)
        if not self._permits(request, auth):
            return
        call = Call(
            version=header.api_version,
            client_id=header.client_id,
            now_ms=now_ms,
            client_host=client.host,
            listener=client.listener,
            principal=client.principal,
            auth=auth,
        )
        outcome = request.api.handle(self._context, call, request.message)
        self._handle_outcome(request.pending, outcome)

    def send_response(self, pending: PendingRequest, frame: bytes) -> None:
        """Send an encoded response."""
        if pending.drops_response:
            self.close_connection(pending.connection_id, "an injected fault dropped the response")
            return
        frame = frame if pending.wrap is None else pending.wrap(frame)
        self._effects.append(SendFrame(connection_id=pending.connection_id, frame=frame))

    def refuse(self, request: Request, error_code: ErrorCode, message: str | None = None) -> None:
        """Respond with an error code, or close the connection if no response is expected.

        The error code applies to every item in the request.
        """
        header = request.pending.header
        frame = error_frame(
            request.message,
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            error_code=error_code,
            message=message,
        )
        if frame is None:
            reason = f"{error_code.name} for a request that expects no response"
            self.close_connection(request.pending.connection_id, reason)
        else:
            self.send_response(request.pending, frame)

    def add_effect(self, effect: Effect) -> None:
        """Store an effect from another component, after the effects that are already stored."""
        self._effects.append(effect)

    def api_versions(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the response to an ApiVersions request, and whether the request is valid.

        The client is not yet authenticated. Raises: MalformedRequestError.
        """
        cursor = Cursor(frame)
        header = read_prefix(cursor)
        api = self._apis[API_VERSIONS_KEY]
        if header.api_version not in api.versions:
            return self._unsupported_api_versions(api, header), False
        header, message = _decode(api, header, cursor)
        call = Call(version=header.api_version, client_id=header.client_id, now_ms=0)
        response = api.handle(self._context, call, message)
        is_valid = getattr(response, "error_code", None) is ErrorCode.none
        return _encoded(header, response), is_valid

    def illegal_sasl_state(self, frame: bytes) -> bytes | None:
        """Return the error response to a request that is not allowed during authentication.

        Return None if the API or version is not supported, or if the request expects no response.
        Raises: MalformedRequestError.
        """
        cursor = Cursor(frame, elements_left=_UNAUTHENTICATED_ELEMENTS_MAX)
        header = read_prefix(cursor)
        api = self._apis.get(header.api_key)
        if api is None or header.api_version not in api.versions:
            return None
        header, message = _decode(api, header, cursor)
        return error_frame(
            message,
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            error_code=ErrorCode.illegal_sasl_state,
        )

    def close_connection(self, connection_id: ConnectionId, reason: str) -> None:
        """Close the connection instead of sending a response."""
        self._effects.append(CloseConnection(connection_id=connection_id, reason=reason))

    def remove_requests(self, connection_id: ConnectionId) -> None:
        """Discard the waiting requests of a client that has disconnected."""
        self._clients.pop(connection_id, None)
        self._purgatory.remove_group(connection_id)

    def wake(self, keys: Collection[Hashable], now_ms: int) -> None:
        """Check the requests that are waiting for any of these keys."""
        self._complete(self._purgatory.check(keys, now_ms))

    def expire(self, now_ms: int) -> None:
        """Respond to requests whose deadline has passed."""
        self._complete(self._purgatory.expire(now_ms))

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of all waiting requests."""
        return self._purgatory.next_deadline_ms()

    def take_effects(self) -> list[Effect]:
        """Return the effects that were stored since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def _handle_outcome(self, pending: PendingRequest, outcome: object) -> None:
        match outcome:
            case Wait():
                self._purgatory.watch(
                    owner=pending,
                    operation=outcome.operation,
                    keys=outcome.keys,
                    deadline_ms=outcome.deadline_ms,
                    group=pending.connection_id,
                )
            case NoOpResponse():
                self._effects.append(NoResponse(connection_id=pending.connection_id))
            case Failed():
                self.close_connection(
                    pending.connection_id, "an internal error occurred in the request handler"
                )
            case CloseConnectionResponse():
                self.close_connection(pending.connection_id, outcome.reason)
            case _:
                self._respond(pending, outcome)

    def _complete(self, completions: list[Completion[PendingRequest]]) -> None:
        for completion in completions:
            self._handle_outcome(completion.owner, completion.message)

    def _respond(self, pending: PendingRequest, message: object) -> None:
        self.send_response(pending, _encoded(pending.header, message))

    def _unsupported_api_versions(self, api: Api[Any], header: RequestHeader) -> bytes:
        return response_frame(
            api_key=api.key,
            version=0,
            correlation_id=header.correlation_id,
            message=self._unsupported(),
        )

    def _refuse_version(
        self, connection_id: ConnectionId, api: Api[Any] | None, header: RequestHeader
    ) -> None:
        """Reject a request with an unsupported API or version.

        Respond to an ApiVersions request. For other requests, close the connection, as in Kafka.
        """
        if header.api_key == API_VERSIONS_KEY and api is not None:
            frame = self._unsupported_api_versions(api, header)
            self._effects.append(SendFrame(connection_id=connection_id, frame=frame))
            return
        served = (
            "the API is not supported"
            if api is None
            else f"versions {api.versions[0]} to {api.versions[-1]} are supported"
        )
        self.close_connection(
            connection_id,
            f"unsupported request with API key {header.api_key}, version {header.api_version}: "
            f"{served}",
        )


def _decode(api: Api[Any], header: RequestHeader, cursor: Cursor) -> tuple[RequestHeader, Any]:
    """Decode the rest of a request whose version is supported. Raises: MalformedRequestError."""
    schema = request_schema(api.key, header.api_version)
    header = finish_header(cursor, header, flexible=schema.__flexible__)
    message = read_message(schema, api.request, cursor)
    if api.validate is not None:
        api.validate(message)
    return header, message


def _encoded(header: RequestHeader, message: object) -> bytes:
    return response_frame(
        api_key=header.api_key,
        version=header.api_version,
        correlation_id=header.correlation_id,
        message=message,
    )
