"""A test that a group stays consistent under random operations of its members."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.group.members import MemberIdentity, MemberProtocol
from broker_ref.group.offset_metadata_manager import Committer
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.states import STATES_OF_A_GENERATION, GroupState
from tests.broker_ref.group.coordinators import Coordinators

pytestmark = pytest.mark.slow

CONFIG = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=1_000)
picks = st.integers(0, 50)


class GroupMachine(RuleBasedStateMachine):
    """One group, whose members are identified by their last responses."""

    def __init__(self) -> None:
        super().__init__()
        self.made = Coordinators(CONFIG)
        self.joins: list[Any] = []
        self.last_join: dict[str, Any] = {}
        self.syncs: list[tuple[str, int, Any]] = []
        self.known: dict[str, int] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.highest_generation = 0
        self.committed: int | None = None

    def _pick(self, number: int) -> tuple[str, int]:
        ids = sorted(self.known)
        member_id = ids[number % len(ids)]
        return member_id, self.known[member_id]

    @rule(
        instance=st.sampled_from([None, "i1", "i2"]),
        metadata=st.sampled_from([b"a", b"b"]),
        protocol=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range")]),
    )
    def join_new(self, instance: str | None, metadata: bytes, protocol: tuple[str, ...]) -> None:
        protocols = tuple(MemberProtocol(name=name, metadata=metadata) for name in protocol)
        self.joins.append(self.made.join(group_instance_id=instance, protocols=protocols))

    @precondition(lambda self: self.known)
    @rule(number=picks, metadata=st.sampled_from([b"a", b"b"]))
    def join_again(self, number: int, metadata: bytes) -> None:
        member_id, _ = self._pick(number)
        protocols = (MemberProtocol(name="range", metadata=metadata),)
        join = self.made.join(member_id, protocols=protocols)
        superseded = self.last_join.get(member_id)
        if superseded in self.joins:  # The replaced request never completes.
            self.joins.remove(superseded)
        self.joins.append(join)
        self.last_join[member_id] = join

    @precondition(lambda self: self.known)
    @rule(number=picks, content=st.binary(max_size=2))
    def sync(self, number: int, content: bytes) -> None:
        member_id, generation_id = self._pick(number)
        parts = {one: one.encode() + content for one in self.known}
        reply = self.made.sync(member_id, generation_id, parts)
        self.syncs.append((member_id, generation_id, reply))

    @precondition(lambda self: self.known)
    @rule(number=picks)
    def heartbeat(self, number: int) -> None:
        self.made.heartbeat(*self._pick(number))

    @precondition(lambda self: self.known)
    @rule(number=picks)
    def leave(self, number: int) -> None:
        member_id, _ = self._pick(number)
        self.made.groups.leave("g", [MemberIdentity(member_id=member_id)], self.made.now_ms)
        assert self.made.heartbeat(member_id, self.known.pop(member_id)) is not ErrorCode.none

    @precondition(lambda self: self.known)
    @rule(number=picks, offset=st.integers(0, 100))
    def commit(self, number: int, offset: int) -> None:
        member_id, generation_id = self._pick(number)
        group = self._group()
        value = OffsetCommitValue(
            offset=offset, leader_epoch=-1, metadata="", commit_timestamp_ms=self.made.now_ms
        )
        committer = Committer(member_id=member_id, generation_id=generation_id)
        reply = self.made.groups.commit(
            "g", committer, {TopicPartition(topic="t", partition=0): value}, self.made.now_ms
        )
        if reply.result is ErrorCode.none:
            assert group is not None
            assert (member_id in group.members, group.generation_id) == (True, generation_id)
            self.committed = offset

    @rule(milliseconds=st.sampled_from([0, 500, 1_000, 9_000, 21_000, 400_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.made.advance(milliseconds)

    @rule()
    def the_coordinator_moves(self) -> None:
        before = self._group()
        self.made.groups.on_resignation(self.made.partition, self.made.now_ms)
        assert all(join.result is not None for join in self.joins)
        self.made.restart()
        after = self._group()
        assert (before is None) == (after is None)
        if before is not None and after is not None and before.previous_state in (
            GroupState.STABLE, GroupState.EMPTY,
        ):  # fmt: skip
            generation = before.generation_id if before.members else after.generation_id
            assert after.generation_id == generation
            if before.previous_state is GroupState.STABLE:
                kept = {m.member_id: m.assignment for m in before.members.values()}
                assert kept == {m.member_id: m.assignment for m in after.members.values()}
                assert after.leader_id == before.leader_id
        self.highest_generation = after.generation_id if after is not None else 0
        self.parts.clear()

    def _group(self) -> Any:
        return next(iter(self.made.groups.groups()), None)

    @invariant()
    def replies_are_as_expected(self) -> None:
        for join in [join for join in self.joins if join.result is not None]:
            self.joins.remove(join)
            if join.result.error_code is ErrorCode.none:
                self.known[join.result.member_id] = join.result.generation_id
                leads = join.result.leader == join.result.member_id
                assert leads == bool(join.result.members)
        for member_id, generation_id, reply in [s for s in self.syncs if s[2].result is not None]:
            self.syncs.remove((member_id, generation_id, reply))
            if reply.result.error_code is ErrorCode.none:
                part = reply.result.assignment
                assert self.parts.setdefault((member_id, generation_id), part) == part

    @invariant()
    def the_group_is_consistent(self) -> None:
        group = self._group()
        if group is None:  # Retention deletes a group that has no members and no offsets.
            self.highest_generation = 0
            return
        assert group.generation_id >= self.highest_generation
        self.highest_generation = group.generation_id
        assert bool(group.members) == (group.leader_id is not None)
        assert group.leader_id is None or group.leader_id in group.members
        assert (group.state is GroupState.EMPTY) <= (not group.members)
        assert (group.state in STATES_OF_A_GENERATION) <= bool(group.members)
        assert group.awaiting_join == sum(m.join is not None for m in group.members.values())
        statics = {m.group_instance_id: i for i, m in group.members.items() if m.is_static}
        assert statics == group.static_members

    @invariant()
    def the_last_commit_counts(self) -> None:
        found = self.made.groups.committed("g", TopicPartition(topic="t", partition=0))
        assert (None if found is None else found.offset) == self.committed


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
