"""A node's connections to other nodes.

`Peers` carries out the `SendRequest` and `CloseChannel` effects, and returns responses as events.
Each channel has one connection, which is opened for the first request. If the channel uses SASL,
the node authenticates first, and authenticates again before its session expires. Invariants: each
request produces one event. Responses are matched by correlation id. If a connection is lost, its
pending requests fail, and the next request opens a new connection. After `close`, no connections or
tasks remain.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
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
from broker_ref.security.sasl_client_authenticator import (
    LOGIN_CORRELATION_ID,
    LoginError,
    SaslClientAuthenticator,
)

CONNECT_TIMEOUT_SECONDS: Final = 10.0
RESPONSE_BYTES_MAX: Final = 1 << 30

_LENGTH: Final = struct.Struct(">i")
_CORRELATION_ID: Final = struct.Struct(">i")

OnEvent = Callable[[ResponseReceived | RequestFailed], None]


class Peers:
    """The channels of one node, for use within one event loop.

    `is_cut` and `drops_responses` are used for fault injection. If `is_cut` returns True, requests
    to the channel fail. If `drops_responses` returns True, responses from the channel are dropped,
    and the requests time out. `tls` returns the context for channels that use TLS, and `login`
    returns the authenticator for channels that use SASL.
    """

    def __init__(
        self,
        on_event: OnEvent,
        *,
        is_cut: Callable[[Channel], bool] = lambda _: False,
        drops_responses: Callable[[Channel], bool] = lambda _: False,
        tls: Callable[[Channel], ssl.SSLContext | None] = lambda _: None,
        login: Callable[[Channel], SaslClientAuthenticator | None] = lambda _: None,
    ) -> None:
        self._on_event = on_event
        self._is_cut = is_cut
        self._drops_responses = drops_responses
        self._tls = tls
        self._login = login
        self._loop = asyncio.get_running_loop()
        self._channels: dict[Channel, _Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def apply(self, effect: PeerEffect) -> None:
        """Carry out an effect.

        The resulting events are delivered in later iterations of the event loop.
        """
        if self._is_closed:
            return
        match effect:
            case SendRequest():
                self._send(effect)
            case CloseChannel():
                connection = self._channels.get(effect.channel)
                if connection is not None:
                    connection.abort("the channel was closed")

    def close(self) -> None:
        """Close all channels. No more events are delivered."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for connection in list(self._channels.values()):
            connection.abort("the node is stopping")
        self._channels.clear()

    def cut(self) -> None:
        """Close the channels for which `is_cut` returns True."""
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
                on_response=lambda event: self._handle_response(channel, event),
                on_lost=lambda lost, why: self._lost(channel, lost, why),
                login=self._login(channel),
            )
            self._channels[channel] = connection
            task = self._loop.create_task(self._connect(channel, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        connection.send(effect.request_id, effect.frame)

    async def _connect(self, channel: Channel, connection: _Connection) -> None:
        try:
            await asyncio.wait_for(
                self._loop.create_connection(
                    lambda: connection, channel.host, channel.port, ssl=self._tls(channel)
                ),
                CONNECT_TIMEOUT_SECONDS,
            )
        except (OSError, TimeoutError) as error:
            connection.abort(
                f"{channel.host}:{channel.port}: {str(error) or 'the connection timed out'}"
            )

    def _handle_response(self, channel: Channel, event: ResponseReceived | RequestFailed) -> None:
        if not self._drops_responses(channel):
            self._notify(event)

    def _lost(self, channel: Channel, connection: _Connection, reason: str) -> None:
        if self._channels.get(channel) is connection:
            del self._channels[channel]
        self._fail(connection.in_flight(), reason)

    def _fail(self, request_ids: list[RequestId], reason: str) -> None:
        for request_id in request_ids:
            event = RequestFailed(request_id=request_id, reason=reason)
            self._loop.call_soon(self._notify, event)

    def _notify(self, event: ResponseReceived | RequestFailed) -> None:
        if not self._is_closed:
            self._on_event(event)


class _Connection(asyncio.Protocol):
    """The connection of a channel. Requests are queued until the connection is open."""

    def __init__(
        self,
        *,
        on_response: OnEvent,
        on_lost: Callable[[_Connection, str], None],
        login: SaslClientAuthenticator | None = None,
    ) -> None:
        self._on_response = on_response
        self._on_lost = on_lost
        self._login = login
        self._time = asyncio.get_running_loop().time
        self._transport: asyncio.Transport | None = None
        self._in_flight: dict[RequestId, None] = {}
        self._unsent: list[bytes] = []
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_lost = False

    def send(self, request_id: RequestId, frame: bytes) -> None:
        self._in_flight[request_id] = None
        data = _LENGTH.pack(len(frame)) + frame
        self._unsent.append(data)
        if self._transport is not None:
            self._log_in_or_send(self._transport)

    def in_flight(self) -> list[RequestId]:
        """Return the ids of all requests that have no response yet."""
        return list(self._in_flight)

    def abort(self, reason: str) -> None:
        """Close the connection immediately."""
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
        self._log_in_or_send(transport)

    def _log_in_or_send(self, transport: asyncio.Transport) -> None:
        """Authenticate if this is necessary. Otherwise, send the queued requests."""
        if self._login is not None and self._login.must_log_in(int(self._time() * 1000)):
            first = self._login.begin()
            if first is not None:
                transport.write(_LENGTH.pack(len(first)) + first)
            return
        transport.writelines(self._unsent)
        self._unsent.clear()

    def _receive_login(self, login: SaslClientAuthenticator, frame: bytes) -> None:
        assert self._transport is not None
        try:
            following = login.receive(frame, int(self._time() * 1000))
        except LoginError as error:
            self.abort(str(error))
            return
        if following is not None:
            self._transport.write(_LENGTH.pack(len(following)) + following)
        else:
            self._log_in_or_send(self._transport)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        while (frame := self._next_frame()) is not None:
            (request_id,) = _CORRELATION_ID.unpack_from(frame)
            if self._login is not None and request_id == LOGIN_CORRELATION_ID:
                self._receive_login(self._login, frame)
                continue
            if request_id not in self._in_flight:
                self.abort(f"the response has an unknown correlation id ({request_id})")
                return
            del self._in_flight[request_id]
            self._on_response(ResponseReceived(request_id=request_id, frame=frame))

    def _next_frame(self) -> bytes | None:
        """Return the next complete response, or None."""
        if self._is_lost or self._pieces_bytes < _LENGTH.size:
            return None
        if len(self._pieces[0]) < _LENGTH.size:
            self._pieces = [b"".join(self._pieces)]
        (length,) = _LENGTH.unpack_from(self._pieces[0])
        if not _CORRELATION_ID.size <= length <= RESPONSE_BYTES_MAX:
            self.abort(f"the response has an invalid length of {length}")
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
            self._on_lost(self, f"the connection was lost: {exc or 'closed by the other side'}")
