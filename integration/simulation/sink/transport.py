"""The transport that connects `pyspark_kafka.wire` to the simulated network.

The network's frames are requests and responses, so the transport splits the client's byte stream
into frames. Invariant: a killed process neither sends nor receives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from integration.simulation.network import Network
from integration.simulation.sink.processes import KilledError, SimulatedProcess, current
from pyspark_kafka.wire.transport import CLOSED, READABLE, WRITABLE, Address, TransportError

_LENGTH_BYTES = 4


class SimulatedTransport:
    """A connection of a simulated process to a broker. Implements `Transport`."""

    read_event = READABLE
    write_event = WRITABLE

    def __init__(self, network: Network, process: SimulatedProcess, host: str) -> None:
        self._network = network
        self._process = process
        self._connection = network.connect(process.name, host, self)
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._sent = 0
        self._reason: str | None = None

    # --- as the client's transport ---

    def send(self, parts: Iterable[memoryview]) -> int:
        self._check()
        before = len(self._outgoing)
        for part in parts:
            self._outgoing += part
        count = len(self._outgoing) - before
        while (frame := self._next_frame()) is not None:
            self._sent += 1
            self._network.send(self._connection, self._sent, frame)
        return count

    def _next_frame(self) -> bytes | None:
        size = int.from_bytes(self._outgoing[:_LENGTH_BYTES], "big")
        if len(self._outgoing) < _LENGTH_BYTES + size or not self._outgoing:
            return None
        frame = bytes(self._outgoing[_LENGTH_BYTES : _LENGTH_BYTES + size])
        del self._outgoing[: _LENGTH_BYTES + size]
        return frame

    def receive_into(self, buffer: memoryview) -> int | None:
        if not self._incoming:
            self._check()
            return None
        count = min(len(buffer), len(self._incoming))
        buffer[:count] = self._incoming[:count]
        del self._incoming[:count]
        return count

    def _check(self) -> None:
        if self._process.is_killed:
            raise KilledError
        if not self._connection.is_open_at_source:
            raise TransportError(self._reason or CLOSED)

    @property
    def is_readable(self) -> bool:
        """Whether `receive_into` returns bytes or raises an error."""
        return bool(self._incoming) or not self._connection.is_open_at_source

    def fileno(self) -> int:
        raise NotImplementedError  # `wait` is replaced

    def close(self) -> None:
        if self._connection.is_open_at_source:
            self._network.close(self._connection)

    # --- as the network's caller ---

    def responded(self, request_id: int, frame: bytes) -> None:
        del request_id
        self._incoming += len(frame).to_bytes(_LENGTH_BYTES, "big") + frame
        self._process.wake()

    def failed(self, request_id: int, reason: str) -> None:
        del request_id
        self._reason = reason
        self._process.wake()


def connect(network: Network, address: Address) -> SimulatedTransport:
    """Connect the current process to a broker. If connecting fails, the first request fails."""
    process = current()
    assert process is not None
    if process.is_killed:
        raise KilledError
    return SimulatedTransport(network, process, address.host)


def wait(
    reading: Collection[SimulatedTransport],
    writing: Collection[SimulatedTransport],
    timeout_s: float,
) -> list[SimulatedTransport]:
    """Implement `pyspark_kafka.wire.transport.wait`. Simulated transports are always writable."""
    process = current()
    assert process is not None
    process.wait_for(lambda: bool(writing) or any(each.is_readable for each in reading), timeout_s)
    return [*writing, *(each for each in reading if each.is_readable)]
