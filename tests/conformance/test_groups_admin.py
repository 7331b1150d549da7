"""Tests of group administration: describe, list, delete, and delete offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.groups import commit, committed, fetch_offsets
from tests.conformance.members import GroupMember, stable_alone, stable_pair, subscription
from tests.conformance.wire import only, served

MemberFactory = Callable[..., GroupMember]
TopicFactory = Callable[..., str]
LARGE_METADATA = "x" * 4000


@pytest.fixture
def groups(one_broker: Cluster) -> Cluster:
    return one_broker


@pytest.fixture
def raw(groups: Cluster) -> Iterator[RawConnection]:
    with RawConnection(groups.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def member(groups: Cluster, group: str) -> Iterator[MemberFactory]:
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(
            GroupMember(groups.bootstrap_servers, group, **options)
        )


@pytest.fixture
def topic(groups: Cluster, unique_name: Callable[[], str]) -> TopicFactory:
    def create(partitions: int = 1) -> str:
        name = unique_name()
        groups.create_topic(name, partitions=partitions)
        return name

    return create


def describe(raw: RawConnection, group: str, version: int = 5) -> Any:
    return only(raw.call("describe_groups", version, groups=[group]).groups)


def listed(raw: RawConnection, **filters: Any) -> dict[str, Any]:
    response = raw.call("list_groups", 5, **filters)
    assert response.error_code == ErrorCode.none
    return {group.group_id: group for group in response.groups}


def delete(raw: RawConnection, *groups: str) -> list[ErrorCode]:
    response = raw.call("delete_groups", 2, groups_names=list(groups))
    codes = {result.group_id: result.error_code for result in response.results}
    return [codes[group] for group in groups]


def delete_offsets(raw: RawConnection, group: str, topic: str, *partitions: int) -> Any:
    requested = [{"partition_index": partition} for partition in partitions]
    return raw.call(
        "offset_delete", 0, group_id=group, topics=[{"name": topic, "partitions": requested}]
    )


def test_stable_group(raw: RawConnection, member: MemberFactory, group: str) -> None:
    leader, other = member(instance_id="i1"), member(protocols={"range": b"n"})
    stable_pair(leader, other)
    for version in served(raw, "describe_groups"):
        found = describe(raw, group, version)
        assert (found.error_code, found.group_state) == (ErrorCode.none, "Stable"), version
        assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
        members = {m.member_id: m for m in found.members}
        assert members.keys() == {leader.member_id, other.member_id}
        one = members[leader.member_id]
        assert (one.client_id, one.client_host) == ("raw", "/127.0.0.1")
        assert (one.member_metadata, one.member_assignment) == (b"m", leader.member_id.encode())
        if version >= 4:
            assert one.group_instance_id == "i1"
            assert members[other.member_id].group_instance_id is None


def test_describe_while_a_group_rebalances(
    raw: RawConnection, member: MemberFactory, group: str
) -> None:
    one = member()
    one.request_member_id()
    # Kafka returns the member id before it has replicated the record of the new group.
    eventually(lambda: describe(raw, group).group_state == "Empty")
    found = describe(raw, group)
    assert (found.protocol_type, found.members) == ("", ())
    one.join()
    found = describe(raw, group)
    assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
    assert only(found.members).member_metadata == b""
    one.sync({one.member_id: b"x"})
    one.leave()
    found = describe(raw, group)
    assert (found.group_state, found.protocol_type, found.members) == ("Empty", "consumer", ())
    assert found.protocol_data == ""


def test_unknown_group(raw: RawConnection, group: str) -> None:
    found = describe(raw, group, 5)
    assert (found.error_code, found.group_state) == (ErrorCode.none, "Dead")
    if 6 in served(raw, "describe_groups"):
        found = describe(raw, group, 6)
        assert (found.error_code, found.group_state) == (ErrorCode.group_id_not_found, "Dead")
        assert found.error_message == f"Group {group} not found."


def test_authorized_operations(raw: RawConnection, member: MemberFactory, group: str) -> None:
    stable_alone(member())
    for version in (3, 5):
        response = raw.call(
            "describe_groups", version, groups=[group], include_authorized_operations=True
        )
        operations = only(response.groups).authorized_operations
        assert {bit for bit in range(32) if operations >> bit & 1} == {3, 6, 8, 10, 11}
    assert describe(raw, group).authorized_operations == -(2**31)


def test_groups_are_listed(
    raw: RawConnection,
    member: MemberFactory,
    topic: TopicFactory,
    group: str,
    new_group: Callable[[], str],
) -> None:
    stable_alone(member())
    simple = new_group()
    assert commit(raw, simple, topic(), 1) == ErrorCode.none
    everything = listed(raw)
    one = everything[group]
    assert (one.protocol_type, one.group_state, one.group_type) == ("consumer", "Stable", "classic")
    assert (everything[simple].protocol_type, everything[simple].group_state) == ("", "Empty")
    assert listed(raw, states_filter=["sTABLE"]).keys() & {group, simple} == {group}
    assert listed(raw, states_filter=["Empty", "Dead"]).keys() & {group, simple} == {simple}
    assert listed(raw, types_filter=["Classic"]).keys() >= {group, simple}
    assert not listed(raw, types_filter=["consumer"]).keys() & {group, simple}
    assert not listed(raw, states_filter=["nonsense"])
    for version in served(raw, "list_groups"):
        names = {g.group_id for g in raw.call("list_groups", version).groups}
        assert names >= {group, simple}, version


def test_groups_are_deleted(
    raw: RawConnection,
    member: MemberFactory,
    topic: TopicFactory,
    group: str,
    new_group: Callable[[], str],
) -> None:
    name = topic()
    one = stable_alone(member())
    assert commit(raw, group, name, 1, **one.identity()) == ErrorCode.none
    unknown = new_group()
    assert delete(raw, group, unknown) == [
        ErrorCode.non_empty_group,
        ErrorCode.group_id_not_found,
    ]
    one.leave()
    assert committed(raw, group, name) == [(1, "", -1)]
    assert delete(raw, group) == [ErrorCode.none]
    assert committed(raw, group, name) == [(-1, "", -1)]
    assert group not in listed(raw)
    assert delete(raw, group) == [ErrorCode.group_id_not_found]
    for version in served(raw, "delete_groups"):
        assert commit(raw, group, name, 1) == ErrorCode.none
        response = raw.call("delete_groups", version, groups_names=[group])
        assert only(response.results).error_code == ErrorCode.none, version


def test_deleted_group_starts_again(member: MemberFactory, raw: RawConnection, group: str) -> None:
    one = stable_alone(member())
    one.join()
    one.leave()
    assert delete(raw, group) == [ErrorCode.none]
    assert member().join().generation_id == 1


def test_offsets_of_unsubscribed_topics_are_deleted(
    raw: RawConnection, member: MemberFactory, topic: TopicFactory, group: str
) -> None:
    read, left = topic(), topic(partitions=3)
    one = stable_alone(member(protocols={"range": subscription(read)}))
    for name in (read, left):
        assert commit(raw, group, name, 5, **one.identity()) == ErrorCode.none
    response = delete_offsets(raw, group, read, 0)
    assert response.error_code == ErrorCode.none
    code = only(only(response.topics).partitions).error_code
    assert code == ErrorCode.group_subscribed_to_topic
    response = delete_offsets(raw, group, left, 0, 1, 9)
    codes = {p.partition_index: p.error_code for p in only(response.topics).partitions}
    assert codes == {
        0: ErrorCode.none,
        1: ErrorCode.none,
        9: ErrorCode.unknown_topic_or_partition,
    }
    assert committed(raw, group, left) == [(-1, "", -1)]
    assert committed(raw, group, read) == [(5, "", -1)]
    one.leave()
    response = delete_offsets(raw, group, read, 0)
    assert only(only(response.topics).partitions).error_code == ErrorCode.none
    assert committed(raw, group, read) == [(-1, "", -1)]


def test_offsets_that_cannot_be_deleted(
    raw: RawConnection, member: MemberFactory, topic: TopicFactory, group: str
) -> None:
    name = topic()
    assert delete_offsets(raw, group, name, 0).error_code == ErrorCode.group_id_not_found
    assert delete_offsets(raw, "", name, 0).error_code == ErrorCode.invalid_group_id
    stable_alone(member(protocol_type="connect"))
    assert delete_offsets(raw, group, name, 0).error_code == ErrorCode.non_empty_group


@pytest.mark.slow
def test_commit_larger_than_a_batch(raw: RawConnection, topic: TopicFactory, group: str) -> None:
    name = topic(partitions=300)
    partitions = [
        {"partition_index": p, "committed_offset": 1, "committed_metadata": LARGE_METADATA}
        for p in range(300)
    ]
    response = raw.call(
        "offset_commit",
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[{"name": name, "partitions": partitions}],
    )
    codes = {p.error_code for p in only(response.topics).partitions}
    assert codes == {ErrorCode.unknown_server_error}
    assert only(fetch_offsets(raw, group, {name: [0]}).topics).partitions[0].committed_offset == -1
