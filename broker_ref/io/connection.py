"""A client connection: bytes in, whole requests out, responses back.

Purpose: Kafka's framing (a signed 32-bit big-endian length, then that many bytes) over an asyncio
transport. Invariants: a length is checked before any byte of its body is stored; a body occupies
the received bytes and at most one more piece, never the announced length; the node handles one
request of a connection at a time; a client that does not read its responses gets no further request
served. Must not know: what a frame means.

A large body is received in pieces that are joined at the end: this costs one copy and is four times
as fast as one growing buffer.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from broker_ref.events import ConnectionId
from broker_ref.io.memory import RequestMemory

FRAME_LENGTH_BYTES = 4

# Buffer of an idle connection: most requests fit, and 500 idle connections use 4 MiB.
IDLE_BUFFER_BYTES = 8 * 1024
_FIRST_PIECE_BYTES = 64 * 1024
_NEXT_PIECE_BYTES = 256 * 1024
# Up to this size, one packet with the length in front is worth a copy.
_SMALL_RESPONSE_BYTES = 64 * 1024


class RequestRefusedError(Exception):
    """The received bytes cannot be a request; the connection is closed."""


class ConnectionOwner(Protocol):
    """The server, as a connection uses it."""

    memory: RequestMemory
    request_bytes_max: int

    def opened(self, connection: Connection) -> None: ...

    def runnable(self, connection: Connection) -> None:
        """A request may be available, or reading may continue."""

    def closed(self, connection: Connection, error: Exception | None) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """An asyncio protocol that returns one whole request at a time."""

    def __init__(self, owner: ConnectionOwner, connection_id: ConnectionId) -> None:
        self.connection_id = connection_id
        self.peer = "unknown"
        self.local = ("unknown", 0)
        self.is_in_progress = False  # The node handles a request of this connection.
        self.is_at_end = False  # The client has closed its sending side.
        self.last_progress_seconds = 0.0  # The time when bytes were last received or sent.
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(IDLE_BUFFER_BYTES)
        self._filled_bytes = 0
        self._full_pieces: list[
            bytearray
        ] = []  # Earlier pieces of a large request; `_buffer` is the last one.
        self._full_pieces_bytes = 0
        self._receiving: memoryview | None = None
        self._is_sending_paused = False
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
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._receiving = memoryview(self._buffer)[self._filled_bytes :]
        return self._receiving

    def buffer_updated(self, nbytes: int) -> None:
        assert self._receiving is not None
        self._receiving.release()
        self._receiving = None
        self._filled_bytes += nbytes
        self.last_progress_seconds = self._time()
        self._owner.runnable(self)

    def eof_received(self) -> bool:
        """Answer pending requests before closing: a client may shut down one direction.

        A client that has closed completely looks the same until something is sent to it.
        """
        self.is_at_end = True
        self._owner.runnable(self)
        return True

    def pause_writing(self) -> None:
        self._is_sending_paused = True

    def resume_writing(self) -> None:
        self._is_sending_paused = False
        self._owner.runnable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.closed(self, exc)

    # Called by the server.

    @property
    def unsent_bytes(self) -> int:
        """Return the size of the responses that the client has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def next_request(self) -> bytes | None:
        """Return the next whole request, or None if there is none.

        Also starts, pauses or resumes reading depending on the buffer. Raises: RequestRefusedError.
        """
        if self.is_closing or self.is_in_progress or self._is_sending_paused:
            self._read_if_there_is_room()
            return None
        frame_bytes = self._frame_bytes()
        arrived_bytes = self._full_pieces_bytes + self._filled_bytes
        if frame_bytes is None or arrived_bytes < frame_bytes:
            if self.is_at_end:
                self.close()  # The client sends no more and all its requests are answered.
            elif self._filled_bytes == len(self._buffer):
                assert frame_bytes is not None  # An idle buffer has room for a length.
                self._add_piece(frame_bytes - arrived_bytes)
            self._read_if_there_is_room()
            return None
        self.is_in_progress = True
        return self._take(frame_bytes)

    def respond(self, frame: bytes | None) -> None:
        """Send the response to the current request; None if it has no response."""
        self.is_in_progress = False
        if frame is not None and not self.is_closing:
            self._send(frame)
        self._owner.runnable(self)

    def close(self) -> None:
        """Send pending responses, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately and drop unsent responses."""
        if self._transport is not None:
            self._transport.abort()

    def note_sending_progress(self, now_seconds: float) -> None:
        """Check, periodically, whether the client has read some of its responses."""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes < self._unsent_bytes_seen:
            self.last_progress_seconds = now_seconds
        self._unsent_bytes_seen = unsent_bytes

    # Internal.

    def _frame_bytes(self) -> int | None:
        """Return the length of the first frame with its prefix, None if incomplete."""
        front = self._full_pieces[0] if self._full_pieces else self._buffer
        if not self._full_pieces and self._filled_bytes < FRAME_LENGTH_BYTES:
            return None
        request_bytes = int.from_bytes(front[:FRAME_LENGTH_BYTES], "big", signed=True)
        if not 0 <= request_bytes <= self._owner.request_bytes_max:
            raise RequestRefusedError(
                f"it announced a request of {request_bytes} bytes; the limit is "
                f"{self._owner.request_bytes_max} bytes (socket.request.max.bytes). It is not a "
                "Kafka client, or it uses TLS on a plaintext listener"
            )
        return FRAME_LENGTH_BYTES + request_bytes

    def _take(self, frame_bytes: int) -> bytes:
        if self._full_pieces:
            # The last piece ends with the request.
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
        """Make room for more of an unfinished request if memory is available."""
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
        if len(frame) <= _SMALL_RESPONSE_BYTES:
            self._transport.write(length + frame)
        else:
            # A memoryview avoids a second copy of what the socket does not accept immediately.
            self._transport.write(length)
            self._transport.write(memoryview(frame))
        self._unsent_bytes_seen = self.unsent_bytes
