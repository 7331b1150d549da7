"""How many bytes all requests that are still arriving may hold together.

Purpose: what Kafka's `queued.max.request.bytes` is for. A connection is charged for the buffer
it really holds, never for the length its client announced, so announcing costs nothing. Invariant:
the sum stays within `bytes_max`, except that the request which began first always gets what it
asks for (one request above the limit at most): whoever waits, one request can always complete.
Must not know: sockets, time.
"""

from __future__ import annotations

from broker_ref.events import ConnectionId


class RequestMemory:
    """The account of the bytes that unfinished requests hold."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes: dict[ConnectionId, int] = {}  # in the order in which requests began
        self._wanted_bytes: dict[ConnectionId, int] = {}  # in the order in which they had to wait
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def blocking(self) -> ConnectionId | None:
        """The request that began first, while others wait for memory; else None."""
        return next(iter(self._held_bytes)) if self._wanted_bytes else None

    def is_waiting(self, connection_id: ConnectionId) -> bool:
        return connection_id in self._wanted_bytes

    def grow(self, connection_id: ConnectionId, held_bytes: int) -> bool:
        """Ask to hold `held_bytes` in all. False: wait until a `release` names this connection."""
        self._held_bytes.setdefault(connection_id, 0)
        if self._grant(connection_id, held_bytes):
            self._wanted_bytes.pop(connection_id, None)
            return True
        self._wanted_bytes[connection_id] = held_bytes
        return False

    def release(self, connection_id: ConnectionId) -> list[ConnectionId]:
        """Give everything back; returns those that waited and now hold what they asked for."""
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
