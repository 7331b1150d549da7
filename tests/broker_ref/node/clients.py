"""Clients of a virtual cluster, with one connection per request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import request
from integration.simulation.cluster import host_of
from integration.simulation.network import Connection
from tests.broker_ref.node.driver import read_response, request_frame
from tests.broker_ref.node.requests import batch, produce, produced
from tests.broker_ref.virtual import VirtualCluster


@dataclass(slots=True, kw_only=True, eq=False)
class SentRequest:
    """A request, which is the network's `Caller`, and its response."""

    request: Any
    connection: Connection | None = None
    response: Any = None
    is_closed: bool = False

    def is_open(self) -> bool:
        """Return whether there is neither a response nor a closed connection."""
        return self.response is None and not self.is_closed

    def responded(self, request_id: int, frame: bytes) -> None:
        self.response = read_response(self.request, frame, correlation_id=request_id)

    def failed(self, request_id: int, reason: str) -> None:
        del request_id, reason
        self.is_closed = True


class Clients:
    def __init__(self, cluster: VirtualCluster) -> None:
        self._cluster = cluster

    def send(self, broker_id: int, message: Any) -> SentRequest:
        """Send a request; the returned object gets the response."""
        sent = SentRequest(request=message)
        network = self._cluster.network
        sent.connection = network.connect("client", host_of(broker_id), sent)
        network.send(sent.connection, 1, request_frame(message, correlation_id=1))
        self._cluster.deliver()
        return sent

    def disconnect(self, sent: SentRequest) -> None:
        assert sent.connection is not None
        self._cluster.network.close(sent.connection)
        self._cluster.deliver()

    def outcome(self, sent: SentRequest) -> Any:
        """Advance the time until there is a response, and return it.

        Return None if the connection was closed.
        """
        self._cluster.run_until(lambda: not sent.is_open())
        return sent.response

    def call(self, broker_id: int, message: Any) -> Any:
        """Send a request, advance the time until there is a response, and return it."""
        response = self.outcome(self.send(broker_id, message))
        assert response is not None, "the connection was closed"
        return response

    def create_topic(self, name: str, *replicas: int, through: int = 1, **configs: str) -> None:
        """Create a topic with one partition on these brokers, led by the first; all know it."""
        response = self.call(through, create_topics(name, replicas=replicas, **configs))
        assert response.topics[0].error_code is ErrorCode.none, response
        self._cluster.run_until(
            lambda: all(
                name in self._cluster.broker(each).metadata.topics for each in self._cluster.running
            )
        )

    def write(self, broker_id: int, value: str, *, topic: str = "t", acks: int = -1) -> ErrorCode:
        code: ErrorCode = produced(
            self.call(broker_id, produce(batch(value), topic=topic, acks=acks, timeout=5_000))
        ).error_code
        return code


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
