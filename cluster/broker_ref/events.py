"""The events that a node handles and the effects that it returns.

This is the interface between the sans-IO core and the I/O layer. A node's `handle(event, now_ms)`
method returns effects, which an asyncio server or a simulator executes.

Invariants: for each `FrameReceived`, the node returns exactly one `SendFrame`, `NoResponse` or
`CloseConnection` for the same connection, either from the same call or from a later call. Until
then, the I/O layer does not deliver the next frame of the connection. Kafka's brokers do the same
by muting the channel. Each `SendRequest` leads to at most one `ResponseReceived` or
`RequestFailed`, which never arrives during the same call.
"""

from __future__ import annotations

from dataclasses import field

from broker_ref.frozen import dataclass

ConnectionId = int

RequestId = int
"""The correlation id of a request to another node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A connection to another node. The node responds to requests in the order they were sent.

    There is a separate channel for each `purpose`, so a long poll does not delay a heartbeat.
    """

    node_id: int
    host: str
    port: int
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameReceived:
    """A request from a client or another node, without the four-byte length prefix."""

    connection_id: ConnectionId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOpened:
    """A client has connected.

    `peer` is the client's address in the form `host:port`. `local` is the address of this node to
    which the client has connected, and `listener` is the name of the listener. `certificate` is the
    client's verified certificate in DER format, or None if the client has none.
    """

    connection_id: ConnectionId
    peer: str
    local: tuple[str, int]
    listener: str = "PLAINTEXT"
    certificate: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """A client has disconnected. The node discards the requests from this connection."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """The node's `next_deadline_ms()` has been reached: timers and periodic tasks are due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """A response to a request that this node sent, without the four-byte length prefix."""

    request_id: RequestId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request failed because its channel could not be opened or was closed.

    `reason` is logged.
    """

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
    """Send a response on a connection. `frame` does not include the four-byte length prefix.

    If `close_reason` is set, it is logged, and the connection is closed after the response.
    """

    connection_id: ConnectionId
    frame: bytes
    close_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResponse:
    """Complete a request that has no response (Produce with acks=0)."""

    connection_id: ConnectionId


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close a connection; `reason` is logged."""

    connection_id: ConnectionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFrames:
    """Limit the size of subsequent requests on a connection. None removes the limit.

    This effect does not complete a request.
    """

    connection_id: ConnectionId
    bytes_max: int | None


Effect = SendFrame | NoResponse | CloseConnection | LimitFrames


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request to another node, after opening the channel if necessary."""

    channel: Channel
    request_id: RequestId
    frame: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseChannel:
    """Close a channel. Its pending requests fail, and the next request reopens the channel."""

    channel: Channel


PeerEffect = SendRequest | CloseChannel
