"""Clients of a virtual cluster: one connection per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from broker_ref.events import CloseConnection, ConnectionOpened, FrameReceived, SendFrame
from integration.raw import request
from tests.broker_ref.node.driver import read_response, request_frame
from tests.broker_ref.node.requests import batch, produce, produced
from tests.broker_ref.virtual import VirtualCluster, address_of


@dataclass(slots=True, kw_only=True, eq=False)
class Asked:
    """A request and its response so far."""

    request: Any
    answer: Any = None
    is_closed: bool = False

    @property
    def is_open(self) -> bool:
        """Return whether there is neither a response nor a closed connection."""
        return self.answer is None and not self.is_closed


class Clients:
    """The clients of one cluster."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster
        self._asked: dict[tuple[int, int], Asked] = {}
        self._connections = 0

    def ask(self, broker_id: int, asked: Any) -> Asked:
        """Send a request; `collect` updates `is_open` and `answer`."""
        self._connections += 1
        found = self._asked[broker_id, self._connections] = Asked(request=asked)
        opened = ConnectionOpened(
            connection_id=self._connections, peer="client:1", local=address_of(broker_id)
        )
        self._note(broker_id, self._cluster.handle(broker_id, opened))
        frame = FrameReceived(connection_id=self._connections, frame=request_frame(asked))
        self._note(broker_id, self._cluster.handle(broker_id, frame))
        return found

    def collect(self) -> None:
        """Collect new responses."""
        for broker_id in self._cluster.configs:
            self._note(broker_id, self._cluster.take_effects(broker_id))

    def is_open(self, asked: Asked) -> bool:
        """Return whether a request has no response so far."""
        self.collect()
        return asked.is_open

    def outcome(self, asked: Asked) -> Any:
        """Return the response, advancing the time; None if the connection was closed."""
        self._cluster.run_until(lambda: not self.is_open(asked))
        return asked.answer

    def call(self, broker_id: int, asked: Any) -> Any:
        """Send a request and return its response, advancing the time."""
        answer = self.outcome(self.ask(broker_id, asked))
        assert answer is not None, "the connection was closed"
        return answer

    def create_topic(self, name: str, *replicas: int, through: int = 1, **configs: str) -> None:
        """Create a topic with one partition on these brokers, led by the first, known to all."""
        answer = self.call(through, create_topics(name, replicas=replicas, **configs))
        assert answer.topics[0].error_code is ErrorCode.none, answer
        self._cluster.run_until(
            lambda: all(
                name in self._cluster.broker(each).metadata.topics for each in self._cluster.running
            )
        )

    def write(self, broker_id: int, value: str, *, topic: str = "t", acks: int = -1) -> ErrorCode:
        """Produce a record and return the error code."""
        code: ErrorCode = produced(
            self.call(broker_id, produce(batch(value), topic=topic, acks=acks, timeout=5_000))
        ).error_code
        return code

    def hang_up(self, broker_id: int) -> None:
        """Close the connections of requests that wait for a broker."""
        self.collect()
        for (asked_id, _), asked in self._asked.items():
            asked.is_closed = asked.is_closed or (asked_id == broker_id and asked.is_open)

    def _note(self, broker_id: int, effects: list[Any]) -> None:
        for effect in effects:
            asked = self._asked.get((broker_id, effect.connection_id))
            if asked is None or not asked.is_open:
                continue
            if isinstance(effect, SendFrame):
                asked.answer = read_response(asked.request, effect.frame)
            elif isinstance(effect, CloseConnection):
                asked.is_closed = True


def create_topics(name: str, *, replicas: tuple[int, ...] = (), **configs: str) -> Any:
    """Return a request for a topic with one partition; config names have underscores."""
    assignments = [{"partition_index": 0, "broker_ids": replicas}] if replicas else []
    return request(
        "create_topics",
        7,
        topics=[
            {
                "name": name,
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": assignments,
                "configs": [
                    {"name": config.replace("_", "."), "value": value}
                    for config, value in configs.items()
                ],
            }
        ],
        timeout=10_000,
        validate_only=False,
    )
