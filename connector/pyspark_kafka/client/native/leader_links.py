"""The connections to leaders, and what was asked over them and is not answered.

Purpose: one connection of the producer's own for each leader, where no question about the cluster
has to wait behind rows. Invariant: what fails is out of here when its calls are handed out, and a
leader that moved to another address is connected to anew. What it must not know: what a batch or an
answer means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark_kafka.client.native.in_flight import Batch
from pyspark_kafka.errors import BrokerUnreachableError
from pyspark_kafka.wire.connection import Connection, Pending, wait_any
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.produce import ProduceResponse
from pyspark_kafka.wire.router import Router

ANSWER_GRACE_S: Final = 1.0
"""Beyond the time that a broker was given, for its answer to arrive."""
_FIRST_TRY_S: Final = 5.0
_DOUBLINGS_MAX: Final = 10


def longer(first_s: float, failures: int, longest_s: float) -> float:
    """How long a try may take after so many that failed: twice as long each, up to `longest_s`."""
    return min(first_s * 2.0 ** min(failures, _DOUBLINGS_MAX), max(first_s, longest_s))


@dataclass(slots=True)
class Call:
    """A request on its way. `deadline` is when its broker counts as hanging."""

    batches: list[Batch]
    pending: Pending[ProduceResponse]
    deadline: float


@dataclass(slots=True)
class Link:
    """The connection to one leader, and what was sent and not answered, in order."""

    broker: Broker
    connection: Connection
    calls: deque[Call] = field(default_factory=deque)


@dataclass(slots=True)
class LeaderLinks:
    """All of one producer.

    `request_timeout_s` is what a broker may take to answer, `connect_timeout_s` what it may take to
    be connected to: at first less, since nothing else is done meanwhile.
    """

    router: Router
    request_timeout_s: float
    connect_timeout_s: float
    _links: dict[int, Link] = field(default_factory=dict)
    _failures: dict[int, int] = field(default_factory=dict)
    """How often in a row a leader was not connected to."""

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def pendings(self) -> list[Pending[ProduceResponse]]:
        """All that is not answered."""
        return [call.pending for link in self for call in link.calls]

    def get(self, broker: Broker) -> Link | None:
        """What there is for this broker, usable or not."""
        return self._links.get(broker.broker_id)

    def open(self, broker: Broker, *, deadline: float) -> Link:
        """The connection to a leader, opened where there is none; raises as `Router` does."""
        link = self.get(broker)
        if link is not None and (
            link.calls or (link.connection.is_usable and link.broker.address == broker.address)
        ):
            return link
        if link is not None:
            self._links.pop(broker.broker_id).connection.close()
        failures = self._failures.get(broker.broker_id, 0)
        self._failures[broker.broker_id] = failures + 1
        try_s = longer(_FIRST_TRY_S, failures, self.connect_timeout_s)
        deadline = min(deadline, self.router.clock.now() + try_s)
        link = Link(broker, self.router.dedicated_connection(broker, deadline=deadline))
        del self._failures[broker.broker_id]
        self._links[broker.broker_id] = link
        return link

    def done(self) -> Iterator[tuple[Link, Call]]:
        """Calls that are answered or have failed, in the order of each connection."""
        clock = self.router.clock
        while wait_any(self.pendings(), deadline=clock.now(), clock=clock):
            for link in list(self):
                while link.calls and link.calls[0].pending.done:
                    if not link.connection.is_open and self.get(link.broker) is link:
                        del self._links[link.broker.broker_id]
                    yield link, link.calls.popleft()

    def fail_hanging(self) -> bool:
        """Close those with a call whose time is over; whether there are `done` calls by that."""
        now = self.router.clock.now()
        for link in list(self):
            if link.calls and now >= link.calls[0].deadline:
                request = link.calls[0].pending.request
                waited_s = self.request_timeout_s + ANSWER_GRACE_S
                link.connection.fail(
                    BrokerUnreachableError, f"no answer came to {request} within {waited_s:g} s"
                )
        return any(not link.connection.is_open for link in self)

    def postpone(self, by_s: float) -> None:
        """All brokers get so much longer to answer."""
        for link in self:
            for call in link.calls:
                call.deadline += by_s

    def hand_over(self) -> LeaderLinks:
        """All of them, for another producer; none are left here."""
        handed_over = replace(self)
        self._links, self._failures = {}, {}
        return handed_over

    def close(self) -> None:
        """Close all; what was asked is forgotten."""
        for link in self:
            link.connection.close()
        self._links.clear()
