"""Tests of transactional offsets, which are pending until the marker (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.groups import GROUP, commit, committed, find_coordinator
from tests.conformance.isolation import ABORT, COMMIT, await_read, markers
from tests.conformance.members import GroupMember, stable_alone
from tests.conformance.transactions import (
    VERSION_1,
    VERSION_2,
    Connections,
    TransactionalProducer,
    code_of,
)
from tests.conformance.wire import describe_topics, only, served, topic_id

TopicFactory = Callable[..., str]
NameFactory = Callable[[], str]
ProducerFactory = Callable[..., TransactionalProducer]
OFFSETS_TOPIC = "__consumer_offsets"
NONE = ErrorCode.none
NOTHING = [(-1, "", -1)]


@pytest.fixture
def explicit(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    """Return a producer whose client adds a group before it commits offsets."""
    return TransactionalProducer(brokers, unique_name(), VERSION_1).init()


@pytest.fixture
def implicit(brokers: Connections, unique_name: NameFactory) -> TransactionalProducer:
    """Return a producer whose client lets the group coordinator add the group."""
    return TransactionalProducer(brokers, unique_name(), VERSION_2).init()


def await_committed(raw: RawConnection, group: str, topic: str, offset: int) -> None:
    eventually(lambda: committed(raw, group, topic)[0][0] == offset)


def fetch_stable(
    raw: RawConnection, group: str, topic: str, *partitions: int, version: int = 9
) -> list[tuple[int, ErrorCode]]:
    """Return (offset, error code) of the partitions, fetched with `require_stable`."""
    indexes = list(partitions or (0,))
    requested: list[dict[str, Any]] = [{"name": topic, "partition_indexes": indexes}]
    if version >= 10:
        requested = [{"topic_id": topic_id(raw, topic), "partition_indexes": indexes}]
    if version >= 8:
        groups = [{"group_id": group, "topics": requested}]
        found = only(raw.call("offset_fetch", version, groups=groups, require_stable=True).groups)
    else:
        found = raw.call(
            "offset_fetch", version, group_id=group, topics=requested, require_stable=True
        )
    assert found.error_code == NONE
    return [(p.committed_offset, p.error_code) for p in only(found.topics).partitions]


# Pending, committed and aborted offsets.


def test_offsets_are_visible_after_the_commit(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic(partitions=2)
    producer.commit_offsets(group, name, {0: 5, 1: 7}, metadata="m")
    assert committed(raw, group, name, 0, 1) == NOTHING * 2
    producer.commit()
    await_committed(raw, group, name, 5)
    assert committed(raw, group, name, 0, 1) == [(5, "m", -1), (7, "m", -1)]


def test_offsets_of_an_aborted_transaction_are_dropped(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic()
    assert commit(raw, group, name, 3) == NONE
    producer.commit_offsets(group, name, {0: 5})
    assert committed(raw, group, name)[0][0] == 3
    producer.abort()
    eventually(lambda: fetch_stable(raw, group, name) == [(3, NONE)])
    assert committed(raw, group, name)[0][0] == 3


def test_last_offsets_of_a_transaction_count(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic(partitions=2)
    producer.commit_offsets(group, name, {0: 5, 1: 6})
    producer.commit_offsets(group, name, {0: 9})
    producer.commit_offsets(group, name, {0: 8})
    producer.commit()
    await_committed(raw, group, name, 8)
    assert committed(raw, group, name, 1)[0][0] == 6


def test_transactions_of_one_producer_after_each_other(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic()
    for offset in range(1, 7):
        producer.commit_offsets(group, name, {0: offset})
        producer.end(commit=offset % 3 != 0)
        producer.await_complete()
        expected = offset if offset % 3 else offset - 1
        assert committed(raw, group, name)[0][0] == expected, offset


def test_two_producers_may_have_offsets_pending_for_one_partition(
    raw: RawConnection, topic: TopicFactory, group: str, new_producer: ProducerFactory
) -> None:
    name = topic()
    first, second = new_producer(), new_producer()
    first.commit_offsets(group, name, {0: 5})
    second.commit_offsets(group, name, {0: 6})
    second.abort()
    second.await_complete()
    unstable = ErrorCode.unstable_offset_commit
    assert fetch_stable(raw, group, name) == [(-1, unstable)]
    first.commit()
    await_committed(raw, group, name, 5)
    eventually(lambda: fetch_stable(raw, group, name) == [(5, NONE)])


def test_plain_commit_after_a_pending_one_wins(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    """The later record in the group's log counts, no matter when the marker is written."""
    name = topic()
    producer.commit_offsets(group, name, {0: 5})
    assert commit(raw, group, name, 9) == NONE
    producer.commit()
    producer.await_complete()
    assert fetch_stable(raw, group, name) == [(9, NONE)]


