"""What goes into a node and what comes out of it.

Purpose: the vocabulary between the sans-IO core and its edge. `handle(event, now_ms)` of a node
returns effects; the edge (asyncio server, or a simulator) carries them out. Invariants: every
`FrameReceived` is answered by exactly one of `SendFrame`, `NoResponse` or `CloseConnection` for
its connection, now or in a later step, and the edge hands a node no second frame of a connection
before that (Kafka's brokers mute a channel in the same way). Every `SendRequest` leads to at most
one `ResponseReceived` or `RequestFailed`, never within the same step.
"""

from __future__ import annotations

from dataclasses import dataclass

ConnectionId = int

RequestId = int
"""Of a request that this node sends to another, unique in the node's life; a correlation id too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A connection to another node: requests on it are answered in the order sent.

    `purpose` keeps those that wait (long polls) from those that must not (heartbeats).
    """

    node_id: int
    host: str
    port: int
    purpose: str


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
    """`now_ms` has reached the node's `next_deadline_ms()`: expire waits, run retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """The answer to a request of this node, without its four bytes of length."""

    request_id: RequestId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """No answer will come: the channel could not be opened, or broke; `reason` is for the log."""

    request_id: RequestId
    reason: str


Event = (
    FrameReceived
    | ConnectionOpened
    | ConnectionClosed
    | TimePassed
    | ResponseReceived
    | RequestFailed
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request to another node, over its channel, which is opened where it is not."""

    channel: Channel
    request_id: RequestId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseChannel:
    """Close a channel: what was asked on it fails, and the next request opens it anew."""

    channel: Channel


PeerEffect = SendRequest | CloseChannel
