"""A client of a simulated cluster: scripts that send requests and wait.

Purpose: run scripts, which are generators that yield an `Ask` and receive the response (or None),
or yield a `Pause`; a client runs several concurrently. It keeps one connection per broker, closes
it when a response is late, and keeps each partition's leader of the highest epoch (KIP-320).
Invariant: a stopped client does nothing. What it must not know: the scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from integration.raw import decode_response, encode_request
from integration.simulation.agenda import Agenda
from integration.simulation.cluster import host_of
from integration.simulation.messages import request
from integration.simulation.network import Connection, Network

RETRY_MS: Final = 60
REQUEST_TIMEOUT_MS: Final = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Send a request to a broker and wait for the response."""

    broker_id: int
    request: RequestPayload
    timeout_ms: int = REQUEST_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait."""

    ms: int


Script = Generator[Ask | Pause, Any, None]
Step = Generator[Ask | Pause, Any, Any]
"""A part of a script, with a result."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """A partition's leader (-1 if there is none) and leader epoch."""

    broker_id: int
    epoch: int


@dataclass(slots=True)
class _Awaited:
    request: RequestPayload
    script: Script
    connection: Connection


class Client:
    """One client process."""

    def __init__(
        self,
        name: str,
        *,
        agenda: Agenda,
        network: Network,
        random: Random,
        broker_ids: Sequence[int],
    ) -> None:
        self.name = name
        self.random = random
        self.broker_ids = tuple(broker_ids)
        self.is_stopped = False
        self._agenda = agenda
        self._network = network
        self._leaders: dict[TopicPartition, Leader] = {}
        self._connections: dict[int, Connection] = {}
        self._awaited: dict[int, _Awaited] = {}
        self._last_id = 0

    @property
    def now_ms(self) -> int:
        """The current time."""
        return self._agenda.now_ms

    def spawn(self, script: Script, *, after_ms: int = 0) -> None:
        """Start a script."""
        self._agenda.after(after_ms, lambda: self._go_on(script, None))

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Run an action after a delay, unless the client is stopped."""
        self._agenda.after(delay_ms, lambda: None if self.is_stopped else act())

    def stop(self) -> None:
        """Kill the process, as `kill -9` does; requests that were sent may still arrive."""
        self.is_stopped = True
        for connection in self._connections.values():
            if connection.is_open_here:
                self._network.close(connection)

    def any_broker(self) -> int:
        """Return a random broker."""
        return self.random.choice(self.broker_ids)

    # Leaders

    def leader(self, partition: TopicPartition) -> Leader | None:
        """Return the known leader, or None."""
        found = self._leaders.get(partition)
        return found if found is not None and found.broker_id >= 0 else None

    def find_leaders(self, *topics: str) -> Step:
        """Ask a broker for the leader; ignore older leader epochs."""
        question = request(
            "metadata",
            topics=[{"name": topic} for topic in topics],
            allow_auto_topic_creation=False,
        )
        response = yield Ask(broker_id=self.any_broker(), request=question)
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
        """Return a partition's leader, and retry until it is known; `refresh` asks again."""
        if refresh:
            yield Pause(ms=self.random.randint(1, RETRY_MS))
            yield from self.find_leaders(partition.topic)
        while (leader := self.leader(partition)) is None:
            yield Pause(ms=RETRY_MS)
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
        if isinstance(wanted, Pause):
            self._agenda.after(wanted.ms, lambda: self._go_on(script, None))
        else:
            self._ask(script, wanted)

    def _ask(self, script: Script, ask: Ask) -> None:
        connection = self._connections.get(ask.broker_id)
        if connection is None or not connection.is_open_here:
            connection = self._network.connect(self.name, host_of(ask.broker_id), self)
            self._connections[ask.broker_id] = connection
        self._last_id += 1
        request_id = self._last_id
        frame = encode_request(ask.request, request_id, self.name)
        self._awaited[request_id] = _Awaited(ask.request, script, connection)
        self._agenda.after(ask.timeout_ms, lambda: self._time_out(request_id))
        self._network.send(connection, request_id, frame)

    def _time_out(self, request_id: int) -> None:
        awaited = self._awaited.get(request_id)
        if awaited is not None and awaited.connection.is_open_here:
            self._network.close(awaited.connection)

    def responded(self, request_id: int, frame: bytes) -> None:
        """Implement the network's `Caller`."""
        awaited = self._awaited.pop(request_id)
        self._go_on(awaited.script, decode_response(awaited.request, frame, request_id))

    def failed(self, request_id: int, reason: str) -> None:
        """Implement the network's `Caller`."""
        del reason
        awaited = self._awaited.pop(request_id)
        self._go_on(awaited.script, None)
