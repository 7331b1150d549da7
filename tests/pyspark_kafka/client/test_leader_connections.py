"""Tests of the native producer's connections to leaders."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from pyspark_kafka.client.native.leader_connections import LeaderConnections
from pyspark_kafka.errors import BrokerUnreachableError
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.transport import Address


def test_an_idle_connection_is_replaced() -> None:
    class Opened:
        clock = Clock(now=lambda: 100.0)

        def dedicated_connection(self, _: Broker, *, deadline: float) -> Any:
            return open_connection(deadline)

        def is_usable(self, connection: Any) -> bool:
            return bool(connection.usable)

    def open_connection(_: float) -> Any:
        return SimpleNamespace(usable=True, close=lambda: None)

    router: Any = Opened()
    connections = LeaderConnections(router, request_timeout_s=1.0, connect_timeout_s=30.0)
    broker = Broker(broker_id=1, address=Address("b", 1))
    leader: Any = connections.open(broker, deadline=125.0)
    assert connections.open(broker, deadline=125.0) is leader
    leader.connection.usable = False  # type: ignore[attr-defined]
    assert connections.open(broker, deadline=125.0) is not leader


def test_connect_timeout_grows_after_failures() -> None:
    found: list[float] = []

    class Slow:
        clock = Clock(now=lambda: 100.0)

        def dedicated_connection(self, _: Broker, *, deadline: float) -> Any:
            found.append(deadline - 100.0)
            if len(found) == 5:
                return None
            raise BrokerUnreachableError("it is slow")

    slow: Any = Slow()
    connections = LeaderConnections(slow, request_timeout_s=1.0, connect_timeout_s=30.0)
    brokers = [Broker(broker_id=id_, address=Address("b", 1)) for id_ in (1, 2)]
    for broker in (*brokers[:1] * 4, brokers[1]):
        with suppress(BrokerUnreachableError):
            connections.open(broker, deadline=125.0)
    assert found == [5.0, 10.0, 20.0, 25.0, 5.0]
