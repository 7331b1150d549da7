"""Tests of transactional offsets in a coordinator: commit, abort, rejection and loading."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination import loader
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.offsets import OffsetStore, TopicPartition
from broker_ref.group.pending_offsets import PendingOffset, PendingOffsets
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.retention import expired
from broker_ref.log.control import Marker
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition
from tests.broker_ref.group.coordinators import Coordinators
from tests.broker_ref.work import assert_linear

T0 = TopicPartition(topic="t", partition=0)
MINUTE_MS = 60_000


@pytest.fixture
def made() -> Coordinators:
    return Coordinators()


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("marker", Marker)
def test_marker_commits_or_drops_pending_offsets(
    made: Coordinators, marker: Marker, move: bool
) -> None:
    made.commit(1)
    assert made.commit_in_transaction({0: 5, 1: 6}).result is ErrorCode.none
    if move:
        made.move()
    assert (made.offset_of(), made.is_pending()) == (1, True)
    assert made.end(marker).result is ErrorCode.none
    if move:
        made.move()
    committed = (5, 6) if marker is Marker.COMMIT else (1, None)
    assert (made.offset_of(), made.offset_of(partition=1)) == committed
    assert not made.is_pending()
    assert not made.is_pending(partition=1)


@pytest.mark.parametrize("move", [False, True])
def test_later_commit_overrides_the_pending_one(made: Coordinators, move: bool) -> None:
    """The order of the records decides, because compaction keeps the last record of a key."""
    made.commit_in_transaction({0: 5})
    made.commit(2)
    if move:
        made.move()
    made.end(Marker.COMMIT)
    if move:
        made.move()
    assert made.offset_of() == 2


def test_transactions_of_several_producers(made: Coordinators) -> None:
    made.commit_in_transaction({0: 5}, producer_id=7)
    made.commit_in_transaction({0: 6}, producer_id=8)
    made.end(Marker.COMMIT, producer_id=8)
    assert (made.offset_of(), made.is_pending()) == (6, True)
    made.end(Marker.COMMIT, producer_id=7)
    assert (made.offset_of(), made.is_pending()) == (6, False)


def test_markers_without_offsets_and_repeated_markers(made: Coordinators) -> None:
    assert made.end(Marker.COMMIT).result is ErrorCode.none
    made.commit_in_transaction({0: 5})
    made.end(Marker.COMMIT)
    made.commit(6)
    assert made.end(Marker.COMMIT).result is ErrorCode.none
    assert made.offset_of() == 6


def lag(monkeypatch: pytest.MonkeyPatch, made: Coordinators) -> None:
    monkeypatch.setattr(Partition, "high_watermark", made.partition.high_watermark)


@pytest.mark.parametrize("marker", Marker)
def test_marker_takes_effect_when_it_is_replicated(
    made: Coordinators, monkeypatch: pytest.MonkeyPatch, marker: Marker
) -> None:
    made.commit(1)
    made.commit_in_transaction({0: 5})
    with monkeypatch.context() as lagging:
        lag(lagging, made)
        reply = made.end(marker)
        made.settle()
        assert not reply.is_done
        assert (made.offset_of(), made.groups.last_write("g").is_replicated) == (1, False)
    made.settle()
    assert reply.result is ErrorCode.none
    assert made.groups.last_write("g").is_replicated
    assert made.offset_of() == (5 if marker is Marker.COMMIT else 1)


def test_error_codes_of_end_transaction(
    made: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction coordinator expects the error codes of partition leaders."""
    made.commit_in_transaction({0: 5})
    with monkeypatch.context() as lagging:
        lag(lagging, made)
        late, given_up = made.end(Marker.ABORT), made.end(Marker.ABORT, producer_id=8)
        made.advance(made.config.offsets_commit_timeout_ms)
        assert late.result is ErrorCode.request_timed_out
        given_up = made.end(Marker.ABORT, producer_id=8)
        made.groups.on_resignation(made.partition, made.now_ms)
        assert given_up.result is ErrorCode.not_leader_or_follower
    assert made.end(Marker.ABORT).result is ErrorCode.not_leader_or_follower
    assert made.end(Marker.ABORT, partition_index=3).result is ErrorCode.not_leader_or_follower


