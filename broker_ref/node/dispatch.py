"""Decodes frames, calls handlers and sends responses, for any node.

Purpose: decode a frame, call the handler of its API key, and keep requests that wait. Invariant:
each frame is answered by exactly one effect, immediately or later, and no input makes `serve`
raise. Effects are kept until they are taken, so an exception in one request does not lose the
response to another. Must not know: sockets, clocks, what a request means, or which node it serves.
Source: `kafka.server.KafkaApis.handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Call, Hangup, NoAnswer, Wait
from broker_ref.events import (
    CloseConnection,
    ConnectionId,
    Effect,
    FrameReceived,
    NoResponse,
    SendFrame,
)
from broker_ref.protocol.error_responses import error_frame
from broker_ref.protocol.frames import (
    RequestHeader,
    finish_header,
    read_prefix,
    request_schema,
    response_frame,
)
from broker_ref.protocol.reader import Cursor, MalformedRequestError, read_message
from broker_ref.replication.purgatory import Completion, Failed, Purgatory

API_VERSIONS_KEY: Final = 18


Encode = Callable[[bytes], bytes]
"""Wraps a response frame before it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A request that is being served: the connection and the header of its response.

    If `is_answer_lost`, the connection is closed instead of sending the response.
    """

    connection_id: ConnectionId
    header: RequestHeader
    wrap: Encode | None = None
    is_answer_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A decoded frame: header, API and message."""

    pending: PendingRequest
    api: Api[Any]
    message: Any
    frame: bytes


class Dispatcher:
    """The requests of one node.

    `context` is the first argument of handlers. `unsupported` answers an ApiVersions request of an
    unsupported version. `admit` gets each decoded request, and calls `handle` to serve it.
    """

    def __init__(
        self,
        apis: Mapping[int, Api[Any]],
        context: object,
        *,
        unsupported: Callable[[], object],
    ) -> None:
        self._apis = apis
        self._context = context
        self._unsupported = unsupported
        self.admit: Callable[[Request, int], None] = self.handle
        self._purgatory: Purgatory[PendingRequest] = Purgatory()
        self._effects: list[Effect] = []
        self._hosts: dict[ConnectionId, str] = {}

    def opened(self, connection_id: ConnectionId, peer: str) -> None:
        """Store the address, `host:port`, of a client that has connected."""
        self._hosts[connection_id] = peer.rpartition(":")[0]

    def serve(
        self,
        event: FrameReceived,
        now_ms: int,
        *,
        wrap: Encode | None = None,
        is_answer_lost: bool = False,
    ) -> None:
        """Answer a frame, immediately or later; for the options see `PendingRequest`."""
        connection_id = event.connection_id
        cursor = Cursor(event.frame)
        try:
            header = read_prefix(cursor)
            api = self._apis.get(header.api_key)
            if api is None or header.api_version not in api.versions:
                self._refuse_version(connection_id, api, header)
                return
            schema = request_schema(api.key, header.api_version)
            header = finish_header(cursor, header, flexible=schema.__flexible__)
            message = read_message(schema, api.request, cursor)
        except MalformedRequestError as error:
            self.close_connection(connection_id, str(error))
            return
        pending = PendingRequest(
            connection_id=connection_id, header=header, wrap=wrap, is_answer_lost=is_answer_lost
        )
        self.admit(Request(pending=pending, api=api, message=message, frame=event.frame), now_ms)

    def handle(self, request: Request, now_ms: int) -> None:
        """Call the handler of a request."""
        header = request.pending.header
        call = Call(
            version=header.api_version,
            client_id=header.client_id,
            now_ms=now_ms,
            client_host=self._hosts.get(request.pending.connection_id, ""),
        )
        outcome = request.api.handle(self._context, call, request.message)
        self._answer(request.pending, outcome)

    def send_response(self, pending: PendingRequest, frame: bytes) -> None:
        """Send an encoded response."""
        if pending.is_answer_lost:
            self.close_connection(pending.connection_id, "an injected fault drops the response")
            return
        frame = frame if pending.wrap is None else pending.wrap(frame)
        self._effects.append(SendFrame(connection_id=pending.connection_id, frame=frame))

    def refuse(self, request: Request, error_code: ErrorCode) -> None:
        """Answer everything in the request with an error code; closes the connection for acks=0."""
        header = request.pending.header
        frame = error_frame(
            request.message,
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            error_code=error_code,
        )
        if frame is None:
            reason = f"{error_code.name} for a request that has no response"
            self.close_connection(request.pending.connection_id, reason)
        else:
            self.send_response(request.pending, frame)

    def close_connection(self, connection_id: ConnectionId, reason: str) -> None:
        """Answer by closing the connection."""
        self._effects.append(CloseConnection(connection_id=connection_id, reason=reason))

    def forget(self, connection_id: ConnectionId) -> None:
        """Discard the waiting requests of a client that has disconnected."""
        self._hosts.pop(connection_id, None)
        self._purgatory.forget_where(lambda pending: pending.connection_id == connection_id)

    def wake(self, keys: Collection[Hashable], now_ms: int) -> None:
        """Check the requests that wait for any of these keys."""
        self._complete(self._purgatory.check(keys, now_ms))

    def expire(self, now_ms: int) -> None:
        """Answer the requests whose deadline has passed."""
        self._complete(self._purgatory.expire(now_ms))

    def next_deadline_ms(self) -> int | None:
        """Return the next deadline of a waiting request."""
        return self._purgatory.next_deadline_ms()

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def _answer(self, pending: PendingRequest, outcome: object) -> None:
        match outcome:
            case Wait():
                self._purgatory.watch(
                    owner=pending,
                    operation=outcome.operation,
                    keys=outcome.keys,
                    deadline_ms=outcome.deadline_ms,
                )
            case NoAnswer():
                self._effects.append(NoResponse(connection_id=pending.connection_id))
            case Failed():
                self.close_connection(
                    pending.connection_id, "an internal error occurred while serving the request"
                )
            case Hangup():
                self.close_connection(pending.connection_id, outcome.reason)
            case _:
                self._respond(pending, outcome)

    def _complete(self, completions: list[Completion[PendingRequest]]) -> None:
        for completion in completions:
            self._answer(completion.owner, completion.message)

    def _respond(self, pending: PendingRequest, message: object) -> None:
        header = pending.header
        frame = response_frame(
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            message=message,
        )
        self.send_response(pending, frame)

    def _refuse_version(
        self, connection_id: ConnectionId, api: Api[Any] | None, header: RequestHeader
    ) -> None:
        """Close the connection, as Kafka does, unless the request is ApiVersions."""
        if header.api_key == API_VERSIONS_KEY and api is not None:
            frame = response_frame(
                api_key=api.key,
                version=0,
                correlation_id=header.correlation_id,
                message=self._unsupported(),
            )
            self._effects.append(SendFrame(connection_id=connection_id, frame=frame))
            return
        served = (
            "this API is not served"
            if api is None
            else f"versions {api.versions[0]} to {api.versions[-1]} are served"
        )
        self.close_connection(
            connection_id,
            f"unsupported request: API key {header.api_key}, version {header.api_version}; "
            f"{served}",
        )
