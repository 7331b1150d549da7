"""A producer's connections to leaders, and the Produce requests in flight on each of them.

Each leader has a connection that is used only for Produce. Therefore, metadata requests do not wait
for Produce requests. Invariants: a failed connection is removed before `done` yields the Produce
calls that were sent on it. If a broker's address changes, a new connection is opened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark_kafka.client.native.batch_queues import ProducerBatch
from pyspark_kafka.errors import BrokerUnreachableError
from pyspark_kafka.wire.connection import Connection, InFlightRequest, wait_any
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.produce import ProduceResponse
from pyspark_kafka.wire.router import Router

RESPONSE_GRACE_S: Final = 1.0
"""The additional time for a response to arrive after the request timeout."""
_FIRST_TRY_S: Final = 5.0
_DOUBLINGS_MAX: Final = 10


def growing_timeout_s(first_s: float, failures: int, longest_s: float) -> float:
    """Return the timeout for the next attempt.

    The timeout doubles after each failure, up to the larger of `first_s` and `longest_s`.
    """
    return min(first_s * 2.0 ** min(failures, _DOUBLINGS_MAX), max(first_s, longest_s))


@dataclass(slots=True)
class ProduceCall:
    """A Produce request in flight. If `deadline` passes, the connection is closed."""

    batches: list[ProducerBatch]
    pending: InFlightRequest[ProduceResponse]
    deadline: float


@dataclass(slots=True)
class LeaderConnection:
    """The connection to one leader, and the requests in flight on it, oldest first."""

    broker: Broker
    connection: Connection
    calls: deque[ProduceCall] = field(default_factory=deque)


@dataclass(slots=True)
class LeaderConnections:
    """The connections of one producer.

    The first connection attempts have shorter timeouts than `connect_timeout_s`, because the
    producer is blocked while it connects.
    """

    router: Router
    request_timeout_s: float
    connect_timeout_s: float
    _connections: dict[int, LeaderConnection] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    """The number of consecutive failed connection attempts, by broker id."""

    def __iter__(self) -> Iterator[LeaderConnection]:
        return iter(self._connections.values())

    def in_flight_requests(self) -> list[InFlightRequest[ProduceResponse]]:
        """Return the pending responses of all requests in flight."""
        return [call.pending for leader in self for call in leader.calls]

    def get(self, broker: Broker) -> LeaderConnection | None:
        """Return the connection to this broker, or None. The connection may be unusable."""
        return self._connections.get(broker.broker_id)

    def open(self, broker: Broker, *, deadline: float) -> LeaderConnection:
        """Return the connection to a leader, and open it if necessary.

        Raises the same errors as `Router.dedicated_connection`.
        """
        leader = self.get(broker)
        if leader is not None and (
            leader.calls
            or (
                self.router.is_usable(leader.connection) and leader.broker.address == broker.address
            )
        ):
            return leader
        if leader is not None:
            self._connections.pop(broker.broker_id).connection.close()
        failures = self._failures.get(broker.broker_id, 0)
        self._failures[broker.broker_id] = failures + 1
        try_s = growing_timeout_s(_FIRST_TRY_S, failures, self.connect_timeout_s)
        deadline = min(deadline, self.router.clock.now() + try_s)
        leader = LeaderConnection(
            broker, self.router.dedicated_connection(broker, deadline=deadline)
        )
        del self._failures[broker.broker_id]
        self._connections[broker.broker_id] = leader
        return leader

    def done(self) -> Iterator[tuple[LeaderConnection, ProduceCall]]:
        """Yield the calls that have received a response or failed.

        The calls of each connection are yielded in the order in which they were sent.
        """
        clock = self.router.clock
        while wait_any(self.in_flight_requests(), deadline=clock.now(), clock=clock):
            for leader in list(self):
                while leader.calls and leader.calls[0].pending.done:
                    if not leader.connection.is_open and self.get(leader.broker) is leader:
                        del self._connections[leader.broker.broker_id]
                    yield leader, leader.calls.popleft()

    def fail_overdue(self) -> bool:
        """Close connections whose oldest call has exceeded its deadline.

        Return whether any connection is closed. `done` yields the calls of closed connections.
        """
        now = self.router.clock.now()
        for leader in list(self):
            if leader.calls and now >= leader.calls[0].deadline:
                request = leader.calls[0].pending.request
                waited_s = self.request_timeout_s + RESPONSE_GRACE_S
                leader.connection.fail(
                    BrokerUnreachableError, f"{request} received no response within {waited_s:g} s"
                )
        return any(not leader.connection.is_open for leader in self)

    def extend_deadlines(self, by_s: float) -> None:
        """Extend the deadlines of all calls by `by_s` seconds."""
        for leader in self:
            for call in leader.calls:
                call.deadline += by_s

    def hand_over(self) -> LeaderConnections:
        """Move all connections into a new object, which another producer can use."""
        handed_over = replace(self)
        self._connections, self._failures = {}, {}
        return handed_over

    def close(self) -> None:
        """Close all connections and drop their requests in flight."""
        for leader in self:
            leader.connection.close()
        self._connections.clear()