def test_no_marker_is_written_while_the_log_is_loaded(
    made: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard would miss the marker, because loading stops at the initial log end offset."""
    made.commit_in_transaction({0: 5})
    made.commit_in_transaction({1: 6})
    monkeypatch.setattr(loader, "STEP_BYTES", 1)
    made.move()
    end_offset = made.partition.log.log_end_offset
    assert made.end(Marker.COMMIT).result is ErrorCode.not_leader_or_follower
    assert made.partition.log.log_end_offset == end_offset
    made.advance(0)
    assert made.end(Marker.COMMIT).result is ErrorCode.none
    assert (made.offset_of(), made.offset_of(partition=1)) == (5, 6)


def refusing(error: Exception) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise error

    return refuse


def test_failed_append_changes_nothing(made: Coordinators, monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = ErrorCode.invalid_producer_epoch
    with monkeypatch.context() as refused:
        refused.setattr(Partition, "append", refusing(LogError(fenced, "old")))
        assert made.commit_in_transaction({0: 5}).result is fenced
    assert list(made.groups.groups()) == []
    assert not made.is_pending()
    made.commit_in_transaction({0: 5})
    for code in (fenced, ErrorCode.not_enough_replicas):
        with monkeypatch.context() as refused:
            refused.setattr(Partition, "append_end_marker", refusing(ApiError(code, "no")))
            assert made.end(Marker.ABORT).result is code
    assert made.is_pending()


def test_fenced_producer_neither_commits_nor_ends(made: Coordinators) -> None:
    made.commit_in_transaction({0: 5}, producer_epoch=1)
    assert made.commit_unverified({0: 4}).result is ErrorCode.invalid_producer_epoch
    assert made.end(Marker.ABORT, producer_epoch=0).result is ErrorCode.invalid_producer_epoch
    made.end(Marker.COMMIT, producer_epoch=1, coordinator_epoch=3)
    assert made.offset_of() == 5
    stale = made.end(Marker.ABORT, producer_epoch=1, coordinator_epoch=2)
    assert stale.result is ErrorCode.transaction_coordinator_fenced


def test_transaction_begins_only_with_a_verification_guard(made: Coordinators) -> None:
    """A commit that arrives after the marker of its transaction begins no transaction (KIP-890)."""
    made.commit_in_transaction({0: 5})
    made.end(Marker.ABORT)
    late = made.commit_unverified({0: 5})
    assert late.result is ErrorCode.invalid_txn_state
    assert not made.is_pending()


def test_members_are_checked_if_the_request_names_them(made: Coordinators) -> None:
    (member_id,), generation_id = made.stable(1)
    responses: list[tuple[dict[str, Any], ErrorCode]] = [
        ({}, ErrorCode.none),
        ({"member_id": member_id, "generation_id": generation_id}, ErrorCode.none),
        ({"member_id": member_id, "generation_id": 0}, ErrorCode.illegal_generation),
        ({"member_id": member_id}, ErrorCode.illegal_generation),
        ({"member_id": "m", "generation_id": generation_id}, ErrorCode.unknown_member_id),
        ({"generation_id": generation_id}, ErrorCode.unknown_member_id),
        ({"group_instance_id": "i"}, ErrorCode.unknown_member_id),
    ]
    for committer, expected in responses:
        assert made.commit_in_transaction({0: 5}, **committer).result is expected, committer
    for group, generation, expected in (
        ("new", 0, ErrorCode.illegal_generation),
        ("new", -1, ErrorCode.none),
        ("", -1, ErrorCode.invalid_group_id),
    ):
        reply = made.commit_in_transaction({0: 5}, group, generation_id=generation)
        assert reply.result is expected, group


def test_replaced_static_member_is_fenced(made: Coordinators) -> None:
    old = made.join(group_instance_id="i")
    made.advance(3_000)
    generation_id = old.result.generation_id
    made.sync(old.result.member_id, generation_id)
    new = made.join(group_instance_id="i")
    for join, expected in ((old, ErrorCode.fenced_instance_id), (new, ErrorCode.none)):
        reply = made.commit_in_transaction(
            {0: 5},
            member_id=join.result.member_id,
            group_instance_id="i",
            generation_id=generation_id,
        )
        assert reply.result is expected


def test_transactional_commit_ignores_rebalances_and_does_not_extend_the_session(
    made: Coordinators,
) -> None:
    (member_id,), generation_id = made.stable(1)
    member: dict[str, Any] = {"member_id": member_id, "generation_id": generation_id}
    made.advance(9_000)
    made.join()
    assert made.groups.describe("g").group_state == "PreparingRebalance"
    assert made.commit_in_transaction({0: 5}, **member).result is ErrorCode.none
    made.advance(1_500)  # The session timeout of ten seconds is over.
    assert made.groups.describe("g").group_state == "CompletingRebalance"
    gone = made.commit_in_transaction({0: 5}, **member).result
    assert gone is ErrorCode.unknown_member_id


@pytest.mark.parametrize("move", [False, True])
def test_deleted_offsets_stay_deleted(made: Coordinators, move: bool) -> None:
    made.commit_in_transaction({0: 5, 1: 6})
    codes, reply = made.groups.delete_offsets("g", [T0], made.now_ms)
    assert (codes, reply.result) == ({T0: ErrorCode.none}, ErrorCode.none)
    if move:
        made.move()
    assert (made.is_pending(), made.is_pending(partition=1)) == (False, True)
    made.end(Marker.COMMIT)
    assert (made.offset_of(), made.offset_of(partition=1)) == (None, 6)


@pytest.mark.parametrize("move", [False, True])
def test_group_is_deleted_with_its_pending_offsets(made: Coordinators, move: bool) -> None:
    made.commit_in_transaction({0: 5})
    assert made.groups.delete("g", made.now_ms).result is ErrorCode.none
    if move:
        made.move()
    made.end(Marker.COMMIT)
    assert made.offset_of() is None
    assert list(made.groups.groups()) == []


@pytest.mark.parametrize("move", [False, True])
def test_pending_offsets_of_a_deleted_topic_are_deleted(made: Coordinators, move: bool) -> None:
    made.commit_in_transaction({0: 5})
    made.groups.delete_topic_offsets(["t"], made.now_ms)
    if move:
        made.move()
    made.end(Marker.COMMIT)
    assert made.offset_of() is None


def test_deleted_topic_whose_tombstones_cannot_be_written(
    made: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.commit_in_transaction({0: 5})
    with monkeypatch.context() as refused:
        full = ApiError(ErrorCode.kafka_storage_error, "the log is full")
        refused.setattr(Partition, "append", refusing(full))
        made.groups.delete_topic_offsets(["t"], made.now_ms)
    made.end(Marker.COMMIT)
    assert made.offset_of() is None


def test_pending_offsets_prevent_expiration() -> None:
    made = Coordinators(
        BrokerConfig(
            offsets_topic_num_partitions=1,
            offsets_retention_minutes=1,
            offsets_retention_check_interval_ms=MINUTE_MS,
        )
    )
    made.commit(1)
    made.commit_in_transaction({0: 5})
    made.commit_in_transaction({1: 6}, "h")
    made.advance(3 * MINUTE_MS)
    assert (made.offset_of(), made.is_pending()) == (1, True)
    assert {group.group_id for group in made.groups.groups()} == {"g", "h"}
    made.end(Marker.ABORT)
    made.advance(2 * MINUTE_MS)
    assert list(made.groups.groups()) == []
    assert made.offset_of() is None


def test_the_search_for_expired_offsets_is_linear() -> None:
    value = OffsetCommitValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp_ms=0)

    def search(entries: int) -> None:
        shard: Any = SimpleNamespace(
            groups={"g": ClassicGroup("g", state_timestamp_ms=0)},
            offsets=OffsetStore(),
            pending=PendingOffsets(),
        )
        for index in range(entries):
            key = TopicPartition(topic="t", partition=index)
            shard.offsets.put("g", key, value, record_offset=0, required_offset=0)
            shard.pending.put(1, "g", key, PendingOffset(value=value, record_offset=0))
        assert expired(shard, retention_ms=1, now_ms=9) == []

    assert_linear(search, entries=25)


@pytest.mark.parametrize("end", [None, Marker.ABORT])
def test_group_with_only_pending_offsets_is_loaded(made: Coordinators, end: Marker | None) -> None:
    made.commit_in_transaction({0: 5})
    if end is not None:
        made.end(end)
    made.move()
    assert made.groups.describe("g").group_state == "Empty"
    assert made.groups.delete("g", made.now_ms).result is ErrorCode.none
    made.move()
    assert list(made.groups.groups()) == []


def test_ended_transactions_leave_no_state() -> None:
    pending = PendingOffsets()
    value = OffsetCommitValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp_ms=0)
    for producer_id in range(3):
        pending.put(producer_id, "g", T0, PendingOffset(value=value, record_offset=0))
    assert list(pending.end(0)) == ["g"]
    assert pending.has("g", T0)
    pending.remove("g", T0)
    assert not pending.has("g", T0)
    assert pending.end(1) == {}
    assert vars(pending) == vars(PendingOffsets())
