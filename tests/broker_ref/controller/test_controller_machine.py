"""A test that metadata stays consistent under random operations of brokers and admins."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from broker_ref.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from broker_ref.controller.metadata import ClusterMetadata, PartitionMetadata
from broker_ref.controller.topics import NewTopic
from broker_ref.protocol.errors import ApiError
from tests.broker_ref.controller.clusters import ControllerDriver
from tests.broker_ref.controller.test_controller import followed, same

pytestmark = pytest.mark.slow

BROKERS = st.integers(1, 4)
TOPICS = st.sampled_from(["t", "unclean"])
SOME_BROKERS = st.lists(BROKERS, min_size=1, max_size=4, unique=True)


class ControllerMachine(RuleBasedStateMachine):
    """Four brokers and two topics, one of which allows unclean leader elections."""

    driver: ControllerDriver

    def __init__(self) -> None:
        super().__init__()
        self.follower = ClusterMetadata()
        self.before: dict[tuple[str, int], PartitionMetadata] = {}

    @initialize(elr_version=st.integers(0, 1))
    def create(self, elr_version: int) -> None:
        self.driver = ControllerDriver(
            1, 2, 3, 4,
            features={ELIGIBLE_LEADER_REPLICAS_VERSION: elr_version},
            unclean_leader_election_interval_ms="20000",
        )  # fmt: skip
        for name in ("t", "unclean"):
            configs: dict[str, str | None] = {
                "min.insync.replicas": "2",
                "unclean.leader.election.enable": str(name == "unclean").lower(),
            }
            new = NewTopic(name=name, partition_count=2, replication_factor=3, configs=configs)
            self.driver.create_topic(new)

    @rule(broker=BROKERS, is_clean=st.booleans())
    def register(self, broker: int, is_clean: bool) -> None:
        with suppress(ApiError):
            self.driver.register(broker, is_clean=is_clean)
            if not is_clean:
                for partition in self.driver.metadata.partitions():
                    assert broker not in partition.eligible_leader_replicas

    @rule(broker=BROKERS, want_fence=st.booleans(), want_shut_down=st.booleans())
    def heartbeat(self, broker: int, want_fence: bool, want_shut_down: bool) -> None:
        if broker in self.driver.metadata.brokers:
            self.driver.heartbeat(broker, want_fence=want_fence, want_shut_down=want_shut_down)

    @rule(broker=BROKERS, is_clean=st.booleans())
    def recover(self, broker: int, is_clean: bool) -> None:
        self.register(broker, is_clean=is_clean)
        self.heartbeat(broker, want_fence=False, want_shut_down=False)

    @rule(brokers=SOME_BROKERS)
    def expire(self, brokers: list[int]) -> None:
        self.driver.expire(*brokers)

    @rule(elapsed_ms=st.integers(0, 310_000))
    def advance(self, elapsed_ms: int) -> None:
        self.driver.advance(elapsed_ms)

    @rule(topic=TOPICS, partition=st.integers(0, 1), isr=SOME_BROKERS, state=st.integers(0, 1))
    def propose(self, topic: str, partition: int, isr: list[int], state: int) -> None:
        known = self.driver.partition(topic, partition)
        self.driver.propose(known, isr, leader_recovery_state=state)

    @rule(topic=TOPICS, partition=st.integers(0, 1), joining=st.booleans())
    def propose_all(self, topic: str, partition: int, joining: bool) -> None:
        known = self.driver.partition(topic, partition)
        active = [r for r in known.replicas if self.driver.metadata.is_active(r)]
        self.driver.propose(known, active if joining else [known.leader])

    @rule(topic=TOPICS, partition=st.integers(0, 1), replicas=SOME_BROKERS)
    def reassign(self, topic: str, partition: int, replicas: list[int]) -> None:
        self.driver.controller.alter_reassignments({(topic, partition): tuple(replicas)})

    @rule(topic=TOPICS, partition=st.integers(0, 1))
    def cancel(self, topic: str, partition: int) -> None:
        self.driver.controller.alter_reassignments({(topic, partition): None})

    @rule(topic=TOPICS, unclean=st.booleans())
    def elect(self, topic: str, unclean: bool) -> None:
        self.driver.controller.elect_leaders([(topic, 0), (topic, 1)], unclean=unclean)

    @rule(broker=BROKERS)
    @precondition(lambda self: len(self.driver.metadata.brokers) > 1)
    def unregister(self, broker: int) -> None:
        with suppress(ApiError):
            self.driver.controller.unregister_broker(broker)

    @rule()
    def restart(self) -> None:
        before = self.driver.metadata
        self.driver.restart()
        assert same(self.driver.metadata, before)

    @invariant()
    def partitions_are_consistent(self) -> None:
        metadata = self.driver.metadata
        for partition in metadata.partitions():
            assert partition.isr or metadata.is_elr_enabled, partition
            assert not set(partition.isr) & set(partition.eligible_leader_replicas), partition
            assert not (partition.last_known_elr and partition.leader >= 0), partition
            assert set(partition.isr) <= set(partition.replicas), partition
            assert len(set(partition.isr)) == len(partition.isr), partition
            assert len(set(partition.replicas)) == len(partition.replicas), partition
            assert set(partition.removing_replicas) <= set(partition.replicas), partition
            assert set(partition.adding_replicas) <= set(partition.replicas), partition
            if partition.leader == -1:
                continue
            assert partition.leader in partition.isr, partition
            assert all(metadata.is_active(replica) for replica in partition.isr), partition

    @invariant()
    def epochs_never_decrease(self) -> None:
        for partition in self.driver.metadata.partitions():
            key = (partition.topic, partition.partition)
            before = self.before.get(key, partition)
            assert partition.leader_epoch >= before.leader_epoch
            assert partition.partition_epoch >= before.partition_epoch
            if partition.leader != before.leader:
                assert partition.leader_epoch > before.leader_epoch
            unchanged = dataclasses.replace(before, partition_epoch=partition.partition_epoch)
            if partition != unchanged:
                assert partition.partition_epoch > before.partition_epoch
            self.before[key] = partition

    @invariant()
    def followers_see_the_same(self) -> None:
        assert same(followed(self.driver, self.follower), self.driver.metadata)


TestControllerMachine = ControllerMachine.TestCase
TestControllerMachine.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, print_blob=True
)
