"""Tests of the controller's topic operations, journal and snapshots."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller import controller as controller_module
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.metadata_batches import decode_commits, decode_snapshot
from broker_ref.controller.topics import NewTopic
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid, random_uuid, uuid_text
from tests.broker_ref.controller.clusters import JOURNAL, ControllerDriver


def refused(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        action()
    return caught.value.error_code


def same(one: ClusterMetadata, other: ClusterMetadata) -> bool:
    return (one.records(), one.end_offset) == (other.records(), other.end_offset)


def followed(driver: ControllerDriver, follower: ClusterMetadata) -> ClusterMetadata:
    """Bring a follower's image up to date, one batch at a time, and return it."""
    while follower.end_offset < driver.metadata.end_offset:
        data = driver.controller.batches_from(follower.end_offset, 1)
        if data is None:
            end_offset, snapshot = driver.controller.snapshot()
            follower.replace(decode_snapshot(snapshot), end_offset)
            continue
        for commit in decode_commits(data):
            follower.apply_commit(commit)
    return follower


def test_replicas_are_spread_over_the_brokers() -> None:
    driver = ControllerDriver(0, 4, 7)
    driver.create_topic(NewTopic(name="t", partition_count=6, replication_factor=2))
    driver.controller.create_partitions("t", 9, None, validate_only=False)
    partitions = driver.metadata.topics["t"].partitions
    assert all(p.leader == p.replicas[0] and p.isr == p.replicas for p in partitions.values())
    leaders = [partitions[index].leader for index in range(9)]
    assert all(set(leaders[first : first + 3]) == {0, 4, 7} for first in (0, 3, 6))


def test_counts_of_minus_one_take_the_defaults() -> None:
    made = ControllerDriver(0, 4, 7).create_topic(NewTopic(name="t"))
    assert (made.partition_count, made.replication_factor) == (2, 2)


def test_replication_factor_above_the_number_of_brokers_is_refused() -> None:
    driver = ControllerDriver(0, 4, 7)
    new = NewTopic(name="t", replication_factor=4)
    code = refused(lambda: driver.create_topic(new))
    assert code is ErrorCode.invalid_replication_factor
    assert driver.metadata.topics == {}


def test_manual_assignments() -> None:
    driver = ControllerDriver(0, 4, 7)
    driver.create_topic(NewTopic(name="t", assignments=((1, (7, 0)), (0, (4, 7)))))
    partitions = driver.metadata.topics["t"].partitions
    assert [partitions[0].replicas, partitions[1].replicas] == [(4, 7), (7, 0)]
    for assignments in (
        ((0, (4, 7)), (1, (4,))),
        ((0, (4, 4)),),
        ((0, (4, 5)),),
        ((0, ()),),
        ((0, (4,)), (2, (4,))),
        ((0, (4,)), (0, (4,))),
    ):
        new = NewTopic(name="u", assignments=assignments)
        code = refused(lambda new=new: driver.create_topic(new))  # type: ignore[misc]
        assert code is ErrorCode.invalid_replica_assignment, assignments
    code = refused(lambda: driver.controller.create_partitions("t", 3, [(4,)], validate_only=False))
    assert code is ErrorCode.invalid_replica_assignment


def test_replicas_on_fenced_brokers_are_not_in_sync_and_do_not_lead() -> None:
    driver = ControllerDriver(0, 4, 7)
    driver.expire(4)
    driver.create_topic(NewTopic(name="t", partition_count=3, replication_factor=3))
    for partition in driver.metadata.topics["t"].partitions.values():
        assert partition.leader == partition.replicas[0] != 4
        assert set(partition.replicas) - set(partition.isr) == {4}
    new = NewTopic(name="u", assignments=((0, (4,)),))
    code = refused(lambda: driver.create_topic(new))
    assert code is ErrorCode.invalid_replica_assignment
    driver.expire(0, 7)
    code = refused(lambda: driver.create_topic(NewTopic(name="u")))
    assert code is ErrorCode.invalid_replication_factor


def test_metadata_is_restored_from_the_journal() -> None:
    driver = ControllerDriver(0, 4, 7)
    driver.create_topic(NewTopic(name="kept", configs={"retention.ms": "1"}))
    driver.create_topic(NewTopic(name="gone"))
    gone = driver.metadata.topics["gone"]
    driver.controller.delete_topics([gone])
    block = driver.controller.allocate_producer_ids(0, 0)
    before = driver.metadata
    for _ in range(2):  # the journal as appended, then as rewritten
        driver.restart()
        assert same(driver.metadata, before)
    assert gone.topic_id in driver.metadata.removed_topics
    assert driver.controller.allocate_producer_ids(0, 0).start == block.stop


def test_broker_follows_by_batches_or_by_a_snapshot_once_they_are_dropped() -> None:
    driver = ControllerDriver(0, 4, 7)
    driver.create_topic(NewTopic(name="t", configs={"retention.ms": "1"}))
    follower = followed(driver, ClusterMetadata())
    assert same(follower, driver.metadata)
    driver.restart()
    assert driver.controller.batches_from(0, 1) is None
    assert same(followed(driver, ClusterMetadata()), driver.metadata)
    driver.expire(4)
    assert same(followed(driver, follower), driver.metadata)


def test_snapshot_stays_the_same_while_the_batches_after_it_are_kept() -> None:
    driver = ControllerDriver(0, 4, 7)
    first = driver.controller.snapshot()
    driver.create_topic(NewTopic(name="t"))
    assert driver.controller.snapshot() == first
    assert driver.controller.batches_from(first[0], 1 << 20)


def test_kept_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "BYTES_BETWEEN_SNAPSHOTS", 2_000)
    driver = ControllerDriver(0)
    end_offset, _ = driver.controller.snapshot()
    for _ in range(200):
        driver.controller.allocate_producer_ids(0, 0)
    assert len(driver.storage.read(JOURNAL)) < 5_000
    assert driver.controller.batches_from(end_offset, 1) is None
    assert driver.controller.snapshot()[0] == driver.metadata.end_offset
    before = driver.metadata
    driver.restart()
    assert same(driver.metadata, before)


def test_failed_journal_write_changes_nothing() -> None:
    driver = ControllerDriver(0)
    before = driver.metadata.records()
    driver.storage.fail_on("flush")
    code = refused(lambda: driver.create_topic(NewTopic(name="t", replication_factor=1)))
    assert code is ErrorCode.kafka_storage_error
    assert driver.metadata.records() == before
    driver.storage.fail_on(None)
    with pytest.raises((ApiError, StorageError)):
        driver.controller.allocate_producer_ids(0, 0)


def test_reserved_topic_ids_are_never_used() -> None:
    dash = bytes([0b11111000]) + bytes(15)
    good = bytes(range(16))
    draws = iter([dash, good])
    drawn = random_uuid(lambda _: next(draws))
    assert drawn.version == 4
    assert not uuid_text(drawn).startswith("-")
    assert drawn.bytes[:6] == good[:6]
    assert drawn not in (Uuid(int=0), Uuid(int=1))


def test_commit_is_kept_where_the_journal_rewrite_after_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_module, "BYTES_BETWEEN_SNAPSHOTS", 0)
    driver = ControllerDriver(0)
    changes: list[bool] = []
    driver.controller.on_change = lambda: changes.append("t" in driver.metadata.topics)
    driver.storage.fail_on("write")
    driver.create_topic(NewTopic(name="t", replication_factor=1))
    assert changes == [True]
    assert "No space left" in (driver.controller.failure or "")
    driver.storage.fail_on(None)
    driver.restart()
    assert driver.controller.failure is None
    assert "t" in driver.metadata.topics
