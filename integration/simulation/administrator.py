"""A simulated administrator, which creates topics and moves leaders.

Invariant: topic creation is retried until the topic exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kio.schema.errors import ErrorCode

from integration.simulation.client import Call, Client, Script, Sleep, Step, TopicPartition
from integration.simulation.messages import request


class Administrator:
    """An administrator that sends requests with one client."""

    def __init__(self, client: Client) -> None:
        self.made: dict[str, None] = {}
        self._client = client

    def make_topic(self, name: str, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic. `made` contains its name once the topic exists."""
        self._client.spawn(self._make(name, configs or {}), after_ms=300)

    def _make(self, name: str, configs: Mapping[str, str]) -> Script:
        yield from self.create(name, configs)
        self.made[name] = None

    def create(self, name: str, configs: Mapping[str, str] = MappingProxyType({})) -> Step:
        """Yield the steps that create a topic. Retry until the topic exists."""
        listed = [{"name": key, "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": listed}
        creation = request("create_topics", topics=[topic], timeout=5_000)
        while True:
            broker_id = self._client.any_broker()
            response = yield Call(broker_id=broker_id, request=creation)
            if response is not None and response.topics[0].error_code in {
                ErrorCode.none,
                ErrorCode.topic_already_exists,
            }:
                return
            yield Sleep(ms=50)

    def upgrade(self, feature: str, level: int, *, at_ms: int) -> None:
        """Set the level of a feature at a virtual time. Retry until the request succeeds."""
        self._client.spawn(self._upgrade(feature, level), after_ms=at_ms - self._client.now_ms)

    def _upgrade(self, feature: str, level: int) -> Script:
        update = {"feature": feature, "max_version_level": level, "upgrade_type": 1}
        wanted = request("update_features", feature_updates=[update], timeout=1_000)
        while True:
            response = yield Call(broker_id=self._client.any_broker(), request=wanted)
            if response is not None and response.error_code is ErrorCode.none:
                return
            yield Sleep(ms=50)

    def move_leader(
        self,
        partition: TopicPartition,
        replicas: Sequence[int],
        *,
        every_ms: int,
        until_ms: int,
    ) -> None:
        """Elect the in-sync replicas in `replicas` as leader in turn, until `until_ms`."""
        self._client.spawn(self._move_around(partition, tuple(replicas), every_ms, until_ms))

    def reassign(
        self, partition: TopicPartition, replicas: Sequence[int], *, cancel_after_ms: int | None
    ) -> None:
        """Move a partition to other brokers.

        If `cancel_after_ms` is given, cancel the reassignment after this time.
        """
        self._client.spawn(self._reassign(partition, replicas))
        if cancel_after_ms is not None:
            self._client.spawn(self._reassign(partition, None), after_ms=cancel_after_ms)

    def _reassign(self, partition: TopicPartition, replicas: Sequence[int] | None) -> Script:
        wanted = {"partition_index": partition.partition, "replicas": replicas}
        topic = {"name": partition.topic, "partitions": [wanted]}
        yield Call(
            broker_id=self._client.any_broker(),
            request=request("alter_partition_reassignments", topics=[topic], timeout=1_000),
        )

    def _move_around(
        self, partition: TopicPartition, replicas: tuple[int, ...], every_ms: int, until_ms: int
    ) -> Script:
        yield from self._move(partition, replicas)
        while self._client.now_ms + every_ms < until_ms:
            yield Sleep(ms=every_ms)
            replicas = replicas[1:] + replicas[:1]
            yield from self._move(partition, replicas)

    def _move(self, partition: TopicPartition, replicas: tuple[int, ...]) -> Step:
        wanted = {"partition_index": partition.partition, "replicas": replicas}
        topic = {"name": partition.topic, "partitions": [wanted]}
        elected = {"topic": partition.topic, "partitions": [partition.partition]}
        for each in (
            request("alter_partition_reassignments", topics=[topic], timeout=1_000),
            request("elect_leaders", topic_partitions=[elected], timeout=1_000),
        ):
            yield Call(broker_id=self._client.any_broker(), request=each)
