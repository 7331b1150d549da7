"""Limits the memory of all requests that are being received.

Purpose: as Kafka's `queued.max.request.bytes`. A connection is charged for its actual buffer, not
for the length that its client announced. Invariant: the sum is at most `bytes_max`, except that the
oldest request always gets memory (at most one request above the limit), so that one request can
always complete. Must not know: sockets, time.
"""

from __future__ import annotations

from broker_ref.events import ConnectionId


class RequestMemory:
    """The memory of unfinished requests, by connection."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes: dict[ConnectionId, int] = {}  # In the order in which the requests began.
        self._wanted_bytes: dict[
            ConnectionId, int
        ] = {}  # In the order in which the requests had to wait.
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def blocking(self) -> ConnectionId | None:
        """Return the oldest request if others wait for memory, otherwise None."""
        return next(iter(self._held_bytes)) if self._wanted_bytes else None

    def is_waiting(self, connection_id: ConnectionId) -> bool:
        return connection_id in self._wanted_bytes

    def grow(self, connection_id: ConnectionId, held_bytes: int) -> bool:
        """Request `held_bytes` in total. False: wait until `release` returns this connection."""
        self._held_bytes.setdefault(connection_id, 0)
        if self._grant(connection_id, held_bytes):
            self._wanted_bytes.pop(connection_id, None)
            return True
        self._wanted_bytes[connection_id] = held_bytes
        return False

    def release(self, connection_id: ConnectionId) -> list[ConnectionId]:
        """Release a connection's memory; returns the waiting connections that now have some."""
        if connection_id not in self._held_bytes:
            return []
        self._used_bytes -= self._held_bytes.pop(connection_id)
        self._wanted_bytes.pop(connection_id, None)
        granted = [
            waiting
            for waiting, wanted in self._wanted_bytes.items()
            if self._grant(waiting, wanted)
        ]
        for waiting in granted:
            del self._wanted_bytes[waiting]
        return granted

    def _grant(self, connection_id: ConnectionId, held_bytes: int) -> bool:
        growth_bytes = held_bytes - self._held_bytes[connection_id]
        is_first = next(iter(self._held_bytes)) == connection_id
        if not is_first and self._used_bytes + growth_bytes > self._bytes_max:
            return False
        self._held_bytes[connection_id] = held_bytes
        self._used_bytes += growth_bytes
        return True
