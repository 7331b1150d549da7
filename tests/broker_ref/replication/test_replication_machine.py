"""A test that three replicas keep acknowledged records under random failures.

The committed logs stay equal. Leaders move, and brokers are cut off, killed and restarted. A
machine that crashes loses its unflushed data, except for the last in-sync replica.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PendingReplication
from tests.broker_ref.replication.cluster import VirtualCluster, values

pytestmark = pytest.mark.slow

BROKERS = (1, 2, 3)
brokers = st.sampled_from(BROKERS)


class ReplicationMachine(RuleBasedStateMachine):
    """Three replicas; `promised` contains the records acknowledged with acks=all, by offset."""

    @initialize(min_isr=st.integers(1, 2), seed=st.integers(0, 1000))
    def begin(self, min_isr: int, seed: int) -> None:
        self.cluster = VirtualCluster(min_isr=min_isr, configs={"replica_lag_time_max_ms": 3000})
        self.random = Random(seed)
        self.waiting: list[tuple[PendingReplication, bytes]] = []
        self.promised: dict[int, bytes] = {}
        self.high_watermarks: dict[tuple[int, int], int] = {}
        self.written = 0

    def leads(self) -> bool:
        return self.cluster.state.leader in self.cluster.brokers

    @precondition(leads)
    @rule(acks_all=st.booleans())
    def produce(self, acks_all: bool) -> None:
        self.written += 1
        value = b"%d" % self.written
        try:
            appended = self.cluster.produce(value, acks_all=acks_all)
        except ApiError:
            return  # Too few replicas are in sync, or the leader does not know about its election.
        if acks_all:
            self.waiting.append((appended, value))

    @rule(milliseconds=st.sampled_from((1, 2, 5, 50, 600, 2000, 9000)))
    def run(self, milliseconds: int) -> None:
        self.cluster.run(milliseconds)

    @rule(broker=brokers)
    def isolate(self, broker: int) -> None:
        self.cluster.isolate(broker)

    @rule()
    def heal(self) -> None:
        self.cluster.cut_links.clear()

    @rule(broker=brokers)
    def move_leader(self, broker: int) -> None:
        state = self.cluster.state
        if broker in state.isr and broker in self.cluster.brokers:
            self.cluster.elect(broker)

    @rule(broker=brokers, loses_tail=st.booleans())
    def crash(self, broker: int, loses_tail: bool) -> None:
        if broker not in self.cluster.brokers:
            return
        others = set(self.cluster.state.isr) - {broker}
        if loses_tail and others & self.cluster.brokers.keys():
            self.cluster.crash(broker, random=self.random)
        else:
            self.cluster.crash(broker)

    @rule(broker=brokers)
    def restart(self, broker: int) -> None:
        if broker not in self.cluster.brokers:
            self.cluster.restart(broker)

    @rule(broker=brokers)
    def bounce(self, broker: int) -> None:
        """Kill and restart a broker before the controller detects the failure."""
        if broker in self.cluster.brokers:
            self.cluster.crash(broker, fence=False)
            self.cluster.restart(broker)

    @rule(broker=brokers)
    def hold_metadata(self, broker: int) -> None:
        self.cluster.held_metadata.add(broker)

    @rule()
    def release_metadata(self) -> None:
        self.cluster.held_metadata.clear()
        self.cluster.publish()

    @invariant()
    def acknowledged_records_are_kept(self) -> None:
        still_waiting = []
        for appended, value in self.waiting:
            outcome = appended.outcome
            if outcome is None:
                still_waiting.append((appended, value))
            elif outcome is ErrorCode.none:
                self.promised[appended.required_offset - 1] = value
        self.waiting = still_waiting
        leader = self.cluster.brokers.get(self.cluster.state.leader)
        if leader is not None and leader.partition.is_leader:
            held = values(leader.partition)
            assert {offset: held.get(offset) for offset in self.promised} == self.promised

    @invariant()
    def logs_agree_where_committed(self) -> None:
        partitions = [broker.partition for broker in self.cluster.brokers.values()]
        for partition in partitions:
            assert partition.high_watermark <= partition.log.log_end_offset
        if not partitions:
            return
        longest = max(partitions, key=lambda partition: partition.high_watermark)
        held = values(longest, until=longest.high_watermark)
        for partition in partitions:
            committed = values(partition, until=partition.high_watermark)
            assert committed == {offset: held[offset] for offset in committed}

    @invariant()
    def high_watermarks_of_leaders_do_not_decrease(self) -> None:
        for broker in self.cluster.brokers.values():
            partition = broker.partition
            if partition.is_leader:
                key = (broker.epoch, partition.leadership_count)
                assert partition.high_watermark >= self.high_watermarks.get(key, 0)
                self.high_watermarks[key] = partition.high_watermark

    def teardown(self) -> None:
        """Check that logs get equal, replicas get in sync and writes succeed when failures end."""
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        self.heal()
        self.release_metadata()
        for broker in BROKERS:
            self.restart(broker)
        cluster.run(10_000)
        last = cluster.produce(b"last")
        cluster.run(3000)
        assert last.outcome is ErrorCode.none
        self.acknowledged_records_are_kept()
        assert set(cluster.state.isr) == set(BROKERS)
        first, *others = (values(broker.partition) for broker in cluster.brokers.values())
        assert others == [first, first]


TestReplicationMachine: Any = ReplicationMachine.TestCase
TestReplicationMachine.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
