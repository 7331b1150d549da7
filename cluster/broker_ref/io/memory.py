"""The memory limit for all requests that are being received.

The limit corresponds to Kafka's `queued.max.request.bytes`, but a connection is charged for its
buffer, not for the request length that its client has sent. Invariant: the total exceeds
`bytes_max` only because of the oldest request, which always receives memory. Therefore, at least
one request can be completed.
"""

from __future__ import annotations

from broker_ref.events import ConnectionId


class RequestMemory:
    """The memory of incomplete requests, by connection."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes: dict[ConnectionId, int] = {}  # In the order in which the requests began.
        self._requested_bytes: dict[
            ConnectionId, int
        ] = {}  # In the order in which the requests began to wait.
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def blocking(self) -> ConnectionId | None:
        """Return the connection with the oldest request, or None if no connection is waiting."""
        return next(iter(self._held_bytes)) if self._requested_bytes else None

    def is_waiting(self, connection_id: ConnectionId) -> bool:
        return connection_id in self._requested_bytes

    def grow(self, connection_id: ConnectionId, held_bytes: int) -> bool:
        """Request a total of `held_bytes` for a connection. Return whether the memory was granted.

        If the memory was not granted, the connection must wait until a call to `release` returns
        the connection id.
        """
        self._held_bytes.setdefault(connection_id, 0)
        if self._grant(connection_id, held_bytes):
            self._requested_bytes.pop(connection_id, None)
            return True
        self._requested_bytes[connection_id] = held_bytes
        return False

    def release(self, connection_id: ConnectionId) -> list[ConnectionId]:
        """Release a connection's memory. Return the waiting connections that now receive memory."""
        if connection_id not in self._held_bytes:
            return []
        self._used_bytes -= self._held_bytes.pop(connection_id)
        self._requested_bytes.pop(connection_id, None)
        granted = [
            waiting
            for waiting, requested in self._requested_bytes.items()
            if self._grant(waiting, requested)
        ]
        for waiting in granted:
            del self._requested_bytes[waiting]
        return granted

    def _grant(self, connection_id: ConnectionId, held_bytes: int) -> bool:
        growth_bytes = held_bytes - self._held_bytes[connection_id]
        is_first = next(iter(self._held_bytes)) == connection_id
        if not is_first and self._used_bytes + growth_bytes > self._bytes_max:
            return False
        self._held_bytes[connection_id] = held_bytes
        self._used_bytes += growth_bytes
        return True
