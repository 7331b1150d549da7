"""A simulated client, which runs scripts.

A script is a generator. It yields a `Call` and receives the response (or None), or it yields a
`Sleep`. A client runs several scripts concurrently. It keeps one connection per broker and closes
the connection when a response is late. For each partition, it remembers the leader with the highest
leader epoch (KIP-320). Invariant: a stopped client does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from integration.simulation.cluster import host_of
from integration.simulation.event_queue import EventQueue
from integration.simulation.messages import Request, request
from integration.simulation.network import Connection, Network

RETRY_MS: Final = 60
REQUEST_TIMEOUT_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A step of a script that sends a request to a broker and waits for the response."""

    broker_id: int
    request: Request
    timeout_ms: int = REQUEST_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """A step of a script that waits."""

    ms: int


Script = Generator[Call | Sleep, Any, None]
Step = Generator[Call | Sleep, Any, Any]
"""A part of a script that returns a result."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The broker id of a partition's leader (-1 if there is none) and the leader epoch."""

    broker_id: int
    epoch: int


@dataclass(slots=True)
class _InFlightCall:
    request: Request
    script: Script
    connection: Connection


class Client:
    """A simulated client process."""

    def __init__(
        self,
        name: str,
        *,
        event_queue: EventQueue,
        network: Network,
        random: Random,
        broker_ids: Sequence[int],
        resets: bool = False,
    ) -> None:
        """Create a client.

        The client closes a connection when a response is late. With `resets`, requests that are in
        transit on a closed connection are lost. Otherwise, these requests still reach the broker.
        """
        self.name = name
        self.random = random
        self.broker_ids = tuple(broker_ids)
        self.is_stopped = False
        self._event_queue = event_queue
        self._network = network
        self._close = network.break_connection if resets else network.close
        self._leaders: dict[TopicPartition, Leader] = {}
        self._connections: dict[int, Connection] = {}
        self._in_flight: dict[int, _InFlightCall] = {}
        self._last_id = 0

    @property
    def now_ms(self) -> int:
        """The current virtual time in milliseconds."""
        return self._event_queue.now_ms

    def spawn(self, script: Script, *, after_ms: int = 0) -> None:
        """Start a script after a delay."""
        self._event_queue.after(after_ms, lambda: self._go_on(script, None))

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Run an action after a delay, unless the client has been stopped."""
        self._event_queue.after(delay_ms, lambda: None if self.is_stopped else act())

    def stop(self) -> None:
        """Kill the process, as `kill -9` does. Requests that were already sent may still arrive."""
        self.is_stopped = True
        for connection in self._connections.values():
            if connection.is_open_at_source:
                self._network.close(connection)

    def any_broker(self) -> int:
        """Return the id of a random broker."""
        return self.random.choice(self.broker_ids)

    # Leaders

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Return the partition's leader in the client's metadata, or None."""
        found = self._leaders.get(partition)
        return found if found is not None and found.broker_id >= 0 else None

    def forget_leaders(self, topic: str) -> None:
        """Forget the leaders of a topic. If the topic is recreated, leader epochs start at 0."""
        for partition in [each for each in self._leaders if each.topic == topic]:
            del self._leaders[partition]

    def find_leaders(self, *topics: str) -> Step:
        """Send a Metadata request to a random broker and store the leaders.

        Leaders with older leader epochs are ignored.
        """
        question = request(
            "metadata",
            topics=[{"name": topic} for topic in topics],
            allow_auto_topic_creation=False,
        )
        response = yield Call(broker_id=self.any_broker(), request=question)
        for topic in response.topics if response is not None else ():
            if topic.error_code is not ErrorCode.none:
                continue
            for partition_metadata in topic.partitions:
                partition = TopicPartition(topic.name, partition_metadata.partition_index)
                known = self._leaders.get(partition)
                if known is None or partition_metadata.leader_epoch >= known.epoch:
                    self._leaders[partition] = Leader(
                        broker_id=partition_metadata.leader_id,
                        epoch=partition_metadata.leader_epoch,
                    )

    def await_leader(self, partition: TopicPartition, *, refresh: bool = False) -> Step:
        """Return a partition's leader. Retry until a leader is known.

        With `refresh`, the client requests metadata even if a leader is known.
        """
        if refresh:
            yield Sleep(ms=self.random.randint(1, RETRY_MS))
            yield from self.find_leaders(partition.topic)
        while (leader := self.leader(partition)) is None:
            yield Sleep(ms=RETRY_MS)
            yield from self.find_leaders(partition.topic)
        return leader

    # Requests

    def _go_on(self, script: Script, value: object) -> None:
        if self.is_stopped:
            script.close()
            return
        try:
            wanted = script.send(value)
        except StopIteration:
            return
        if isinstance(wanted, Sleep):
            self._event_queue.after(wanted.ms, lambda: self._go_on(script, None))
        else:
            self._send(script, wanted)

    def _send(self, script: Script, call: Call) -> None:
        connection = self._connections.get(call.broker_id)
        if connection is None or not connection.is_open_at_source:
            connection = self._network.connect(self.name, host_of(call.broker_id), self)
            self._connections[call.broker_id] = connection
        self._last_id += 1
        request_id = self._last_id
        frame = call.request.frame(request_id, self.name)
        self._in_flight[request_id] = _InFlightCall(call.request, script, connection)
        self._event_queue.after(call.timeout_ms, lambda: self._time_out(request_id))
        self._network.send(connection, request_id, frame)

    def _time_out(self, request_id: int) -> None:
        awaited = self._in_flight.get(request_id)
        if awaited is not None and awaited.connection.is_open_at_source:
            self._close(awaited.connection)

    def responded(self, request_id: int, frame: bytes) -> None:
        """Continue the script with the response to its request."""
        awaited = self._in_flight.pop(request_id)
        self._go_on(awaited.script, awaited.request.response(frame, request_id))

    def failed(self, request_id: int, reason: str) -> None:
        """Continue the script without a response."""
        del reason
        awaited = self._in_flight.pop(request_id)
        self._go_on(awaited.script, None)
