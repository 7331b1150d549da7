"""From a frame to its answer, for any node.

Purpose: read the frame, let the handler of its API key answer, and keep those who wait. Invariant:
every frame is answered by exactly one effect, now or later, and no bytes make `serve` raise.
Effects are kept until they are taken: an exception in one request takes no other's answer away.
What it must not know: sockets, clocks, what any request means, and which node it serves.
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
"""What is put around a response frame before it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A request that is being served: where its response goes, and in which form.

    Where `is_answer_lost`, the connection is closed in place of the response.
    """

    connection_id: ConnectionId
    header: RequestHeader
    wrap: Encode | None = None
    is_answer_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A frame, read: its header, its API and its message."""

    pending: Pending
    api: Api[Any]
    message: Any
    frame: bytes


class Dispatcher:
    """The requests of one node.

    `context` is what handlers get first. `unsupported` answers an ApiVersions request of a version
    that is not served. `admit` gets each request that could be read, and calls `handle` where its
    handler is to answer it.
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
        self._purgatory: Purgatory[Pending] = Purgatory()
        self._effects: list[Effect] = []
        self._hosts: dict[ConnectionId, str] = {}

    def opened(self, connection_id: ConnectionId, peer: str) -> None:
        """Note the address that a client has connected from, `host:port`."""
        self._hosts[connection_id] = peer.rpartition(":")[0]

    def serve(
        self,
        event: FrameReceived,
        now_ms: int,
        *,
        wrap: Encode | None = None,
        is_answer_lost: bool = False,
    ) -> None:
        """Answer a frame, now or later; the last two are those of `Pending`."""
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
        pending = Pending(
            connection_id=connection_id, header=header, wrap=wrap, is_answer_lost=is_answer_lost
        )
        self.admit(Request(pending=pending, api=api, message=message, frame=event.frame), now_ms)

    def handle(self, request: Request, now_ms: int) -> None:
        """Let the request's handler answer."""
        header = request.pending.header
        call = Call(
            version=header.api_version,
            client_id=header.client_id,
            now_ms=now_ms,
            client_host=self._hosts.get(request.pending.connection_id, ""),
        )
        outcome = request.api.handle(self._context, call, request.message)
        self._answer(request.pending, outcome)

    def send_response(self, pending: Pending, frame: bytes) -> None:
        """Answer with bytes that are a response already."""
        if pending.is_answer_lost:
            self.close_connection(pending.connection_id, "a fault loses the answer")
            return
        frame = frame if pending.wrap is None else pending.wrap(frame)
        self._effects.append(SendFrame(connection_id=pending.connection_id, frame=frame))

    def refuse(self, request: Request, error_code: ErrorCode) -> None:
        """Answer with one error code for all that was asked; Produce with acks=0 by closing."""
        header = request.pending.header
        frame = error_frame(
            request.message,
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            error_code=error_code,
        )
        if frame is None:
            reason = f"{error_code.name} for a request that has no answer"
            self.close_connection(request.pending.connection_id, reason)
        else:
            self.send_response(request.pending, frame)

    def close_connection(self, connection_id: ConnectionId, reason: str) -> None:
        """Answer by closing the connection."""
        self._effects.append(CloseConnection(connection_id=connection_id, reason=reason))

    def forget(self, connection_id: ConnectionId) -> None:
        """Drop what a client that is gone waits for."""
        self._hosts.pop(connection_id, None)
        self._purgatory.forget_where(lambda pending: pending.connection_id == connection_id)

    def wake(self, keys: Collection[Hashable], now_ms: int) -> None:
        """Ask those that wait for any of these."""
        self._complete(self._purgatory.check(keys, now_ms))

    def expire(self, now_ms: int) -> None:
        """Answer those whose deadline has come."""
        self._complete(self._purgatory.expire(now_ms))

    def next_deadline_ms(self) -> int | None:
        """When the next one expires."""
        return self._purgatory.next_deadline_ms()

    def take_effects(self) -> list[Effect]:
        """The answers made since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def _answer(self, pending: Pending, outcome: object) -> None:
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
                self.close_connection(pending.connection_id, "the node failed on the request")
            case Hangup():
                self.close_connection(pending.connection_id, outcome.reason)
            case _:
                self._respond(pending, outcome)

    def _complete(self, completions: list[Completion[Pending]]) -> None:
        for completion in completions:
            self._answer(completion.owner, completion.message)

    def _respond(self, pending: Pending, message: object) -> None:
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
        """Kafka closes the connection of a client that did not ask for the versions first."""
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
            "no such API" if api is None else f"versions {api.versions[0]} to {api.versions[-1]}"
        )
        self.close_connection(
            connection_id,
            f"a request of API key {header.api_key} in version {header.api_version}, of which "
            f"this node serves {served}",
        )
