"""Tests of members of classic groups: joining, syncing, sessions and static membership."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.groups import await_coordinator, commit, committed, find_coordinator
from tests.conformance.members import (
    SESSION_TIMEOUT_MS,
    GroupMember,
    leave,
    rejoin_together,
    stable_alone,
    stable_pair,
    subscription,
    sync_all,
)
from tests.conformance.wire import only, served

MemberFactory = Callable[..., GroupMember]
SHORT_MS = 3_000
UUID = "[0-9a-zA-Z_-]{22,36}"


@pytest.fixture(scope="module")
def groups(cluster_with: Callable[..., Cluster]) -> Cluster:
    """Return a cluster with short sessions and a small maximum group size."""
    return cluster_with(
        {
            "group.min.session.timeout.ms": "500",
            "group.max.session.timeout.ms": "60000",
            "group.max.size": "3",
        }
    )


@pytest.fixture
def raw(groups: Cluster) -> Iterator[RawConnection]:
    with RawConnection(groups.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def member(groups: Cluster, group: str) -> Iterator[MemberFactory]:
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(
            GroupMember(groups.bootstrap_servers, options.pop("group", group), **options)
        )


@pytest.fixture
def topic(groups: Cluster, unique_name: Callable[[], str]) -> Callable[..., str]:
    def create(partitions: int = 1) -> str:
        name = unique_name()
        groups.create_topic(name, partitions=partitions)
        return name

    return create


def test_single_member_gets_an_id_and_leads(member: MemberFactory) -> None:
    one = member()
    one.request_member_id()
    assert re.fullmatch(f"raw-{UUID}", one.member_id)
    response = one.join()
    assert (response.error_code, response.generation_id) == (ErrorCode.none, 1)
    assert (response.leader, response.member_id) == (one.member_id, one.member_id)
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert not response.skip_assignment
    (returned,) = response.members
    assert (returned.member_id, returned.group_instance_id, returned.metadata) == (
        one.member_id,
        None,
        b"m",
    )
    synced = one.sync({one.member_id: b"part"})
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"part")
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert one.heartbeat() == ErrorCode.none
    assert one.leave() == ErrorCode.none
    assert one.heartbeat() == ErrorCode.unknown_member_id


def test_every_version_joins(raw: RawConnection, member: MemberFactory) -> None:
    for version in served(raw, "join_group"):
        one = member(group=f"join-version-{version}")
        await_coordinator(raw, one.group)
        response = one.join(version=version)
        assert (response.error_code, response.leader) == (ErrorCode.none, one.member_id), version
        assert response.protocol_name == "range", version
        assert one.sync({one.member_id: b"x"}).assignment == b"x", version


def test_members_wait_for_each_other(member: MemberFactory) -> None:
    one, two = member(), member(protocols={"range": b"n"})
    stable_alone(one)
    two.request_member_id()
    two.join_only()
    eventually(lambda: one.heartbeat() == ErrorCode.rebalance_in_progress)
    assert one.sync().error_code == ErrorCode.rebalance_in_progress
    one.join_only()
    first, second = one.joined(), two.joined()
    assert first.generation_id == second.generation_id == 2
    assert first.leader == second.leader == one.member_id
    returned = {m.member_id: m.metadata for m in first.members}
    assert returned == {one.member_id: b"m", two.member_id: b"n"}
    assert second.members == ()
    sync_all(one, two)
    again = two.sync()
    assert again.assignment == two.member_id.encode()


def test_member_without_partitions_gets_an_empty_assignment(member: MemberFactory) -> None:
    one, two = member(), member()
    stable_alone(one)
    rejoin_together(one, two)
    two.sync_only()
    assert one.sync({one.member_id: b"x", "nobody": b"y"}).assignment == b"x"
    assert two.synced().assignment == b""


def test_joining_again_with_the_same_metadata(member: MemberFactory) -> None:
    leader, other = member(), member()
    stable_pair(leader, other)
    same = other.join()
    assert (same.error_code, same.generation_id, same.members) == (ErrorCode.none, 2, ())
    assert leader.heartbeat() == ErrorCode.none
    other.protocols = {"range": b"else"}
    other.join_only()
    eventually(lambda: leader.heartbeat() == ErrorCode.rebalance_in_progress)
    leader.join_only()
    assert leader.joined().generation_id == other.joined().generation_id == 3


def test_leader_of_a_stable_group_can_start_a_rebalance(member: MemberFactory) -> None:
    one = stable_alone(member())
    assert one.join().generation_id == 2


def test_leader_leaves(member: MemberFactory) -> None:
    leader, other = member(), member()
    stable_pair(leader, other)
    assert leader.leave() == ErrorCode.none
    eventually(lambda: other.heartbeat() == ErrorCode.rebalance_in_progress)
    response = other.join()
    assert (response.leader, response.generation_id) == (other.member_id, 3)


def test_rebalance_that_begins_while_members_sync(member: MemberFactory) -> None:
    one, two, three = member(), member(), member()
    stable_alone(one)
    rejoin_together(one, two)
    two.sync_only()
    three.request_member_id()
    three.join_only()
    assert two.synced().error_code == ErrorCode.rebalance_in_progress
    one.join_only()
    two.join_only()
    assert {m.joined().generation_id for m in (one, two, three)} == {3}


def test_protocol_is_supported_by_all_members(member: MemberFactory) -> None:
    one = stable_alone(member(protocols={"a": b"1", "b": b"2"}))
    two = member(protocols={"b": b"3"})
    two.request_member_id()
    two.join_only()
    eventually(lambda: one.heartbeat() == ErrorCode.rebalance_in_progress)
    one.join_only()
    first, second = one.joined(), two.joined()
    assert (first.protocol_name, second.protocol_name) == ("b", "b")
    assert {m.metadata for m in first.members} == {b"2", b"3"}


@pytest.mark.parametrize(
    "wrong",
    [{"protocols": {"other": b""}}, {"protocol_type": "connect"}, {"protocols": {}}],
    ids=["no common protocol", "another type", "no protocol"],
)
def test_incompatible_protocols_are_refused(member: MemberFactory, wrong: dict[str, Any]) -> None:
    stable_alone(member())
    refused = member(**wrong).join()
    assert refused.error_code == ErrorCode.inconsistent_group_protocol
    assert refused.generation_id == -1


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"a": b""}), ("consumer", {})])
def test_first_member_without_protocol(
    member: MemberFactory, protocol_type: str, protocols: dict[str, bytes]
) -> None:
    refused = member(protocol_type=protocol_type, protocols=protocols).join()
    assert refused.error_code == ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("timeout_ms", [0, 499, 60_001])
def test_session_timeouts_have_bounds(member: MemberFactory, timeout_ms: int) -> None:
    refused = member(session_timeout_ms=timeout_ms).join()
    assert refused.error_code == ErrorCode.invalid_session_timeout


def test_order_of_the_checks_of_a_join(
    cluster: Cluster, member: MemberFactory, unique_name: Callable[[], str]
) -> None:
    """The group id is checked first, then the session timeout, the coordinator and the member."""
    nameless = member(group="", session_timeout_ms=0)
    assert nameless.join().error_code == ErrorCode.invalid_group_id
    group = unique_name()
    with RawConnection(cluster.address(cluster.broker_ids[0])) as raw:
        coordinator = only(find_coordinator(raw, group).coordinators).node_id
    other = next(broker_id for broker_id in cluster.broker_ids if broker_id != coordinator)
    for timeout_ms, error_code in (
        (0, ErrorCode.invalid_session_timeout),
        (SESSION_TIMEOUT_MS, ErrorCode.not_coordinator),
    ):
        with GroupMember(
            cluster.address(other), group, session_timeout_ms=timeout_ms, protocols={}
        ) as elsewhere:
            elsewhere.member_id = "x"
            assert elsewhere.join().error_code == error_code
    unknown = member(protocols={})
    unknown.member_id = "x"
    assert unknown.join().error_code == ErrorCode.unknown_member_id
    stable_alone(member())
    assert unknown.join().error_code == ErrorCode.inconsistent_group_protocol


def test_group_id_must_not_be_empty(member: MemberFactory) -> None:
    nameless = member(group="")
    assert nameless.join().error_code == ErrorCode.invalid_group_id
    assert nameless.sync().error_code == ErrorCode.invalid_group_id
    assert nameless.heartbeat() == ErrorCode.invalid_group_id


def test_group_max_size_is_enforced(member: MemberFactory) -> None:
    one, two, three = member(), member(), member()
    stable_alone(one)
    rejoin_together(one, two)
    sync_all(one, two)
    three.request_member_id()
    three.join_only()
    eventually(lambda: one.heartbeat() == ErrorCode.rebalance_in_progress)
    one.join_only()
    two.join_only()
    for each in (one, two, three):
        assert each.joined().error_code == ErrorCode.none
    refused = member().join()
    assert (refused.error_code, refused.member_id) == (ErrorCode.group_max_size_reached, "")


def test_unknown_members_are_refused(member: MemberFactory) -> None:
    unknown = member()
    assert unknown.heartbeat(member_id="x") == ErrorCode.unknown_member_id
    assert unknown.sync(member_id="x").error_code == ErrorCode.unknown_member_id
    unknown.member_id = "x"
    refused = unknown.join()
    assert (refused.error_code, refused.member_id) == (ErrorCode.unknown_member_id, "x")
    assert unknown.leave() == ErrorCode.unknown_member_id
    stable_alone(member())
    assert unknown.heartbeat(member_id="x") == ErrorCode.unknown_member_id
    assert unknown.sync(member_id="x").error_code == ErrorCode.unknown_member_id
    assert unknown.join().error_code == ErrorCode.unknown_member_id
    assert unknown.leave() == ErrorCode.unknown_member_id


@pytest.mark.parametrize("generation_id", [-1, 0, 2])
def test_wrong_generation_is_refused(member: MemberFactory, generation_id: int) -> None:
    one = stable_alone(member())
    assert one.heartbeat(generation_id=generation_id) == ErrorCode.illegal_generation
    refused = one.sync(generation_id=generation_id)
    assert (refused.error_code, refused.assignment) == (ErrorCode.illegal_generation, b"")


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol_type": "connect"},
        {"protocol_name": "roundrobin"},
        {"protocol_type": None},
        {"protocol_name": None},
    ],
)
def test_syncing_under_another_protocol(member: MemberFactory, wrong: dict[str, Any]) -> None:
    one = stable_alone(member())
    assert one.sync(**wrong).error_code == ErrorCode.inconsistent_group_protocol


@pytest.mark.slow
def test_member_without_heartbeats_is_removed(member: MemberFactory) -> None:
    leader, silent = member(), member(session_timeout_ms=SHORT_MS)
    stable_pair(leader, silent)
    eventually(lambda: leader.heartbeat() == ErrorCode.rebalance_in_progress)
    assert silent.heartbeat() == ErrorCode.unknown_member_id
    response = leader.join()
    assert [m.member_id for m in response.members] == [leader.member_id]


@pytest.mark.slow
def test_member_that_does_not_rejoin_is_removed(member: MemberFactory) -> None:
    leader = member(rebalance_timeout_ms=SHORT_MS)
    late = member(rebalance_timeout_ms=SHORT_MS)
    stable_pair(leader, late)
    response = leader.join()
    assert (response.generation_id, len(response.members)) == (3, 1)
    assert late.heartbeat() == ErrorCode.unknown_member_id


@pytest.mark.slow
def test_member_that_does_not_sync_is_removed(member: MemberFactory) -> None:
    leader = member(rebalance_timeout_ms=SHORT_MS)
    silent = member(rebalance_timeout_ms=SHORT_MS)
    stable_alone(leader)
    rejoin_together(leader, silent)
    assert leader.sync({leader.member_id: b"x"}).error_code == ErrorCode.none
    eventually(lambda: leader.heartbeat() == ErrorCode.rebalance_in_progress)
    assert silent.heartbeat() == ErrorCode.unknown_member_id


@pytest.mark.slow
def test_unused_member_id_expires(member: MemberFactory) -> None:
    one = stable_alone(member())
    pending = member(session_timeout_ms=SHORT_MS)
    pending.request_member_id()
    one.join_only()  # The request waits for the pending member.
    assert one.joined().generation_id == 2
    refused = pending.join()
    assert refused.error_code == ErrorCode.unknown_member_id


def test_commits_of_members(
    raw: RawConnection, member: MemberFactory, topic: Callable[..., str], group: str
) -> None:
    name = topic()
    one = stable_alone(member())
    identity = one.identity()
    assert commit(raw, group, name, 1, **identity) == ErrorCode.none
    wrong = {"generation_id_or_member_epoch": 7}
    assert commit(raw, group, name, 2, **(identity | wrong)) == ErrorCode.illegal_generation
    assert commit(raw, group, name, 2, **(identity | {"member_id": "x"})) == (
        ErrorCode.unknown_member_id
    )
    assert commit(raw, group, name, 2) == ErrorCode.unknown_member_id
    one.join()
    assert commit(raw, group, name, 2, **one.identity()) == ErrorCode.rebalance_in_progress
    assert commit(raw, group, name, 2, **identity) == ErrorCode.illegal_generation
    two = member()
    two.request_member_id()
    two.join_only()
    eventually(lambda: one.heartbeat() == ErrorCode.rebalance_in_progress)
    assert commit(raw, group, name, 3, **one.identity()) == ErrorCode.none
    assert committed(raw, group, name) == [(3, "", -1)]


@pytest.mark.slow
def test_commit_extends_the_session(
    raw: RawConnection, member: MemberFactory, topic: Callable[..., str], group: str
) -> None:
    name = topic()
    leader, other = member(), member(session_timeout_ms=SHORT_MS)
    stable_pair(leader, other)
    other.raw.set_timeout(0.3)
    for offset in range(14):  # In total longer than the session; one step takes a tenth of it.
        assert commit(raw, group, name, offset, **other.identity()) == ErrorCode.none
        with pytest.raises(TimeoutError):  # The member sends nothing in this time.
            other.raw.receive_frame()
    assert leader.heartbeat() == ErrorCode.none


def test_restarted_static_member_keeps_its_assignment(member: MemberFactory) -> None:
    leader, other = member(instance_id="i1"), member(instance_id="i2")
    stable_pair(leader, other)
    assert re.fullmatch(f"i1-{UUID}", leader.member_id)
    restarted = member(instance_id="i2")
    response = restarted.join()
    assert (response.error_code, response.generation_id) == (ErrorCode.none, 2)
    assert restarted.member_id != other.member_id
    assert (response.leader, response.members, response.skip_assignment) == (
        leader.member_id,
        (),
        False,
    )
    assert restarted.sync().assignment == other.member_id.encode()
    assert leader.heartbeat() == ErrorCode.none
    assert other.heartbeat() == ErrorCode.fenced_instance_id
    assert other.sync().error_code == ErrorCode.fenced_instance_id
    assert other.join().error_code == ErrorCode.fenced_instance_id
    assert other.leave() == ErrorCode.fenced_instance_id


@pytest.mark.parametrize("version", [8, 9])
def test_restarted_static_leader_keeps_its_assignment(member: MemberFactory, version: int) -> None:
    leader, other = member(instance_id="i1"), member(instance_id="i2")
    stable_pair(leader, other)
    restarted = member(instance_id="i1")
    response = restarted.join(version=version)
    assert (response.error_code, response.generation_id) == (ErrorCode.none, 2)
    if version >= 9:
        assert response.leader == restarted.member_id
        assert response.skip_assignment
        assert {m.group_instance_id for m in response.members} == {"i1", "i2"}
    else:
        assert (response.leader, response.members) == (leader.member_id, ())
    assert restarted.sync().assignment == leader.member_id.encode()


def test_waiting_static_member_is_fenced_by_its_replacement(member: MemberFactory) -> None:
    leader, other = member(), member(instance_id="i2")
    stable_pair(leader, other)
    other.protocols = {"range": b"else"}
    other.join_only()
    eventually(lambda: leader.heartbeat() == ErrorCode.rebalance_in_progress)
    restarted = member(instance_id="i2")
    restarted.join_only()
    assert other.joined().error_code == ErrorCode.fenced_instance_id
    leader.join_only()
    assert leader.joined().generation_id == restarted.joined().generation_id == 3


@pytest.mark.slow
def test_static_member_stays_beyond_the_rebalance_timeout(member: MemberFactory) -> None:
    leader = member(rebalance_timeout_ms=SHORT_MS)
    late = member(instance_id="i2", rebalance_timeout_ms=SHORT_MS)
    stable_pair(leader, late)
    response = leader.join()
    assert len(response.members) == 2
    assert late.heartbeat() == ErrorCode.illegal_generation


def test_administrators_remove_members_by_instance_id(
    raw: RawConnection, member: MemberFactory, group: str
) -> None:
    one = stable_alone(member(instance_id="i1"))
    codes = leave(raw, group, ("", "i1"), ("", "i9"), ("", None), ("x", None))
    unknown = ErrorCode.unknown_member_id
    assert codes == [ErrorCode.none, unknown, unknown, unknown]
    assert one.heartbeat() == unknown


def test_fenced_instance_may_not_commit(
    raw: RawConnection, member: MemberFactory, topic: Callable[..., str], group: str
) -> None:
    name = topic()
    one = stable_alone(member(instance_id="i1"))
    member(instance_id="i1").join()
    assert commit(raw, group, name, 1, **one.identity()) == ErrorCode.fenced_instance_id


def test_subscriptions_can_be_anything(member: MemberFactory) -> None:
    for metadata in (b"", b"\x00", subscription("t") + b"more"):
        one = stable_alone(member(protocols={"range": metadata}))
        assert one.leave() == ErrorCode.none
