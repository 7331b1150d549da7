"""Tests of consumer groups: epochs, reconciliation, static members, offsets and admin requests.

Source: KIP-848.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.batches import batch, values
from tests.conformance.consumer_members import (
    LEAVE_STATIC,
    SETTINGS,
    ConsumerMember,
    assignment_of,
    describe,
    is_stable,
    partitions_of,
    settle,
)
from tests.conformance.eventually import eventually
from tests.conformance.groups import commit, committed
from tests.conformance.subscribers import await_taken, members
from tests.conformance.transaction_versions import LATEST_TRANSACTION_VERSION
from tests.conformance.transactions import (
    VERSION_2,
    Connections,
    TransactionalProducer,
)
from tests.conformance.wire import append, only, served, topic_id

TopicFactory = Callable[..., str]
NONE = ErrorCode.none
NO_MEMBER: dict[str, Any] = {"generation_id_or_member_epoch": -1}


@pytest.fixture(scope="package")
def groups(clusters_of_package: Callable[..., Cluster]) -> Cluster:
    return clusters_of_package(transaction_version=LATEST_TRANSACTION_VERSION, configs=SETTINGS)


@pytest.fixture
def cluster(groups: Cluster) -> Cluster:
    return groups


@pytest.fixture
def raw(groups: Cluster) -> Iterator[RawConnection]:
    with RawConnection(groups.bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def topic(groups: Cluster, unique_name: Callable[[], str]) -> TopicFactory:
    def create(partitions: int = 1) -> str:
        name = unique_name()
        groups.create_topic(name, partitions=partitions)
        return name

    return create


@pytest.fixture
def subscribed(topic: TopicFactory) -> str:
    """Return a topic with four partitions."""
    return topic(4)


def test_member_alone(raw: RawConnection, group: str, subscribed: str) -> None:
    member = ConsumerMember(raw, group, subscribed)
    joined = member.join()
    assert (joined.member_id, joined.member_epoch) == (member.member_id, 2)
    assert joined.heartbeat_interval.total_seconds() == 0.1
    assert member.owned == {topic_id(raw, subscribed): {0, 1, 2, 3}}
    assert (member.heartbeat().assignment, member.epoch) == (None, 2)
    full = member.heartbeat(rebalance_timeout=1000, subscribed_topic_names=[subscribed])
    assert assignment_of(full.assignment) == member.owned
    assert member.leave().member_epoch == -1
    found = describe(raw, group)
    assert (found.group_state, found.group_epoch, found.members) == ("Empty", 3, ())


def test_rebalance(raw: RawConnection, group: str, subscribed: str) -> None:
    """A new member gets partitions only after the previous owner has revoked them."""
    of_topic = topic_id(raw, subscribed)
    first, second = (ConsumerMember(raw, group, subscribed) for _ in range(2))
    first.join()
    before = first.owned
    second.join()
    assert (second.epoch, second.owned) == (3, {})
    assert describe(raw, group).group_state == "Reconciling"
    first.heartbeat(topic_partitions=None)
    kept = first.owned
    assert (first.epoch, len(kept[of_topic])) == (2, 2)
    # Until the first member confirms the revocation, it owns all partitions. A request can contain
    # a topic several times.
    revoked = {of_topic: before[of_topic] - kept[of_topic]}
    first.heartbeat(topic_partitions=[*partitions_of(revoked), *partitions_of(kept)])
    second.heartbeat()
    assert (first.epoch, first.owned, second.owned) == (2, kept, {})
    described = {one.member_id: one for one in describe(raw, group).members}
    assert assignment_of(described[first.member_id].assignment) == before
    assert assignment_of(described[first.member_id].target_assignment) == kept
    first.heartbeat()
    assert first.epoch == 3
    second.heartbeat()
    assert second.owned == {of_topic: {0, 1, 2, 3} - kept[of_topic]}
    found = describe(raw, group)
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 3, 3)
    first.leave()
    settle(second)
    assert (second.epoch, second.owned) == (4, {of_topic: {0, 1, 2, 3}})


def test_fenced_epochs(raw: RawConnection, group: str, subscribed: str) -> None:
    first, second = (ConsumerMember(raw, group, subscribed) for _ in range(2))
    assert first.code(member_epoch=1) == ErrorCode.group_id_not_found
    first.join()
    before = first.owned
    second.join()
    settle(first, second)
    assert second.code(member_id="unknown") == ErrorCode.unknown_member_id
    fenced = ErrorCode.fenced_member_epoch
    assert [first.code(member_epoch=epoch) for epoch in (1, 4)] == [fenced, fenced]
    # The response with the current epoch may have been lost, but not if the member owns more.
    assert first.code(member_epoch=2, topic_partitions=partitions_of(before)) == fenced
    assert first.code(member_epoch=2, topic_partitions=None) == fenced
    assert (first.heartbeat(member_epoch=2).member_epoch, first.epoch) == (3, 3)
    # A fenced member rejoins with its id, and gets its assignment again.
    owned = first.owned
    first.join()
    assert (first.epoch, first.owned) == (3, owned)


INVALID = [
    {"member_id": ""},
    {"group_id": " "},
    {"instance_id": ""},
    {"rack_id": ""},
    {"rebalance_timeout": -1},
    {"topic_partitions": None},
    {"topic_partitions": [{"topic_id": uuid.UUID(int=7), "partitions": []}]},
    {"subscribed_topic_names": None},
    {"member_epoch": LEAVE_STATIC},
    {"member_epoch": -3},
]


@pytest.mark.parametrize("changed", INVALID, ids=str)
def test_invalid_requests(
    raw: RawConnection, group: str, subscribed: str, changed: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {
        "rebalance_timeout": 1000,
        "subscribed_topic_names": [subscribed],
        "topic_partitions": [],
        **changed,
    }
    member = ConsumerMember(raw, group)
    assert member.code(**fields) == ErrorCode.invalid_request
    if "group_id" not in changed:
        assert describe(raw, group).error_code == ErrorCode.group_id_not_found


def test_assignors(raw: RawConnection, group: str, topic: TopicFactory) -> None:
    """The assignor that most members prefer is used."""
    first, second = topic(3), topic(3)
    ids = {topic_id(raw, first), topic_id(raw, second)}
    one = ConsumerMember(raw, group, first, second)
    one.join()
    assert one.code(server_assignor="other") == ErrorCode.unsupported_assignor
    assert describe(raw, group).assignor_name == "uniform"
    two = ConsumerMember(raw, group, first, second, server_assignor="range")
    two.join()
    settle(one, two)
    assert describe(raw, group).assignor_name == "range"
    low, high = sorted((one, two), key=lambda member: member.member_id)
    assert low.owned == {of_topic: {0, 1} for of_topic in ids}
    assert high.owned == {of_topic: {2} for of_topic in ids}


def test_topics_change(
    raw: RawConnection, group: str, groups: Cluster, topic: TopicFactory, subscribed: str
) -> None:
    """Created topics and partitions start a rebalance, and so do changed subscriptions."""
    missing = f"{subscribed}-later"
    member = ConsumerMember(raw, group, missing)
    member.join()
    assert member.owned == {}
    groups.create_topic(missing, partitions=1)
    of_missing = topic_id(raw, missing)
    eventually(lambda: member.heartbeat() and member.owned == {of_missing: {0}})
    raw.call(
        "create_partitions",
        3,
        topics=[{"name": missing, "count": 2, "assignments": None}],
        timeout=30_000,
        validate_only=False,
    )
    eventually(lambda: member.heartbeat() and member.owned == {of_missing: {0, 1}})
    epoch = member.epoch
    member.heartbeat(subscribed_topic_names=[subscribed])
    settle(member)
    assert member.owned == {topic_id(raw, subscribed): {0, 1, 2, 3}}
    assert member.epoch == epoch + 1


@pytest.mark.slow
def test_session_and_rebalance_timeouts(raw: RawConnection, group: str, subscribed: str) -> None:
    """A member without heartbeats leaves, and so does one that does not revoke partitions.

    Other changes of the member do not postpone this.
    """
    slow = ConsumerMember(raw, group, subscribed, rebalance_timeout=500)
    silent = ConsumerMember(raw, group, subscribed)
    slow.join()
    before = partitions_of(slow.owned)
    silent.join()
    racks = itertools.cycle(("r1", "r2"))

    def is_fenced() -> bool:
        code = slow.code(topic_partitions=before, rack_id=next(racks))
        return code is ErrorCode.unknown_member_id

    eventually(is_fenced)
    assert [one.member_id for one in describe(raw, group).members] == [silent.member_id]
    eventually(lambda: describe(raw, group).group_state == "Empty")
    assert silent.code() == ErrorCode.unknown_member_id


def test_static_members(raw: RawConnection, group: str, subscribed: str) -> None:
    """A static member that leaves with epoch -2 gets its partitions back without a rebalance."""
    static = ConsumerMember(raw, group, subscribed, instance_id="i1")
    other = ConsumerMember(raw, group, subscribed)
    static.join()
    other.join()
    settle(static, other)
    owned, epoch = static.owned, static.epoch
    again = ConsumerMember(raw, group, subscribed, instance_id="i1")
    fields: dict[str, Any] = {
        "instance_id": "i1",
        "rebalance_timeout": 1000,
        "subscribed_topic_names": [subscribed],
        "topic_partitions": [],
    }
    assert again.code(**fields) == ErrorCode.unreleased_instance_id
    assert again.code(member_epoch=epoch, instance_id="i1") == ErrorCode.fenced_instance_id
    assert again.code(member_epoch=epoch, instance_id="i2") == ErrorCode.unknown_member_id
    assert static.leave(LEAVE_STATIC, instance_id="i1").member_epoch == LEAVE_STATIC
    described = {one.member_id: one for one in describe(raw, group).members}
    assert described[static.member_id].member_epoch == LEAVE_STATIC
    again.join()
    assert (again.epoch, again.owned) == (epoch, owned)
    assert static.code(member_epoch=epoch) == ErrorCode.unknown_member_id
    assert is_stable(raw, group)
    again.leave(instance_id="i1")
    settle(other)
    assert other.owned == {topic_id(raw, subscribed): {0, 1, 2, 3}}


def test_commits_of_members(raw: RawConnection, group: str, subscribed: str) -> None:
    """In an older epoch, a member may commit only what it has owned since then."""
    of_topic = topic_id(raw, subscribed)
    first, second = (ConsumerMember(raw, group, subscribed) for _ in range(2))
    first.join()
    second.join()
    settle(first, second)
    mine, other = min(first.owned[of_topic]), min(second.owned[of_topic])
    identity = first.identity()
    assert commit(raw, group, subscribed, 1, partition=mine, **identity) == NONE
    old = identity | {"generation_id_or_member_epoch": 2}
    assert commit(raw, group, subscribed, 2, partition=mine, **old) == NONE
    stale = ErrorCode.stale_member_epoch
    assert commit(raw, group, subscribed, 3, partition=other, **old) == stale
    old["generation_id_or_member_epoch"] = 1
    assert commit(raw, group, subscribed, 3, partition=mine, **old) == stale
    future = identity | {"generation_id_or_member_epoch": 4}
    assert commit(raw, group, subscribed, 3, partition=mine, **future) == stale
    unknown = ErrorCode.unknown_member_id
    assert commit(raw, group, subscribed, 3, partition=mine, **NO_MEMBER) == unknown
    before_epochs = commit(raw, group, subscribed, 3, partition=mine, version=8, **identity)
    assert before_epochs == ErrorCode.unsupported_version
    assert committed(raw, group, subscribed, mine)[0][0] == 2


def test_offsets_are_fetched_with_the_epoch(
    raw: RawConnection, group: str, subscribed: str
) -> None:
    member = ConsumerMember(raw, group, subscribed)
    member.join()

    def fetch(**identity: Any) -> ErrorCode:
        requested = [{"name": subscribed, "partition_indexes": [0]}]
        groups = [{"group_id": group, "topics": requested, **identity}]
        code = only(raw.call("offset_fetch", 9, groups=groups).groups).error_code
        assert isinstance(code, ErrorCode)
        return code

    member_id = member.member_id
    assert fetch() == NONE
    assert fetch(member_id=member_id, member_epoch=member.epoch) == NONE
    stale = ErrorCode.stale_member_epoch
    assert fetch(member_id=member_id, member_epoch=member.epoch - 1) == stale
    assert fetch(member_id="unknown", member_epoch=1) == ErrorCode.unknown_member_id


def test_transactional_commits_of_members(
    raw: RawConnection, groups: Cluster, group: str, subscribed: str, unique_name: Callable[[], str]
) -> None:
    """A stale epoch is ILLEGAL_GENERATION. A producer without member id may always commit."""
    member = ConsumerMember(raw, group, subscribed)
    member.join()
    with Connections(groups) as connections:
        producer = TransactionalProducer(connections, unique_name(), VERSION_2).init()

        def commit_offset(**identity: Any) -> ErrorCode:
            codes = producer.commit_offsets_once(group, subscribed, {0: 5}, **identity)
            assert len(codes) == 1
            return codes[0]

        producer.commit_offsets(group, subscribed, {0: 5})
        epoch = {"member_id": member.member_id, "generation_id": member.epoch}
        assert commit_offset(**epoch | {"generation_id": 1}) == ErrorCode.illegal_generation
        assert commit_offset(**epoch | {"member_id": "x"}) == ErrorCode.unknown_member_id
        assert commit_offset(**epoch) == NONE
        producer.abort()


def test_regular_expressions(
    request: pytest.FixtureRequest,
    raw: RawConnection,
    groups: Cluster,
    group: str,
    unique_name: Callable[[], str],
) -> None:
    """An expression matches whole names."""
    if "reference" in request.config.getoption("--cluster"):
        pytest.importorskip("re2")
    prefix = unique_name()
    for suffix in ("a", "b", "ab"):
        groups.create_topic(f"{prefix}.{suffix}", partitions=1)
    member = ConsumerMember(raw, group)
    member.join(subscribed_topic_names=None, subscribed_topic_regex=f"\\Q{prefix}\\E[.](a|b)")

    def owned() -> set[str]:
        member.heartbeat()
        one = only(describe(raw, group).members)
        return {t.topic_name.rpartition(".")[2] for t in one.assignment.topic_partitions}

    eventually(lambda: owned() == {"a", "b"})
    one = only(describe(raw, group).members)
    assert (one.subscribed_topic_names, one.subscribed_topic_regex[:2]) == ((), "\\Q")
    for invalid in ("(", "(?=a)", "a{1001}"):
        code = member.code(subscribed_topic_regex=invalid)
        assert code == ErrorCode.invalid_regular_expression
    member.heartbeat(subscribed_topic_names=[f"{prefix}.ab"])
    eventually(lambda: owned() == {"a", "b", "ab"})
    member.heartbeat(subscribed_topic_names=[], subscribed_topic_regex="")
    eventually(lambda: owned() == set())


def test_groups_are_listed_and_described_by_type(
    raw: RawConnection, new_group: Callable[[], str], subscribed: str
) -> None:
    group, classic = new_group(), new_group()
    assert commit(raw, classic, subscribed, 1) == NONE
    member = ConsumerMember(raw, group, subscribed, instance_id="i1", rack_id="r1")
    member.join()

    def listed(**filters: Any) -> dict[str, Any]:
        response = raw.call("list_groups", 5, **{"states_filter": [], "types_filter": []} | filters)
        return {one.group_id: one for one in response.groups}

    assert classic not in listed(types_filter=["Consumer"])
    assert group not in listed(types_filter=["classic"])
    assert group in listed(states_filter=["stable"])
    found = listed()[group]
    assert (found.group_type, found.protocol_type, found.group_state) == (
        "consumer", "consumer", "Stable",
    )  # fmt: skip
    for version in served(raw, "consumer_group_describe"):
        described = describe(raw, group, version)
        assert described.authorized_operations == -(2**31)
        one = only(described.members)
        assert (one.member_id, one.instance_id, one.rack_id) == (member.member_id, "i1", "r1")
        assert (one.member_epoch, one.client_id) == (2, "raw")
        assert one.subscribed_topic_names == (subscribed,)
        assert only(one.assignment.topic_partitions).topic_name == subscribed
        assert getattr(one, "member_type", 1) == 1
    not_found = ErrorCode.group_id_not_found
    assert describe(raw, classic).error_code == not_found
    assert describe(raw, "").error_code == ErrorCode.invalid_group_id
    as_classic = only(raw.call("describe_groups", 6, groups=[group]).groups)
    assert (as_classic.error_code, as_classic.group_state) == (not_found, "Dead")
    assert as_classic.error_message == f"Group {group} is not a classic group."


def test_group_is_deleted_without_members(raw: RawConnection, group: str, subscribed: str) -> None:
    def delete() -> ErrorCode:
        code = only(raw.call("delete_groups", 2, groups_names=[group]).results).error_code
        assert isinstance(code, ErrorCode)
        return code

    def delete_offset() -> ErrorCode:
        topics = [{"name": subscribed, "partitions": [{"partition_index": 0}]}]
        response = raw.call("offset_delete", 0, group_id=group, topics=topics)
        assert response.error_code == NONE
        code = only(only(response.topics).partitions).error_code
        assert isinstance(code, ErrorCode)
        return code

    member = ConsumerMember(raw, group, subscribed)
    member.join()
    assert commit(raw, group, subscribed, 7, **member.identity()) == NONE
    assert delete() == ErrorCode.non_empty_group
    assert delete_offset() == ErrorCode.group_subscribed_to_topic
    member.leave()
    assert committed(raw, group, subscribed)[0][0] == 7
    assert delete() == NONE
    assert describe(raw, group).error_code == ErrorCode.group_id_not_found
    assert committed(raw, group, subscribed)[0][0] == -1


def test_empty_group_changes_its_protocol(raw: RawConnection, group: str, subscribed: str) -> None:
    """The offsets stay. A group without members takes the protocol of the next member."""
    assert commit(raw, group, subscribed, 7) == NONE
    member = ConsumerMember(raw, group, subscribed)
    member.join()
    assert is_stable(raw, group)
    assert committed(raw, group, subscribed)[0][0] == 7
    member.leave()
    response = raw.call(
        "join_group",
        9,
        group_id=group,
        member_id="",
        session_timeout=6000,
        rebalance_timeout=6000,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert response.error_code == ErrorCode.member_id_required
    # Kafka responds before the tombstones of the consumer group are replicated.
    eventually(lambda: describe(raw, group).error_code == ErrorCode.group_id_not_found)
    assert only(raw.call("describe_groups", 6, groups=[group]).groups).group_state == "Empty"
    assert committed(raw, group, subscribed)[0][0] == 7


def test_librdkafka(raw: RawConnection, groups: Cluster, group: str, topic: TopicFactory) -> None:
    """Members share the partitions, and a member that leaves hands its partitions over."""
    name = topic(6)
    with members(
        groups.bootstrap_servers, group, name, 2, **{"group.protocol": "consumer"}
    ) as joined:
        first, second = joined

        def shares() -> bool:
            for member in joined:
                member.poll()
            return len(first.owned) == len(second.owned) == 3

        eventually(shares)
        assert first.owned | second.owned == set(range(6))
        for partition in range(6):
            append(raw, name, batch(values("a")), partition=partition)
        await_taken(joined, 6)
        for member in joined:
            if member.taken:
                member.commit()
        second.close()

        def owns_all() -> bool:
            first.poll()
            return len(first.owned) == 6

        eventually(owns_all)
    assert sum(offset for offset, _, _ in committed(raw, group, name, *range(6)) if offset > 0) == 6
    assert describe(raw, group).group_state == "Empty"