def test_records_and_offsets_end_together(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    source, sink = topic(), topic()
    producer.write(sink, "a")
    producer.commit_offsets(group, source, {0: 1})
    producer.abort()
    producer.await_complete()
    producer.write(sink, "b")
    producer.commit_offsets(group, source, {0: 2})
    producer.commit()
    producer.await_complete()
    assert committed(raw, group, source)[0][0] == 2
    assert [m.kind for m in markers(raw, sink)] == [ABORT, COMMIT]


def test_group_partition_is_part_of_the_transaction(
    topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.commit_offsets(group, name, {0: 5})
    topics = producer.describe().topics
    (partition,) = topics[OFFSETS_TOPIC]
    assert topics == {OFFSETS_TOPIC: [partition]}
    count = len(only(describe_topics(producer.brokers.any(), OFFSETS_TOPIC).topics).partitions)
    assert 0 <= partition < count
    leader = producer.leader(OFFSETS_TOPIC, partition)
    before = len(markers(leader, OFFSETS_TOPIC, partition=partition))
    producer.commit()
    producer.await_complete()
    after = markers(leader, OFFSETS_TOPIC, partition=partition)
    assert len(after) == before + 1
    assert (after[-1].kind, after[-1].producer_id) == (COMMIT, producer.producer_id)


# require_stable.


def test_require_stable_waits_for_the_marker(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic(partitions=2)
    commit(raw, group, name, 3)
    commit(raw, group, name, 4, partition=1)
    producer.commit_offsets(group, name, {0: 5})
    unstable = ErrorCode.unstable_offset_commit
    for version in served(raw, "offset_fetch"):
        if version < 7:
            continue
        found = fetch_stable(raw, group, name, 0, 1, version=version)
        assert found == [(-1, unstable), (4, NONE)], version
    assert [offset for offset, _, _ in committed(raw, group, name, 0, 1)] == [3, 4]
    producer.commit()
    producer.await_complete()
    assert fetch_stable(raw, group, name, 0, 1) == [(5, NONE), (4, NONE)]


def test_require_stable_of_all_topics_includes_pending_offsets(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    stable, pending = topic(), topic()
    commit(raw, group, stable, 3)
    commit(raw, group, pending, 4)
    producer.commit_offsets(group, pending, {0: 5})
    groups = [{"group_id": group, "topics": None}]
    found = only(raw.call("offset_fetch", 9, groups=groups, require_stable=True).groups)
    by_topic = {t.name: only(t.partitions) for t in found.topics}
    assert (by_topic[stable].committed_offset, by_topic[stable].error_code) == (3, NONE)
    assert by_topic[pending].error_code == ErrorCode.unstable_offset_commit
    producer.abort()


# Checks of the producer and its transaction.


def test_offsets_for_a_group_that_was_never_added_are_refused(
    raw: RawConnection, topic: TopicFactory, group: str, explicit: TransactionalProducer
) -> None:
    name = topic()
    explicit.write(name, "a")
    for version in (3, 4):
        (code,) = explicit.commit_offsets_once(group, name, {0: 5}, version=version)
        expected = ErrorCode.transaction_abortable if version >= 4 else ErrorCode.invalid_txn_state
        assert code == expected, version
    explicit.commit()
    explicit.await_complete()
    assert committed(raw, group, name) == NOTHING


def test_version_2_adds_the_group(
    raw: RawConnection, topic: TopicFactory, group: str, implicit: TransactionalProducer
) -> None:
    name = topic()
    assert implicit.commit_offsets_once(group, name, {0: 5}) == [NONE]
    assert implicit.describe().state == "Ongoing"
    implicit.commit()
    await_committed(raw, group, name, 5)


def test_every_version_adds_a_group_and_commits_its_offsets(
    raw: RawConnection, topic: TopicFactory, group: str, explicit: TransactionalProducer
) -> None:
    name = topic()
    for version in served(raw, "add_offsets_to_txn"):
        assert explicit.add_offsets_once(group, version=version) == NONE, version
    offset = 0
    for version in served(raw, "txn_offset_commit"):
        offset += 1
        found = explicit.commit_offsets_once(group, name, {0: offset}, version=version)
        assert found == [NONE], version
    explicit.commit()
    await_committed(raw, group, name, offset)


def test_offsets_of_a_fenced_producer_are_refused(
    raw: RawConnection, topic: TopicFactory, group: str, new_producer: ProducerFactory
) -> None:
    name = topic()
    zombie = new_producer()
    zombie.commit_offsets(group, name, {0: 5})
    new = new_producer(zombie.transactional_id)
    # The transaction of the old producer was aborted, and its requests are rejected.
    (code,) = zombie.commit_offsets_once(group, name, {0: 6})
    assert code == ErrorCode.invalid_producer_epoch
    assert zombie.add_offsets_once(group) == ErrorCode.producer_fenced
    new.commit_offsets(group, name, {0: 7})
    (code,) = zombie.commit_offsets_once(group, name, {0: 8})
    assert code == ErrorCode.invalid_producer_epoch
    new.commit()
    await_committed(raw, group, name, 7)


def test_another_producer_id_may_not_commit_offsets(
    topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.commit_offsets(group, name, {0: 5})
    other = producer.producer_id + 1_000_000
    (code,) = producer.commit_offsets_once(group, name, {0: 6}, producer_id=other)
    assert code == ErrorCode.invalid_producer_id_mapping
    assert producer.add_offsets_once(group, producer_id=other) == code
    producer.abort()


def test_unknown_partitions_are_refused_and_the_others_committed(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    producer: TransactionalProducer,
    unique_name: NameFactory,
) -> None:
    name = topic()
    unknown = ErrorCode.unknown_topic_or_partition
    producer.commit_offsets(group, name, {0: 4})
    assert producer.commit_offsets_once(group, name, {0: 5, 1: 6}) == [NONE, unknown]
    assert producer.commit_offsets_once(group, unique_name(), {0: 5}) == [unknown]
    producer.commit()
    await_committed(raw, group, name, 5)


def test_metadata_has_a_limit(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic()
    producer.commit_offsets(group, name, {0: 4}, metadata="x" * 4096)
    (code,) = producer.commit_offsets_once(group, name, {0: 5}, metadata="x" * 4097)
    assert code == ErrorCode.offset_metadata_too_large
    producer.commit()
    await_committed(raw, group, name, 4)


def test_only_the_group_coordinator_accepts_offsets(
    topic: TopicFactory, group: str, producer: TransactionalProducer, brokers: Connections
) -> None:
    name = topic()
    producer.commit_offsets(group, name, {0: 4})
    coordinator = only(find_coordinator(brokers.any(), group, key_type=GROUP).coordinators).node_id
    other = next(
        b.node_id for b in describe_topics(brokers.any(), name).brokers if b.node_id != coordinator
    )
    response = brokers.to(other).call(
        "txn_offset_commit",
        3,
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[{"name": name, "partitions": [{"partition_index": 0, "committed_offset": 9}]}],
    )
    assert only(only(response.topics).partitions).error_code == ErrorCode.not_coordinator
    producer.abort()


# Checks of the group member (KIP-447).


@pytest.fixture
def member(raw: RawConnection, raw_address: str, group: str) -> Any:
    with GroupMember(raw_address, group) as alone:
        yield stable_alone(alone)


def _as_member(member: GroupMember, **changed: Any) -> dict[str, Any]:
    fields = {
        "generation_id": member.generation_id,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
    }
    return fields | changed


def test_member_of_the_generation_may_commit(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    member: GroupMember,
    producer: TransactionalProducer,
) -> None:
    name = topic()
    producer.commit_offsets(group, name, {0: 5}, **_as_member(member))
    producer.commit()
    await_committed(raw, group, name, 5)


def test_stale_member_may_not_commit(
    raw: RawConnection, topic: TopicFactory, member: GroupMember, producer: TransactionalProducer
) -> None:
    name, group = topic(), member.group
    producer.commit_offsets(group, name, {0: 5}, **_as_member(member))
    unknown = ErrorCode.unknown_member_id
    for changed, expected in (
        ({"generation_id": -1, "member_id": "nobody"}, unknown),
        ({"generation_id": 77}, ErrorCode.illegal_generation),
        ({"member_id": "nobody"}, unknown),
        ({"generation_id": 77, "member_id": "nobody"}, unknown),
        ({"group_instance_id": "nobody"}, unknown),
    ):
        (code,) = producer.commit_offsets_once(group, name, {0: 6}, **_as_member(member, **changed))
        assert code == expected, changed
    producer.commit()
    await_committed(raw, group, name, 5)


def test_static_member_that_was_replaced_may_not_commit(
    raw: RawConnection,
    raw_address: str,
    topic: TopicFactory,
    group: str,
    producer: TransactionalProducer,
) -> None:
    name = topic()
    with (
        GroupMember(raw_address, group, instance_id="one") as old,
        GroupMember(raw_address, group, instance_id="one") as new,
    ):
        stable_alone(old)
        producer.commit_offsets(group, name, {0: 5}, **_as_member(old))
        assert new.join().error_code == NONE
        (code,) = producer.commit_offsets_once(group, name, {0: 6}, **_as_member(old))
        assert code == ErrorCode.fenced_instance_id
    producer.commit()
    await_committed(raw, group, name, 5)


def test_commit_without_a_member_id_ignores_members(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    member: GroupMember,
    producer: TransactionalProducer,
) -> None:
    """Clients that do not support KIP-447 send no member id, so only the transaction is checked."""
    name = topic()
    producer.commit_offsets(group, name, {0: 5})
    producer.commit()
    await_committed(raw, group, name, 5)


def test_unknown_generation_is_refused(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    name = topic()
    if not producer.generation.adds_implicitly:
        producer.add_offsets(group)
    unknown_member: dict[str, Any] = {"generation_id": 3, "member_id": "somebody"}
    found = producer.commit_offsets_once(group, name, {0: 5}, **unknown_member)
    assert found == [ErrorCode.illegal_generation]
    # The group exists after a commit without membership.
    commit(raw, group, name, 3)
    found = producer.commit_offsets_once(group, name, {0: 5}, **unknown_member)
    assert found == [ErrorCode.unknown_member_id]
    # Without a generation the member is not checked while the group is empty.
    found = producer.commit_offsets_once(group, name, {0: 6}, generation_id=-1, member_id="unknown")
    assert found == [NONE]
    producer.commit()
    await_committed(raw, group, name, 6)


# Other requests of the group.


@pytest.mark.parametrize("is_committed", [True, False])
def test_deleted_group_loses_its_pending_offsets_too(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    producer: TransactionalProducer,
    is_committed: bool,
) -> None:
    name = topic()
    if is_committed:
        commit(raw, group, name, 3)
    producer.commit_offsets(group, name, {0: 5})
    response = only(raw.call("delete_groups", 2, groups_names=[group]).results)
    assert code_of(response) == NONE
    assert fetch_stable(raw, group, name) == [(-1, NONE)]
    producer.commit()
    producer.await_complete()
    assert fetch_stable(raw, group, name) == [(-1, NONE)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_deleted_offset_stays_deleted_after_the_marker(
    raw: RawConnection,
    topic: TopicFactory,
    group: str,
    producer: TransactionalProducer,
    is_committed: bool,
) -> None:
    name = topic()
    if is_committed:
        commit(raw, group, name, 3)
    producer.commit_offsets(group, name, {0: 5})
    response = raw.call(
        "offset_delete",
        0,
        group_id=group,
        topics=[{"name": name, "partitions": [{"partition_index": 0}]}],
    )
    assert response.error_code == NONE
    assert only(only(response.topics).partitions).error_code == NONE
    producer.commit()
    producer.await_complete()
    assert fetch_stable(raw, group, name) == [(-1, NONE)]


def test_group_of_pending_offsets_alone_is_listed_as_empty(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    producer.commit_offsets(group, topic(), {0: 5})
    described = only(raw.call("describe_groups", 5, groups=[group]).groups)
    assert (described.error_code, described.group_state) == (NONE, "Empty")
    assert group in {g.group_id for g in raw.call("list_groups", 4).groups}
    producer.abort()


def test_deleted_topic_does_not_block_a_transaction(
    raw: RawConnection, topic: TopicFactory, group: str, producer: TransactionalProducer
) -> None:
    gone, name = topic(), topic()
    producer.write(gone, "a")
    producer.write(name, "b")
    producer.commit_offsets(group, gone, {0: 5})
    raw.call("delete_topics", 5, topic_names=[gone], timeout=30_000)
    unknown = ErrorCode.unknown_topic_or_partition
    eventually(lambda: only(describe_topics(raw, gone).topics).error_code == unknown)
    producer.commit()
    producer.await_complete()
    await_read(raw, name, "b")
