"""Tests of groups that change between the classic and the consumer protocol, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.group import ConsumerGroup, ConsumerGroupState
from broker_ref.group.consumer_protocol import (
    encode_assignment,
    read_assignment,
    read_subscription,
)
from broker_ref.group.members import JoinedMember, MemberIdentity, MemberProtocol
from broker_ref.group.shard import Group
from broker_ref.group.states import GroupState
from tests.broker_ref.group.consumer.consumer_groups import Consumer, Groups
from tests.conformance.classic_members import subscription

NONE, REJOIN = ErrorCode.none, ErrorCode.rebalance_in_progress
RESET = frozenset({ErrorCode.unknown_member_id, ErrorCode.group_id_not_found})
RETRY = frozenset({ErrorCode.not_coordinator, REJOIN, ErrorCode.illegal_generation})
PARTITIONS = range(10)
LEAVE = -1

Assign = Callable[[tuple[JoinedMember, ...]], dict[str, bytes]]


def config(policy: str = "bidirectional", **changed: Any) -> BrokerConfig:
    return BrokerConfig(
        offsets_topic_num_partitions=1,
        group_initial_rebalance_delay_ms=0,
        group_consumer_assignment_interval_ms=0,
        group_consumer_migration_policy=policy,
        **changed,
    )


class Classic:
    """A classic member that subscribes to t. An eager member gives its partitions up to rejoin.

    As the leader, it assigns the result of `assign`.
    """

    def __init__(
        self,
        groups: Groups,
        *,
        instance_id: str | None = None,
        is_eager: bool = False,
        assign: Assign | None = None,
    ) -> None:
        self.groups = groups
        self.instance_id = instance_id
        self.is_eager = is_eager
        self.assign = assign or assigned
        self.member_id = ""
        self.generation_id = -1
        self.owned: set[int] = set()
        self.join: Any = None
        self.sync: Any = None

    @property
    def is_idle(self) -> bool:
        """Whether the member has joined and waits for no response."""
        return bool(self.member_id) and self.join is None and self.sync is None

    def step(self) -> None:
        """Take the results of pending requests, or send the next request."""
        self.groups.settle()
        if self.join is not None:
            self._take_join()
        elif self.sync is not None:
            self._take_sync()
        elif not self.member_id:
            self.send_join()
        else:
            self._heartbeat()
        self.groups.settle()

    def send_join(self) -> None:
        if self.is_eager:
            self.owned = set()
        metadata = subscription("t", *self.owned)
        protocols = (MemberProtocol(name="range", metadata=metadata),)
        self.join = self.groups.join(
            self.member_id, group_instance_id=self.instance_id, protocols=protocols
        )

    def _heartbeat(self) -> None:
        self._handle(self.groups.heartbeat(self.member_id, self.generation_id))

    def _handle(self, code: ErrorCode) -> None:
        if code in RESET:
            self.member_id, self.owned = "", set()
        elif code in RETRY:
            if code is ErrorCode.illegal_generation:
                self.owned = set()
            self.send_join()
        else:
            assert code is NONE, code

    def _take_join(self) -> None:
        result = self.join.result
        if result is None:
            return
        self.join = None
        if result.error_code is not NONE:
            self._handle(result.error_code)
            return
        self.member_id, self.generation_id = result.member_id, result.generation_id
        assignments = self.assign(result.members) if result.members else {}
        self.sync = self.groups.sync(self.member_id, self.generation_id, assignments)

    def _take_sync(self) -> None:
        result = self.sync.result
        if result is None:
            return
        self.sync = None
        if result.error_code is NONE:
            self.owned = partitions(result.assignment)
        self._handle(result.error_code)

    def leave(self) -> None:
        identity = MemberIdentity(member_id=self.member_id)
        self.groups.groups.leave("g", [identity], self.groups.now_ms)
        self.groups.settle()


def partitions(assignment: bytes) -> set[int]:
    return set(read_assignment(assignment).partitions.get("t", ()))


def assigned(members: tuple[JoinedMember, ...]) -> dict[str, bytes]:
    """Assign as a cooperative leader: partitions stay with their owners."""
    shares: dict[str, set[int]] = {
        one.member_id: set(read_subscription(one.metadata).owned.get("t", ())) for one in members
    }
    owned = set().union(*shares.values())
    for partition in PARTITIONS:
        if partition not in owned:
            min(shares.values(), key=len).add(partition)
    return {name: encode_assignment({"t": share}, 1) for name, share in shares.items()}


GroupMember = Classic | Consumer


def owners(members: list[GroupMember]) -> Counter[int]:
    return Counter(
        partition
        for member in members
        for partition in (
            member.owned
            if isinstance(member, Classic)
            else (partition for _, partition in member.partitions)
        )
    )


def step(member: GroupMember) -> None:
    if isinstance(member, Classic):
        member.step()
    elif member.heartbeat() in RESET:
        member.epoch, member.owned = 0, {}


def leave(random: Random, members: list[GroupMember]) -> None:
    """Let a member leave that has joined and does not wait for a response."""
    joined = [
        member
        for member in members
        if (member.epoch > 0 if isinstance(member, Consumer) else member.is_idle)
    ]
    if not joined:
        return
    member = random.choice(joined)
    members.remove(member)
    if isinstance(member, Classic):
        member.leave()
    else:
        member.groups.heartbeat_of(member.member_id, LEAVE)


def run(groups: Groups, members: list[GroupMember], rounds: int) -> None:
    """Let all members send requests. No partition ever has two owners."""
    for _ in range(rounds):
        for member in members:
            step(member)
            assert max(owners(members).values(), default=0) <= 1
        groups.advance(100)


def settle(groups: Groups, members: list[GroupMember]) -> None:
    """Run until each partition has one owner and the group has exactly these members.

    A member whose id was lost with a response stays until its session or rebalance timeout.
    """
    deadline_ms = groups.now_ms + 60_000
    while members and not is_settled(groups, members):
        assert groups.now_ms < deadline_ms, owners(members)
        run(groups, members, 1)


def group_of(groups: Groups) -> Group | None:
    return next((one for one in groups.groups.groups() if one.group_id == "g"), None)


def is_settled(groups: Groups, members: list[GroupMember]) -> bool:
    group = group_of(groups)
    has_consumers = any(isinstance(member, Consumer) for member in members)
    return (
        group is not None
        and group.state in {GroupState.STABLE, ConsumerGroupState.STABLE}
        and isinstance(group, ConsumerGroup) == has_consumers
        and group.members.keys() == {member.member_id for member in members}
        and owners(members) == Counter(PARTITIONS)
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_partition_has_two_owners_while_members_change_their_protocol(seed: int) -> None:
    """Members join, leave and change their protocol, and the coordinator moves."""
    random = Random(seed)
    groups = Groups(config())
    members: list[GroupMember] = []
    for number in range(30):
        action = random.choice(("classic", "eager", "consumer", "leave", "leave", "move", "run"))
        if action == "consumer":
            # While a classic group rebalances, the coordinator does not know what its members own.
            settle(groups, members)
            members.append(consumer := Consumer(groups, f"m{number}", "t"))
            consumer.join()
        elif action == "move":
            group = group_of(groups)
            # As in Kafka, a group that became a classic group is stable when it is loaded, even if
            # it had not yet assigned the partitions of the member that left.
            if group is None or group.state is not GroupState.PREPARING_REBALANCE:
                groups.move()
        elif action == "leave":
            leave(random, members)
        elif action != "run":
            members.append(Classic(groups, is_eager=action == "eager"))
        run(groups, members, random.randrange(4))
        if members and random.random() < 0.2:
            settle(groups, members)
    members.append(Classic(groups))
    settle(groups, members)


def mixed(policy: str = "bidirectional") -> tuple[Groups, Classic, Consumer]:
    groups = Groups(config(policy))
    classic, consumer = Classic(groups), Consumer(groups, "m1", "t")
    run(groups, [consumer, classic], 10)
    return groups, classic, consumer


@pytest.mark.parametrize(
    ("policy", "is_upgraded", "is_downgraded"),
    [
        ("disabled", False, False),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_migration_policies(policy: str, is_upgraded: bool, is_downgraded: bool) -> None:
    """A classic member can always join a consumer group."""
    groups = Groups(config(policy))
    classic = Classic(groups)
    run(groups, [classic], 5)
    code = Consumer(groups, "m1", "t").join()
    assert code is (NONE if is_upgraded else ErrorCode.group_id_not_found)
    groups, classic, consumer = mixed(policy)
    assert isinstance(groups.group, ConsumerGroup)
    groups.heartbeat_of(consumer.member_id, LEAVE)
    # As in Kafka, a group without consumers assigns their partitions when a member rejoins.
    classic.send_join()
    run(groups, [classic], 10)
    (found,) = groups.groups.groups()
    assert isinstance(found, ConsumerGroup) is not is_downgraded
    assert owners([classic]) == Counter(PARTITIONS)


def classic_group(*shares: set[int]) -> tuple[Groups, list[Classic]]:
    """Return a classic group whose leader assigns one of the shares to each member."""

    def assign(members: tuple[JoinedMember, ...]) -> dict[str, bytes]:
        pairs = zip(members, shares, strict=False)
        return {member.member_id: encode_assignment({"t": share}, 1) for member, share in pairs}

    groups = Groups(config())
    members = [Classic(groups, assign=assign) for _ in shares]
    for _ in range(10):
        for member in members:
            member.step()
        groups.advance(100)
    assert sorted(sorted(member.owned) for member in members) == sorted(map(sorted, shares))
    return groups, members


def test_group_in_which_a_partition_has_two_owners_is_not_converted() -> None:
    groups, members = classic_group({0, 1}, {1, 2})
    before = [member.owned for member in members]
    assert Consumer(groups, "m1", "t").join() is ErrorCode.group_id_not_found
    for member in members:
        member.step()
    assert groups.groups.describe("g").group_state == GroupState.STABLE.value
    assert [member.owned for member in members] == before


def test_converted_group_gives_up_partitions_that_do_not_exist() -> None:
    groups, members = classic_group({-1, 0, 1}, {2, len(PARTITIONS)})
    consumer = Consumer(groups, "m1", "t")
    assert consumer.join() is NONE
    settle(groups, [*members, consumer])


def test_groups_that_are_too_large_are_not_converted() -> None:
    groups = Groups(config(group_consumer_max_size=1))
    members = [Classic(groups), Classic(groups)]
    run(groups, list(members), 10)
    assert Consumer(groups, "m1", "t").join() is ErrorCode.group_id_not_found
    groups = Groups(config(group_max_size=1))
    consumer, first, second = Consumer(groups, "m1", "t"), Classic(groups), Classic(groups)
    run(groups, [consumer, first, second], 10)
    groups.heartbeat_of("m1", LEAVE)
    run(groups, [first, second], 10)
    assert isinstance(groups.group, ConsumerGroup)
    # When a classic member leaves, the rest of the group is small enough.
    first.leave()
    run(groups, [second], 10)
    assert groups.groups.describe("g").group_state == GroupState.STABLE.value
    assert owners([second]) == Counter(PARTITIONS)


def test_group_is_downgraded_when_members_of_both_protocols_leave() -> None:
    groups = Groups(config())
    consumer, first, second = Consumer(groups, "m1", "t"), Classic(groups), Classic(groups)
    run(groups, [consumer, first, second], 10)
    leaving = [MemberIdentity(member_id=one.member_id) for one in (consumer, first)]
    groups.groups.leave("g", leaving, groups.now_ms)
    groups.settle()
    assert groups.groups.describe("g").group_state == GroupState.PREPARING_REBALANCE.value
    run(groups, [second], 10)
    assert groups.groups.describe("g").group_state == GroupState.STABLE.value
    assert owners([second]) == Counter(PARTITIONS)


def test_group_is_downgraded_although_a_subscription_is_invalid() -> None:
    """Only its version is read. JoinGroup checks the subscription of the first protocol."""
    groups = Groups(config())
    assert Consumer(groups, "m1", "t").join() is NONE
    valid = subscription("t")
    by_range = MemberProtocol(name="range", metadata=valid)
    invalid = MemberProtocol(name="roundrobin", metadata=valid[:2])
    for protocols in ((by_range, invalid), (MemberProtocol(name="roundrobin", metadata=valid),)):
        reply = groups.join(protocols=protocols)
        groups.settle()
        assert reply.result.error_code is NONE
    assert groups.heartbeat_of("m1", LEAVE).error_code is NONE
    (group,) = groups.groups.groups()
    assert isinstance(group, ClassicGroup)
    assert (group.protocol_name, len(group.members)) == ("roundrobin", 2)


def test_group_is_downgraded_when_the_session_of_its_last_consumer_expires() -> None:
    """The group becomes a classic group when the session of its last consumer expires."""
    groups, classic, consumer = mixed()
    for _ in range(460):
        classic.step()
        groups.advance(100)
    assert groups.groups.describe("g").group_state == GroupState.STABLE.value
    assert owners([classic]) == Counter(PARTITIONS)
    # The members of the classic group, and their sessions, are loaded.
    groups.move()
    assert groups.groups.describe("g").group_state == GroupState.STABLE.value
    assert consumer.heartbeat() is ErrorCode.group_id_not_found
    groups.advance(11_000)
    assert groups.groups.describe("g").group_state == GroupState.EMPTY.value


def test_a_coordinator_loads_groups_with_members_of_both_protocols() -> None:
    groups, classic, consumer = mixed()
    before = groups.group
    groups.move()
    after = groups.group
    assert (after.members, after.target) == (before.members, before.target)
    assert (after.group_epoch, after.assignment_epoch) == (before.group_epoch, 3)
    assert groups.heartbeat(classic.member_id, classic.generation_id) is NONE
    assert consumer.heartbeat() is NONE
    # The session of a classic member is the one in its JoinGroup request.
    groups.advance(11_000)
    assert set(groups.group.members) == {"m1"}


def test_a_static_member_replaces_the_last_consumer() -> None:
    """The members keep their generation and their assignments, and their sessions are watched."""
    groups = Groups(config())
    classic, consumer = Classic(groups), Consumer(groups, "m1", "t", instance_id="i1")
    run(groups, [consumer, classic], 10)
    before = {"classic": set(classic.owned), "static": set(owners([consumer]))}
    protocols = (MemberProtocol(name="range", metadata=subscription("t")),)
    reply = groups.join("", group_instance_id="i1", protocols=protocols)
    groups.settle()
    assert reply.result.error_code is NONE
    described = groups.groups.describe("g")
    assert described.group_state == GroupState.STABLE.value
    assert {one.member_id: partitions(one.member_assignment) for one in described.members} == {
        classic.member_id: before["classic"],
        reply.result.member_id: before["static"],
    }
    assert groups.heartbeat(classic.member_id, classic.generation_id) is NONE
    groups.advance(11_000)
    assert groups.groups.describe("g").group_state == GroupState.EMPTY.value


def test_a_rebalancing_group_is_converted() -> None:
    """Its members may not have joined yet, or may not support its current protocol."""
    groups = Groups(config())
    groups.join(requires_known_member_id=True)
    groups.join()
    (group,) = groups.groups.groups()
    (member_id,) = group.members
    groups.groups.leave("g", [MemberIdentity(member_id=member_id)], groups.now_ms)
    assert (group.state, len(group.members)) == (GroupState.PREPARING_REBALANCE, 0)
    assert Consumer(groups, "m1", "t").join() is NONE
    groups = Groups(config())
    metadata = subscription("t")
    names = ("range", "roundrobin")
    groups.join(protocols=[MemberProtocol(name=name, metadata=metadata) for name in names])
    groups.advance(0)
    groups.join(protocols=(MemberProtocol(name="roundrobin", metadata=metadata),))
    (group,) = groups.groups.groups()
    assert (group.state, len(group.members)) == (GroupState.PREPARING_REBALANCE, 2)
    assert Consumer(groups, "m1", "t").join() is NONE
    assert len(groups.group.members) == 3


@pytest.mark.parametrize("has_member", [False, True])
def test_group_in_its_first_rebalance_is_converted_with_a_valid_epoch(has_member: bool) -> None:
    """The generation is 0, and a consumer without topics joins.

    The group epoch is bumped only if the group has a member that needs an assignment.
    """
    groups = Groups(config())
    protocols = (MemberProtocol(name="range", metadata=subscription("t")),)
    groups.join(requires_known_member_id=True)
    groups.join(protocols=protocols)
    (group,) = groups.groups.groups()
    assert isinstance(group, ClassicGroup)
    if not has_member:
        (member_id,) = group.members
        groups.groups.leave("g", [MemberIdentity(member_id=member_id)], groups.now_ms)
    assert (group.generation_id, len(group.members)) == (0, has_member)
    consumer = Consumer(groups, "m1")
    assert consumer.join() is NONE
    assert consumer.epoch == groups.group.group_epoch == groups.group.assignment_epoch
    epochs = [member.member_epoch for member in groups.group.members.values()]
    assert epochs == ([1, 2] if has_member else [1])
    assert consumer.heartbeat() is NONE


def test_conversion_continues_the_rebalance_of_the_classic_group() -> None:
    """All partitions are assigned, although no subscription changes."""
    # A static member changes its protocol during the first rebalance of the group.
    groups = Groups(config())
    Classic(groups, instance_id="i1").send_join()
    consumer = Consumer(groups, "m1", "t", instance_id="i1")
    assert consumer.join() is NONE
    settle(groups, [consumer])
    # A consumer without topics joins during the first rebalance.
    groups = Groups(config())
    classic, consumer = Classic(groups), Consumer(groups, "m1")
    classic.member_id = groups.join(requires_known_member_id=True).result.member_id
    classic.send_join()
    assert consumer.join() is NONE
    settle(groups, [classic, consumer])
    # A static member changes its protocol after another member has left.
    groups = Groups(config())
    leaving, static = Classic(groups), Classic(groups, instance_id="i1")
    run(groups, [leaving, static], 10)
    assert leaving.owned
    leaving.leave()
    consumer = Consumer(groups, "m1", "t", instance_id="i1")
    assert consumer.join() is NONE
    settle(groups, [consumer])
    # A consumer without topics joins after a member has changed to a topic that does not exist.
    groups = Groups(config())
    classic = Classic(groups)
    run(groups, [classic], 10)
    assert classic.owned
    protocols = (MemberProtocol(name="range", metadata=subscription("missing")),)
    joined = groups.join(classic.member_id, protocols=protocols).result
    assert Consumer(groups, "m1").join() is NONE
    assert groups.group.group_epoch > joined.generation_id, "the old assignment is replaced"
