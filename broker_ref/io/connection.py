"""One client's connection: bytes in, whole requests out, responses back.

Purpose: Kafka's framing (a signed 32-bit big-endian length, then that many bytes) over an asyncio
transport. Invariants: a length is checked before any byte of its body is kept; a body holds the
bytes that have arrived and at most one piece more, never the length announced; one request at a
time is with the node; a client that does not read its responses has no further request of its
served. Must not know: what a frame means.

A large body is received in pieces that are joined once it is whole: that is one copy, and four
times as fast as one buffer that grows.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from broker_ref.events import ConnectionId
from broker_ref.io.memory import RequestMemory

FRAME_LENGTH_BYTES = 4

# What a connection holds while nothing large arrives: most requests fit, 500 idle ones are 4 MiB.
IDLE_BUFFER_BYTES = 8 * 1024
_FIRST_PIECE_BYTES = 64 * 1024
_NEXT_PIECE_BYTES = 256 * 1024
# Up to here one packet with the length in front is worth a copy.
_SMALL_RESPONSE_BYTES = 64 * 1024


class RequestRefusedError(Exception):
    """The bytes received cannot be a request; the connection is closed for this reason."""


class ConnectionOwner(Protocol):
    """The server, as a connection sees it."""

    memory: RequestMemory
    request_bytes_max: int

    def opened(self, connection: Connection) -> None: ...

    def runnable(self, connection: Connection) -> None:
        """Something has changed: there may be a request to take, or reading to go on with."""

    def closed(self, connection: Connection, error: Exception | None) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """An asyncio protocol that hands its owner one whole request at a time."""

    def __init__(self, owner: ConnectionOwner, connection_id: ConnectionId) -> None:
        self.connection_id = connection_id
        self.peer = "unknown"
        self.local = ("unknown", 0)
        self.is_in_progress = False  # a request of ours is with the node
        self.is_at_end = False  # the client has said that it sends nothing more
        self.last_progress_seconds = 0.0  # when bytes were last received or sent
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(IDLE_BUFFER_BYTES)
        self._filled_bytes = 0
        self._full_pieces: list[bytearray] = []  # of a large request, before `_buffer`
        self._full_pieces_bytes = 0
        self._receiving: memoryview | None = None
        self._is_sending_paused = False
        self._unsent_bytes_seen = 0
        self._time = asyncio.get_running_loop().time

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.last_progress_seconds = self._time()
        client = transport.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")  # None where the client has already gone
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
        """Answer what has been asked, then close: a client may shut down its half first.

        One that has closed looks the same until something is sent to it.
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

    # What the server calls.

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that the client has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def next_request(self) -> bytes | None:
        """The next whole request, or None while there is none to hand on.

        Also starts, pauses or resumes reading as the buffer allows. Raises `RequestRefusedError`.
        """
        if self.is_closing or self.is_in_progress or self._is_sending_paused:
            self._read_if_there_is_room()
            return None
        frame_bytes = self._frame_bytes()
        arrived_bytes = self._full_pieces_bytes + self._filled_bytes
        if frame_bytes is None or arrived_bytes < frame_bytes:
            if self.is_at_end:
                self.close()  # the client sends nothing more, and all it asked is answered
            elif self._filled_bytes == len(self._buffer):
                assert frame_bytes is not None  # an idle buffer has room for a length
                self._add_piece(frame_bytes - arrived_bytes)
            self._read_if_there_is_room()
            return None
        self.is_in_progress = True
        return self._take(frame_bytes)

    def respond(self, frame: bytes | None) -> None:
        """Send the answer to the request in progress (None: it has no answer)."""
        self.is_in_progress = False
        if frame is not None and not self.is_closing:
            self._send(frame)
        self._owner.runnable(self)

    def close(self) -> None:
        """Send what has been answered, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and drop what is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def note_sending_progress(self, now_seconds: float) -> None:
        """Called at intervals: has the client read some of what waits for it?"""
        unsent_bytes = self.unsent_bytes
        if unsent_bytes < self._unsent_bytes_seen:
            self.last_progress_seconds = now_seconds
        self._unsent_bytes_seen = unsent_bytes

    # Inside.

    def _frame_bytes(self) -> int | None:
        """Length of the frame at the front with its prefix; None until the prefix is there."""
        front = self._full_pieces[0] if self._full_pieces else self._buffer
        if not self._full_pieces and self._filled_bytes < FRAME_LENGTH_BYTES:
            return None
        request_bytes = int.from_bytes(front[:FRAME_LENGTH_BYTES], "big", signed=True)
        if not 0 <= request_bytes <= self._owner.request_bytes_max:
            raise RequestRefusedError(
                f"it announced a request of {request_bytes} bytes, and a request has 0 to "
                f"{self._owner.request_bytes_max} (socket.request.max.bytes): either this is not "
                "a Kafka client, or it speaks TLS to a plaintext listener"
            )
        return FRAME_LENGTH_BYTES + request_bytes

    def _take(self, frame_bytes: int) -> bytes:
        if self._full_pieces:
            # The last piece ends where the request ends: nothing stands behind it.
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
        """Make room for more of an unfinished request, if there is memory for it now."""
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
            # A view: what the socket does not take at once is then copied once, not twice.
            self._transport.write(length)
            self._transport.write(memoryview(frame))
        self._unsent_bytes_seen = self.unsent_bytes
