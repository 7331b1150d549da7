"""The events that a node handles and the effects that it returns.

Purpose: the interface between the sans-IO core and its I/O layer. `handle(event, now_ms)` of a node
returns effects, which the asyncio server or a simulator performs. Invariants: each `FrameReceived`
is answered by exactly one `SendFrame`, `NoResponse` or `CloseConnection` for its connection,
immediately or later. The I/O layer delivers the next frame of a connection after that answer only
(Kafka's brokers mute a channel in the same way). Each `SendRequest` leads to at most one
`ResponseReceived` or `RequestFailed`, and never within the same call.
"""

from __future__ import annotations

from dataclasses import dataclass

ConnectionId = int

RequestId = int
"""Identifies a request of this node to another node, for the node's lifetime; the correlation id.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A connection to another node; its requests are answered in the order in which they were sent.

    `purpose` separates requests that may wait (long polls) from those that must not (heartbeats).
    """

    node_id: int
    host: str
    port: int
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameReceived:
    """A request without its four-byte length."""

    connection_id: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened:
    """A client has connected. `peer` is `host:port`, `local` the address it connected to."""

    connection_id: ConnectionId
    peer: str
    local: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """A client has disconnected; the node discards its waiting requests."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """`now_ms` has reached the node's `next_deadline_ms()`: expire requests, run tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """The response to a request of this node, without its four-byte length."""

    request_id: RequestId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request will not be answered: the channel failed to open or broke. `reason` is logged."""

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
    """Send a response, without its four-byte length, on a connection."""

    connection_id: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """The request of this connection is complete and has no response (Produce with acks=0)."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close a connection; `reason` is logged."""

    connection_id: ConnectionId
    reason: str


Effect = SendFrame | NoResponse | CloseConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request to another node; opens the channel if needed."""

    channel: Channel
    request_id: RequestId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseChannel:
    """Close a channel. Its pending requests fail; the next request opens it again."""

    channel: Channel


PeerEffect = SendRequest | CloseChannel
