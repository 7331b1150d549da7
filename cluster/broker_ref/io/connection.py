"""A client connection, which receives requests and sends responses.

The connection implements Kafka's framing (a signed 32-bit big-endian length, followed by that many
bytes) on an asyncio transport. Invariants: a length is checked before any byte of the request is
stored. A request occupies memory for the bytes that have arrived plus at most one more buffer,
regardless of the declared length of the request. The node handles one request per connection at a
time. If a client stops reading its responses, the node stops handling requests from this client.

A large request is received in pieces that are joined at the end. Joining the pieces requires one
copy, but is four times as fast as growing a single buffer.

With TLS, asyncio calls `connection_made` after the handshake. The buffer size that a TLS transport
reports does not include the bytes in the write buffer of the underlying socket transport.
Therefore, the connection passes responses to the TLS transport in pieces, and waits while the
transport has paused writing.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Protocol

from broker_ref.events import ConnectionId
from broker_ref.io.memory import RequestMemory

FRAME_LENGTH_BYTES = 4

# The buffer of an idle connection. Most requests fit into this buffer. The buffers of 500 idle
# connections use 4 MiB.
IDLE_BUFFER_BYTES = 8 * 1024
_FIRST_PIECE_BYTES = 64 * 1024
_NEXT_PIECE_BYTES = 256 * 1024
# The size of a TLS transport's buffer, and of the response pieces that are passed to it.
_TLS_PIECE_BYTES = 64 * 1024
# Responses up to this size are copied to send the length and the response together.
_SMALL_RESPONSE_BYTES = 64 * 1024


class RequestRefusedError(Exception):
    """The received bytes are not a valid request, so the connection must be closed."""


class ConnectionOwner(Protocol):
    """The part of the server that its connections use."""

    memory: RequestMemory
    request_bytes_max: int

    def opened(self, connection: Connection) -> None: ...

    def runnable(self, connection: Connection) -> None:
        """Handle an available request or continue to read.

        A connection calls this method after each change of its state.
        """

    def closed(self, connection: Connection, error: Exception | None) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """An asyncio protocol that returns one complete request at a time."""

    def __init__(
        self, owner: ConnectionOwner, connection_id: ConnectionId, *, listener: str = "PLAINTEXT"
    ) -> None:
        self.connection_id = connection_id
        self.listener = listener
        self.request_bytes_max: int | None = None  # The request size limit during the login.
        self.login_began_seconds: float | None = None
        self.certificate: bytes | None = None  # The client's certificate in DER.
        self.peer = "unknown"
        self.local = ("unknown", 0)
        self.is_in_progress = False  # The node is handling a request from this connection.
        self.is_at_end = False  # The client has closed its sending side.
        self.last_progress_seconds = 0.0  # The time at which bytes were last sent, or received.
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(IDLE_BUFFER_BYTES)
        self._filled_bytes = 0
        self._full_pieces: list[
            bytearray
        ] = []  # Earlier pieces of a large request; `_buffer` is the last one.
        self._full_pieces_bytes = 0
        self._receiving: memoryview | None = None
        self._is_tls = False
        self._is_sending_paused = False
        self._unsent: deque[memoryview] = deque()  # Used only with TLS.
        self._closes_when_sent = False
        self._unsent_bytes_seen = 0
        self._time = asyncio.get_running_loop().time

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.last_progress_seconds = self._time()
        client = transport.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")  # None if the client has already disconnected.
        if peer is not None:
            self.peer = f"{peer[0]}:{peer[1]}"
        self.local = transport.get_extra_info("sockname")[:2]
        tls = transport.get_extra_info("ssl_object")
        self._is_tls = tls is not None
        if tls is not None:
            transport.set_write_buffer_limits(high=_TLS_PIECE_BYTES)
            self.certificate = tls.getpeercert(binary_form=True)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._receiving = memoryview(self._buffer)[self._filled_bytes :]
        return self._receiving

    def buffer_updated(self, nbytes: int) -> None:
        assert self._receiving is not None
        self._receiving.release()
        self._receiving = None
        self._filled_bytes += nbytes
        # A client that has unread responses must read them: sending more bytes is no progress.
        if not self.unsent_bytes:
            self.last_progress_seconds = self._time()
        self._owner.runnable(self)

    def eof_received(self) -> bool:
        """Keep the connection open until all responses have been sent.

        A client may close only its side of the connection. The server cannot distinguish such a
        half-closed connection from a fully closed connection until the server sends a response.
        asyncio does not support half-closed TLS connections.
        """
        self.is_at_end = True
        self._owner.runnable(self)
        return not self._is_tls

    def pause_writing(self) -> None:
        self._is_sending_paused = True

    def resume_writing(self) -> None:
        self._is_sending_paused = False
        self._write_unsent()
        self._owner.runnable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.closed(self, exc)

    # Called by the server.

    @property
    def unsent_bytes(self) -> int:
        """Return the size of the responses that the client has not yet read."""
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + sum(map(len, self._unsent))

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._closes_when_sent or self._transport.is_closing()

    def next_request(self) -> bytes | None:
        """Return the next complete request, or None if no request is complete.

        Also start, pause or resume reading, depending on the free space in the buffer. Raises:
        RequestRefusedError.
        """
        if self.is_closing or self.is_in_progress or self._is_sending_paused or self._unsent:
            self._read_if_there_is_room()
            return None
        frame_bytes = self._frame_bytes()
        arrived_bytes = self._full_pieces_bytes + self._filled_bytes
        if frame_bytes is None or arrived_bytes < frame_bytes:
            if self.is_at_end:
                self.close()  # All responses have been sent, and no more requests will follow.
            elif self._filled_bytes == len(self._buffer):
                assert frame_bytes is not None  # An idle buffer has room for the length field.
                self._add_piece(frame_bytes - arrived_bytes)
            self._read_if_there_is_room()
            return None
        self.is_in_progress = True
        return self._take(frame_bytes)

    def limit_requests(self, bytes_max: int | None) -> None:
        """Limit the size of requests during authentication.

        If `bytes_max` is None, remove the limit.
        """
        self.request_bytes_max = bytes_max
        self.login_began_seconds = None if bytes_max is None else self._time()

    def respond(self, frame: bytes | None, *, closes: bool = False) -> None:
        """Send the response to the current request. If `frame` is None, send no response."""
        self.is_in_progress = False
        if frame is not None and not self.is_closing:
            self._send(frame)
        if closes:
            self.close()
        self._owner.runnable(self)

    def close(self) -> None:
        """Send pending responses, then close the connection."""
        self._closes_when_sent = True
        if self._transport is not None and not self._unsent:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately and discard unsent responses."""
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()

    def update_sending_progress(self, now_seconds: float) -> None:
        """Record whether the client has read responses since the previous call."""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes < self._unsent_bytes_seen:
            self.last_progress_seconds = now_seconds
        self._unsent_bytes_seen = unsent_bytes

    # Internal.

    def _frame_bytes(self) -> int | None:
        """Return the size of the first frame, including its length field.

        Return None if the length field is incomplete.
        """
        front = self._full_pieces[0] if self._full_pieces else self._buffer
        if not self._full_pieces and self._filled_bytes < FRAME_LENGTH_BYTES:
            return None
        request_bytes = int.from_bytes(front[:FRAME_LENGTH_BYTES], "big", signed=True)
        limit = self._owner.request_bytes_max
        config = "socket.request.max.bytes"
        if self.request_bytes_max is not None and self.request_bytes_max < limit:
            limit = self.request_bytes_max
            config = "sasl.server.max.receive.size"
        if not 0 <= request_bytes <= limit:
            raise RequestRefusedError(
                f"the request length is {request_bytes} bytes, but the limit is {limit} bytes "
                f"({config}). Check that the client is a Kafka client and does not use TLS on a "
                "plaintext listener"
            )
        return FRAME_LENGTH_BYTES + request_bytes

    def _take(self, frame_bytes: int) -> bytes:
        if self._full_pieces:
            # The last piece ends where the request ends.
            first, *others = self._full_pieces
            request = b"".join((memoryview(first)[FRAME_LENGTH_BYTES:], *others, self._buffer))
            self._full_pieces.clear()
            self._full_pieces_bytes = 0
            self._buffer = bytearray(IDLE_BUFFER_BYTES)
            self._filled_bytes = 0
            return request
        request = bytes(self._buffer[FRAME_LENGTH_BYTES:frame_bytes])
        rest_bytes = self._filled_bytes - frame_bytes
        self._buffer[:rest_bytes] = self._buffer[frame_bytes : self._filled_bytes]
        self._filled_bytes = rest_bytes
        return request

    def _add_piece(self, missing_bytes: int) -> None:
        """Add a buffer for an incomplete request, if memory is available."""
        piece_bytes_max = _NEXT_PIECE_BYTES if self._full_pieces else _FIRST_PIECE_BYTES
        piece_bytes = min(missing_bytes, piece_bytes_max)
        held_bytes = self._full_pieces_bytes + len(self._buffer) + piece_bytes
        if not self._owner.memory.grow(self.connection_id, held_bytes):
            return
        self._full_pieces.append(self._buffer)
        self._full_pieces_bytes += len(self._buffer)
        self._buffer = bytearray(piece_bytes)
        self._filled_bytes = 0

    def _read_if_there_is_room(self) -> None:
        assert self._transport is not None
        if self.is_closing or self.is_at_end:
            return
        has_room = self._filled_bytes < len(self._buffer)
        if has_room and not self._transport.is_reading():
            self._transport.resume_reading()
        elif not has_room and self._transport.is_reading():
            self._transport.pause_reading()

    def _send(self, frame: bytes) -> None:
        assert self._transport is not None
        self.last_progress_seconds = self._time()
        length = len(frame).to_bytes(FRAME_LENGTH_BYTES, "big")
        if self._is_tls:
            data = memoryview(length + frame)
            for start in range(0, len(data), _TLS_PIECE_BYTES):
                self._unsent.append(data[start : start + _TLS_PIECE_BYTES])
            self._write_unsent()
        elif len(frame) <= _SMALL_RESPONSE_BYTES:
            self._transport.write(length + frame)
        else:
            # A memoryview avoids a second copy if the socket does not accept all bytes immediately.
            self._transport.write(length)
            self._transport.write(memoryview(frame))
        self._unsent_bytes_seen = self.unsent_bytes

    def _write_unsent(self) -> None:
        """Pass unsent pieces to the TLS transport while it accepts them."""
        assert self._transport is not None
        while self._unsent and not self._is_sending_paused:
            self._transport.write(self._unsent.popleft())
        if self._closes_when_sent and not self._unsent:
            self._transport.close()
