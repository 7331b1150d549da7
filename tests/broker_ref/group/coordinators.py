"""A group coordinator with a log in memory and virtual time; replicas can lag."""

from __future__ import annotations

from typing import Any

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import OFFSETS_TOPIC
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.group.members import JoinRequest, MemberProtocol, SyncRequest
from broker_ref.group.offset_metadata_manager import Committer
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.shard import TransactionalProducer
from broker_ref.log.batch import NO_SEQUENCE
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.replication.partition import Partition
from broker_ref.schedule import Schedule
from integration.simulation.cluster import seeded_bytes
from tests.broker_ref.node.driver import NodeDriver
from tests.broker_ref.node.requests import create_topic, request

CONFIG = BrokerConfig(
    offsets_topic_num_partitions=1,
    group_initial_rebalance_delay_ms=3000,
    group_max_size=600,
)


class Coordinators:
    """One coordinator at a time on the same log; `restart` loads the log again."""

    def __init__(self, config: BrokerConfig = CONFIG) -> None:
        self.driver = NodeDriver(config)
        create_topic(self.driver, "t", 10)
        self.driver.call(request(10, 2, key="g", key_type=0))
        self.config = config
        self.now_ms = self.driver.now_ms
        self._random = seeded_bytes(7)
        self.woken: list[object] = []
        self.restart()

    def restart(self) -> None:
        self.schedule = Schedule(self.now_ms)
        broker = self.driver.broker
        self.groups = GroupCoordinator(
            config=self.config,
            metadata=broker.metadata,
            replicas=broker.replicas,
            schedule=self.schedule,
            random_bytes=self._random,
            now_ms=self.now_ms,
            wake=self.woken.append,
        )
        self.settle()

    @property
    def partition(self) -> Partition:
        return self.driver.broker.replicas.partition(OFFSETS_TOPIC, 0)

    def advance(self, milliseconds: int) -> None:
        target_ms = self.now_ms + milliseconds
        while (due_ms := self.schedule.next_deadline_ms()) is not None and due_ms <= target_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.schedule.run(self.now_ms)
        self.now_ms = target_ms

    def settle(self) -> None:
        self.groups.partitions_changed([self.partition.key], self.now_ms)

    def join(self, member_id: str = "", **changed: Any) -> Any:
        fields: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": (MemberProtocol(name="range", metadata=b"m"),),
            "requires_known_member_id": False,
            "can_skip_assignment": True,
        }
        return self.groups.join(JoinRequest(**(fields | changed)), self.now_ms)

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None
    ) -> Any:
        return self.groups.sync(
            SyncRequest(
                group_id="g",
                generation_id=generation_id,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments or {},
            ),
            self.now_ms,
        )

    def heartbeat(self, member_id: str, generation_id: int) -> Any:
        return self.groups.heartbeat(
            "g",
            member_id=member_id,
            group_instance_id=None,
            generation_id=generation_id,
            now_ms=self.now_ms,
        )

    def commit(self, offset: int, group: str = "g", partition: int = 0, **committer: Any) -> Any:
        return self.groups.commit(
            group, Committer(**committer), self._offsets({partition: offset}), self.now_ms
        )

    def commit_in_transaction(
        self,
        offsets: dict[int, int],
        group: str = "g",
        *,
        producer_id: int = 7,
        producer_epoch: int = 0,
        **committer: Any,
    ) -> Any:
        """Commit offsets of topic t, by partition, in a verified transaction."""
        guard = self.partition.maybe_start_transaction_verification(
            producer_id, producer_epoch, NO_SEQUENCE, supports_epoch_bump=False
        )
        transaction = TransactionalProducer(
            producer_id=producer_id, producer_epoch=producer_epoch, guard=guard
        )
        return self.groups.commit_transactional(
            group, Committer(**committer), self._offsets(offsets), transaction, self.now_ms
        )

    def commit_unverified(self, offsets: dict[int, int], group: str = "g") -> Any:
        """Commit like `commit_in_transaction`, but without verification."""
        transaction = TransactionalProducer(producer_id=7, producer_epoch=0)
        return self.groups.commit_transactional(
            group, Committer(), self._offsets(offsets), transaction, self.now_ms
        )

    def end(
        self,
        marker: Marker,
        *,
        producer_id: int = 7,
        producer_epoch: int = 0,
        coordinator_epoch: int = 0,
        partition_index: int = 0,
    ) -> Any:
        return self.groups.end_transaction(
            partition_index,
            EndTransactionMarker(marker=marker, coordinator_epoch=coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=1,
            now_ms=self.now_ms,
        )

    def offset_of(self, group: str = "g", partition: int = 0) -> int | None:
        found = self.groups.committed(group, TopicPartition(topic="t", partition=partition))
        return None if found is None else found.offset

    def is_pending(self, group: str = "g", partition: int = 0) -> bool:
        """Return whether an open transaction has committed an offset of topic t."""
        return self.groups.has_pending(group, TopicPartition(topic="t", partition=partition))

    def move(self) -> None:
        """Unload the groups and load them again, as another coordinator does."""
        self.groups.on_resignation(self.partition, self.now_ms)
        self.restart()

    def _offsets(self, offsets: dict[int, int]) -> dict[TopicPartition, OffsetCommitValue]:
        return {
            TopicPartition(topic="t", partition=partition): OffsetCommitValue(
                offset=offset, leader_epoch=-1, metadata="", commit_timestamp_ms=self.now_ms
            )
            for partition, offset in offsets.items()
        }

    def stable(self, count: int) -> tuple[list[str], int]:
        """Form a stable group.

        Return the member ids, with the leader first, and the generation.
        """
        joins = [self.join() for _ in range(count)]
        self.advance(self.config.group_initial_rebalance_delay_ms * 2)
        results = [join.result for join in joins]
        generation_id = results[0].generation_id
        ids = [result.member_id for result in results]
        ids.sort(key=lambda member_id: member_id != results[0].leader)
        syncs = [self.sync(member_id, generation_id) for member_id in ids[1:]]
        assert all(sync.result is None for sync in syncs)
        self.sync(ids[0], generation_id, {member_id: member_id.encode() for member_id in ids})
        assert [sync.result.assignment for sync in syncs] == [m.encode() for m in ids[1:]]
        return ids, generation_id
