"""Connections from a node to other nodes.

Purpose: perform `SendRequest` and `CloseChannel`: one connection per channel, opened on demand, and
responses returned as events. Invariants: each request ends in one event; responses are matched by
correlation id; if a channel breaks, its pending requests fail and the next request opens it again;
nothing remains after `close`. Must not know: what is requested.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

from broker_ref.events import (
    Channel,
    CloseChannel,
    PeerEffect,
    RequestFailed,
    RequestId,
    ResponseReceived,
    SendRequest,
)

CONNECT_TIMEOUT_SECONDS: Final = 10.0
RESPONSE_BYTES_MAX: Final = 1 << 30

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")

OnEvent = Callable[[ResponseReceived | RequestFailed], None]


class Peers:
    """The channels of one node, for use within one event loop.

    `is_cut` returns whether requests of a channel are dropped, `is_deaf` whether its responses are
    (injected faults). Such requests fail at their timeout.
    """

    def __init__(
        self,
        on_event: OnEvent,
        *,
        is_cut: Callable[[Channel], bool] = lambda _: False,
        is_deaf: Callable[[Channel], bool] = lambda _: False,
    ) -> None:
        self._on_event = on_event
        self._is_cut = is_cut
        self._is_deaf = is_deaf
        self._loop = asyncio.get_running_loop()
        self._channels: dict[Channel, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def apply(self, effect: PeerEffect) -> None:
        """Perform an effect; its events come in later iterations of the loop."""
        if self._is_closed:
            return
        match effect:
            case SendRequest():
                self._send(effect)
            case CloseChannel():
                connection = self._channels.get(effect.channel)
                if connection is not None:
                    connection.abort("given up")

    def close(self) -> None:
        """Drop all channels; no more events are delivered."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for connection in list(self._channels.values()):
            connection.abort("the node is stopping")
        self._channels.clear()

    def cut(self) -> None:
        """Break the channels for which `is_cut` is now true."""
        for channel, connection in list(self._channels.items()):
            if self._is_cut(channel):
                connection.abort("the link is cut")

    def _send(self, effect: SendRequest) -> None:
        channel = effect.channel
        if self._is_cut(channel):
            self._fail([effect.request_id], "the link is cut")
            return
        connection = self._channels.get(channel)
        if connection is None:
            connection = _Connection(
                on_response=lambda event: self._answered(channel, event),
                on_lost=lambda lost, why: self._lost(channel, lost, why),
            )
            self._channels[channel] = connection
            task = self._loop.create_task(self._connect(channel, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        connection.send(effect.request_id, effect.frame)

    async def _connect(self, channel: Channel, connection: _Connection) -> None:
        try:
            await asyncio.wait_for(
                self._loop.create_connection(lambda: connection, channel.host, channel.port),
                CONNECT_TIMEOUT_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            connection.abort(
                f"{channel.host}:{channel.port}: {str(error) or 'no connection in time'}"
            )

    def _answered(self, channel: Channel, event: ResponseReceived | RequestFailed) -> None:
        if not self._is_deaf(channel):
            self._notify(event)

    def _lost(self, channel: Channel, connection: _Connection, reason: str) -> None:
        if self._channels.get(channel) is connection:
            del self._channels[channel]
        self._fail(connection.unanswered(), reason)

    def _fail(self, request_ids: list[RequestId], reason: str) -> None:
        for request_id in request_ids:
            event = RequestFailed(request_id=request_id, reason=reason)
            self._loop.call_soon(self._notify, event)

    def _notify(self, event: ResponseReceived | RequestFailed) -> None:
        if not self._is_closed:
            self._on_event(event)


class _Connection(asyncio.Protocol):
    """The connection of a channel; requests are queued until it is open."""

    def __init__(
        self,
        *,
        on_response: OnEvent,
        on_lost: Callable[[_Connection, str], None],
    ) -> None:
        self._on_response = on_response
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._unanswered: dict[RequestId, None] = {}
        self._unsent: list[bytes] = []
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_lost = False

    def send(self, request_id: RequestId, frame: bytes) -> None:
        self._unanswered[request_id] = None
        data = _LENGTH.pack(len(frame)) + frame
        if self._transport is None:
            self._unsent.append(data)
        else:
            self._transport.write(data)

    def unanswered(self) -> list[RequestId]:
        """Return the requests without a response."""
        return list(self._unanswered)

    def abort(self, reason: str) -> None:
        """Break the connection immediately."""
        if self._is_lost:
            return
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self, reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._is_lost:
            transport.abort()
            return
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.writelines(self._unsent)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        while (frame := self._next_frame()) is not None:
            (request_id,) = _CORRELATION_ID.unpack_from(frame)
            if request_id not in self._unanswered:
                self.abort(f"response with an unknown correlation id ({request_id})")
                return
            del self._unanswered[request_id]
            self._on_response(ResponseReceived(request_id=request_id, frame=frame))

    def _next_frame(self) -> bytes | None:
        """Return the next whole response; its pieces are joined at the end."""
        if self._is_lost or self._pieces_bytes < _LENGTH.size:
            return None
        if len(self._pieces[0]) < _LENGTH.size:
            self._pieces = [b"".join(self._pieces)]
        (length,) = _LENGTH.unpack_from(self._pieces[0])
        if not _CORRELATION_ID.size <= length <= RESPONSE_BYTES_MAX:
            self.abort(f"invalid response length {length}")
            return None
        end = _LENGTH.size + length
        if self._pieces_bytes < end:
            return None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        rest = data[end:]
        self._pieces = [rest] if rest else []
        self._pieces_bytes = len(rest)
        return data[_LENGTH.size : end]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._on_lost(self, f"the connection broke: {exc or 'closed by the other side'}")
