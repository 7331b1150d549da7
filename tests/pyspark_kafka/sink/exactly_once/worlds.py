"""The clusters in which scenarios run: the fake cluster and real clusters.

Both classes implement the protocol `World` of `runs`. Each world has new topics and ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

import pytest

from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.kafka.offsets import LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import TransactionVersion
from pyspark_kafka.sink.exactly_once.clock import wall_clock_ms
from tests.conftest import TopicFactory
from tests.pyspark_kafka.client.records import options, read_all
from tests.pyspark_kafka.sink.exactly_once.fake_cluster import FakeCluster

_LONG = {
    "a_driver_killed_anywhere",
    "a_driver_killed_twice",
    "an_old_driver_wakes_up_anywhere",
    "an_old_driver_works_while_the_new_one_writes",
}
"""Scenarios that take seconds on the fake cluster."""


def each_scenario(scenarios: Iterable[Callable[..., object]]) -> pytest.MarkDecorator:
    """Parametrize `scenario`. Long scenarios are marked `slow`."""
    cases = [
        pytest.param(one, id=one.__name__, marks=pytest.mark.slow if one.__name__ in _LONG else ())
        for one in scenarios
    ]
    return pytest.mark.parametrize("scenario", cases)


class FakeWorld:
    def __init__(self, version: TransactionVersion = 2) -> None:
        self.cluster = FakeCluster(version, has_topic_ids=True)
        self._numbers = count(1)

    def fresh(self) -> FakeWorld:
        return FakeWorld(self.cluster.transaction_version)

    def client(self, name: str) -> TransactionalClient:
        return self.cluster.client(name)

    def now_ms(self) -> int:
        return self.cluster.now_ms

    def topic(self, partitions: int = 1) -> str:
        name = f"topic-{next(self._numbers)}"
        self.cluster.create_topic(name, partitions)
        return name

    def name(self) -> str:
        return f"x-{next(self._numbers)}"

    def committed(self, topic: str) -> list[bytes]:
        return sorted(value or b"" for _, value in self.cluster.committed(topic))

    def is_stable(self, topic: str) -> bool:
        return self.cluster.is_stable(topic)

    def group_offset(self, group_id: str, partition: TopicPartition) -> int | None:
        return self.cluster.groups.get((group_id, partition))


class RealWorld:
    """A cluster of brokers as a world; `names` returns new names."""

    def __init__(self, bootstrap: str, topics: TopicFactory, names: Callable[[], str]) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._names = names
        self._partitions: dict[str, int] = {}

    def fresh(self) -> RealWorld:
        return self

    def client(self, name: str) -> TransactionalClient:
        from pyspark_kafka.client.factory import open_transactional_client  # noqa: PLC0415

        return open_transactional_client(options(self._bootstrap, engine="native", client_id=name))

    def now_ms(self) -> int:
        return wall_clock_ms()

    def topic(self, partitions: int = 1) -> str:
        name = self._topics(partitions)
        self._partitions[name] = partitions
        return name

    def name(self) -> str:
        return self._names()

    def committed(self, topic: str) -> list[bytes]:
        records = read_all(self._bootstrap, topic, partitions=self._partitions[topic])
        return sorted(record.value or b"" for record in records)

    def is_stable(self, topic: str) -> bool:
        partitions = [TopicPartition(topic, n) for n in range(self._partitions[topic])]
        with self.client("reader") as client:
            ends, stable = (
                client.list_offsets(dict.fromkeys(partitions, LATEST), level)
                for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
            )
        return ends == stable

    def group_offset(self, group_id: str, partition: TopicPartition) -> int | None:
        with self.client("reader") as client:
            return client.committed_offsets(group_id, [partition])[partition]
