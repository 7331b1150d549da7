"""A consumer group under random joins, leaves, lost responses, failovers and subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker_ref.group.consumer.group import ConsumerGroup
from tests.broker_ref.group.consumer.consumer_groups import Consumer, Groups, settle

pytestmark = pytest.mark.slow

MEMBERS = st.integers(0, 4)
TOPICS = st.lists(st.sampled_from(["t", "t2", "t3"]), unique=True)


def contents(group: ConsumerGroup) -> dict[str, Any]:
    """Return the stored state of a group. The time of the next refresh is not stored."""
    state = dict(vars(group))
    del state["metadata_refresh_ms"], state["metadata_refresh_epoch"]
    return state


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Invariants: a partition is used by one member at most, and a loaded group is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups()
        assignors = ("uniform", "range", None, "uniform", None)
        self.members = [
            Consumer(
                self.groups,
                f"m{index}",
                "t",
                server_assignor=assignor,
                instance_id=f"i{index}" if index > 2 else None,
            )
            for index, assignor in enumerate(assignors)
        ]

    @property
    def alive(self) -> list[Consumer]:
        return [one for one in self.members if one.epoch > 0]

    @rule(index=MEMBERS)
    def heartbeat(self, index: int) -> None:
        self.members[index].heartbeat()

    @rule(index=MEMBERS)
    def heartbeat_with_lost_response(self, index: int) -> None:
        """The broker handles the heartbeat, but the client keeps its epoch and its partitions."""
        member = self.members[index]
        epoch, owned = member.epoch, member.owned
        if epoch > 0:
            member.heartbeat()
            member.epoch, member.owned = epoch, owned

    @rule(index=MEMBERS, topics=TOPICS)
    def subscribe(self, index: int, topics: list[str]) -> None:
        self.members[index].subscribe(*topics)

    @rule(index=MEMBERS)
    def leave(self, index: int) -> None:
        member = self.members[index]
        if member.epoch > 0:
            is_static = member.fields["instance_id"] is not None
            instance_id = member.fields["instance_id"]
            epoch = -2 if is_static else -1
            self.groups.heartbeat_of(member.member_id, epoch, instance_id=instance_id)
            member.epoch, member.owned = 0, {}
            if is_static:
                member.member_id += "x"

    @rule(index=MEMBERS)
    def crash(self, index: int) -> None:
        """The member stops and its session expires, while the other members send heartbeats."""
        crashed = self.members[index]
        crashed.owned = {}
        for _ in range(5):
            self.groups.advance(10_000)
            for member in self.alive:
                if member is not crashed:
                    member.heartbeat()
        crashed.epoch = 0

    @precondition(lambda self: self.alive)
    @rule()
    def move(self) -> None:
        before = contents(self.groups.group)
        self.groups.move()
        assert contents(self.groups.group) == before

    @precondition(lambda self: self.alive)
    @rule()
    def complete(self) -> None:
        """If all members send heartbeats, all partitions of their topics are assigned."""
        self.groups.advance(46_000)  # Sessions of the members that have left expire.
        for member in self.members:
            member.epoch, member.owned = 0, {}
        for member in self.members:
            member.heartbeat()
        settle(self.groups, *self.members)
        used = [one for member in self.members for one in member.partitions]
        counts = {"t": 10, "t2": 3, "t3": 1}
        topics = {topic for member in self.members for topic in member.topics}
        expected = {
            (self.groups.topic_id(topic), index)
            for topic in topics
            for index in range(counts[topic])
        }
        assert len(used) == len(expected)
        assert set(used) == expected

    @invariant()
    def a_partition_has_one_user(self) -> None:
        used = [one for member in self.members for one in member.partitions]
        assert len(used) == len(set(used))


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
