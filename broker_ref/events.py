"""What goes into a node and what comes out of it.

Purpose: the vocabulary between the sans-IO core and its edge. `Node.handle(event, now_ms)`
returns effects; the edge (asyncio server, or a simulator) carries them out. Invariant: every
`FrameReceived` is answered by exactly one of `SendFrame`, `NoResponse` or `CloseConnection` for
its connection, now or in a later step, and the edge hands a node no second frame of a connection
before that (Kafka's brokers mute a channel in the same way).
"""

from __future__ import annotations

from dataclasses import dataclass

ConnectionId = int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameReceived:
    """One request, without its four bytes of length."""

    connection_id: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened:
    """A client has connected; `peer` is `host:port`, `local` the address it dialled."""

    connection_id: ConnectionId
    peer: str
    local: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """The client has gone: what it waited for is dropped."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """`now_ms` has reached `Node.next_deadline_ms()`: expire waits, run retention."""


Event = FrameReceived | ConnectionOpened | ConnectionClosed | TimePassed


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFrame:
    """Send one response, without its four bytes of length, on this connection."""

    connection_id: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """The request of this connection is done and has no answer (Produce with acks=0)."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close this connection; `reason` is for the log."""

    connection_id: ConnectionId
    reason: str


Effect = SendFrame | NoResponse | CloseConnection
