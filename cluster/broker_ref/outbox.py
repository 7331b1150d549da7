"""The requests that a node sends to other nodes, and the callbacks for their responses.

All requests of the sans-IO core are sent through an `Outbox`. A component passes a message and two
callbacks to `send`: one for the response and one for a failure. The node returns the requests as
effects and passes the resulting events to `Outbox.handle`. A response that cannot be decoded counts
as a failure. Invariant: unless the node is closed first, exactly one of the two callbacks is
called, exactly once. `send` itself never calls a callback. Source: Kafka's `NetworkClient` and
`InterBrokerSendThread`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final, TypeVar

from broker_ref.events import (
    Channel,
    CloseChannel,
    PeerEffect,
    RequestFailed,
    RequestId,
    ResponseReceived,
    SendRequest,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.frames import read_response, request_frame
from broker_ref.protocol.reader import MalformedRequestError

Response = TypeVar("Response")

REQUEST_IDS: Final = 2**31
"""Correlation ids are non-negative 32-bit integers and wrap around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlightRequest:
    channel: Channel
    api_key: int
    version: int
    response: type[Any]
    on_response: Callable[[Any], None]
    on_failure: Callable[[str], None]
    timeout_ms: int


class Outbox:
    """The requests in flight.

    The client id in a request consists of `client_id` and the purpose of the channel.
    """

    def __init__(self, *, client_id: str) -> None:
        self._client_id = client_id
        self._next_id: RequestId = 0
        self._now_ms = 0
        self._awaited: dict[RequestId, _InFlightRequest] = {}
        self._deadlines: list[tuple[int, RequestId]] = []
        self._effects: list[PeerEffect] = []

    def send(
        self,
        channel: Channel,
        *,
        api_key: int,
        version: int,
        request: object,
        response: type[Response],
        on_response: Callable[[Response], None],
        on_failure: Callable[[str], None],
        timeout_ms: int,
    ) -> None:
        """Send a request; `response` is the message class of the response.

        If no response arrives within `timeout_ms`, the channel is closed and `on_failure` is
        called.
        """
        request_id = self._next_id
        self._next_id = (self._next_id + 1) % REQUEST_IDS
        frame = request_frame(
            api_key=api_key,
            version=version,
            correlation_id=request_id,
            client_id=f"{self._client_id}-{channel.purpose}",
            message=request,
        )
        self._awaited[request_id] = _InFlightRequest(
            channel=channel,
            api_key=api_key,
            version=version,
            response=response,
            on_response=on_response,
            on_failure=on_failure,
            timeout_ms=timeout_ms,
        )
        heapq.heappush(self._deadlines, (self._now_ms + timeout_ms, request_id))
        self._effects.append(SendRequest(channel=channel, request_id=request_id, frame=frame))

    def close_channel(self, channel: Channel) -> None:
        """Close a channel; its in-flight requests fail."""
        self._effects.append(CloseChannel(channel=channel))

    def take_effects(self) -> list[PeerEffect]:
        """Return the effects that were stored since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def advance(self, now_ms: int) -> None:
        """Set the current time and fail the requests whose timeouts have expired."""
        self._now_ms = max(self._now_ms, now_ms)
        while self._deadlines and self._deadlines[0][0] <= self._now_ms:
            _, request_id = heapq.heappop(self._deadlines)
            awaited = self._awaited.pop(request_id, None)
            if awaited is not None:
                self.close_channel(awaited.channel)
                awaited.on_failure(f"no response within {awaited.timeout_ms} ms")

    def handle(self, event: ResponseReceived | RequestFailed) -> None:
        """Call the callback of the request in `event`. Ignore requests that are not in flight."""
        awaited = self._awaited.pop(event.request_id, None)
        if awaited is None:
            return
        if isinstance(event, RequestFailed):
            awaited.on_failure(event.reason)
            return
        try:
            response = read_response(
                api_key=awaited.api_key,
                version=awaited.version,
                message=awaited.response,
                frame=event.frame,
            )
        except MalformedRequestError as error:
            self.close_channel(awaited.channel)
            awaited.on_failure(f"the response cannot be decoded: {error}")
            return
        awaited.on_response(response)

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next request timeout, or None if no requests are in flight."""
        while self._deadlines and self._deadlines[0][1] not in self._awaited:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None
