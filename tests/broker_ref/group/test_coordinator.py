"""Tests of the group coordinator in virtual time.

They cover waiting requests, replication, leadership, retention and cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination import loader
from broker_ref.group import rebalance
from broker_ref.group.members import MemberIdentity, MemberProtocol
from broker_ref.group.offset_metadata_manager import Committer
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition
from tests.broker_ref.group.coordinators import CONFIG, Coordinators

T0 = TopicPartition(topic="t", partition=0)
DAY_MS = 24 * 60 * 60 * 1000


def value(offset: int, now_ms: int, expire_timestamp_ms: int = -1) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=expire_timestamp_ms,
    )


def commit(made: Coordinators, offset: int, group: str = "g", **committer: Any) -> Any:
    return made.groups.commit(
        group, Committer(**committer), {T0: value(offset, made.now_ms)}, made.now_ms
    )


def offset_of(made: Coordinators, group: str = "g") -> int | None:
    found = made.groups.committed(group, T0)
    return None if found is None else found.offset


def test_initial_rebalance_delay_is_extended_by_joining_members() -> None:
    made = Coordinators()
    joins = [made.join(rebalance_timeout_ms=8_000)]
    for _ in range(2):
        made.advance(2_999)
        joins.append(made.join(rebalance_timeout_ms=8_000))
        assert not joins[0].is_done
    made.advance(2_001)  # Eight seconds: a member that rejoins does not extend the delay.
    assert not joins[0].is_done
    made.advance(1_001)
    assert {join.result.generation_id for join in joins} == {1}
    assert len(joins[0].result.members) == 3


def test_initial_rebalance_delay_ends_without_further_members() -> None:
    made = Coordinators()
    join = made.join()
    made.advance(2_999)
    assert not join.is_done
    made.advance(1)
    assert join.result.generation_id == 1
    assert join in made.woken


def test_new_member_whose_join_waits_too_long_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebalance, "NEW_MEMBER_JOIN_TIMEOUT_MS", 1_000)
    made = Coordinators()
    monkeypatch.setattr("broker_ref.group.membership.NEW_MEMBER_JOIN_TIMEOUT_MS", 1_000)
    join = made.join()
    made.advance(1_000)
    assert join.result.error_code is ErrorCode.unknown_member_id


def test_rebalance_waits_for_members_while_other_sessions_expire() -> None:
    made = Coordinators()
    (leader, waiting, _silent), generation_id = made.stable(3)
    first = made.join(leader)
    made.join(requires_known_member_id=True)  # This member never uses its member id.
    made.advance(9_000)
    made.heartbeat(waiting, generation_id)
    made.advance(1_000)
    assert not first.is_done
    second = made.join(waiting)
    assert {m.member_id for m in first.result.members} == {leader, waiting}
    assert second.result.generation_id == first.result.generation_id == generation_id + 1


def replicas_lag(monkeypatch: pytest.MonkeyPatch, made: Coordinators) -> int:
    high_watermark = made.partition.high_watermark
    monkeypatch.setattr(Partition, "high_watermark", high_watermark)
    return high_watermark


def test_assignment_is_sent_when_it_is_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Coordinators()
    join = made.join()
    made.advance(3_000)
    member_id = join.result.member_id
    with monkeypatch.context() as lagging:
        replicas_lag(lagging, made)
        sync = made.sync(member_id, 1, {member_id: b"x"})
        made.settle()
        assert not sync.is_done
    made.settle()
    assert sync.result.assignment == b"x"
    assert made.groups.describe("g").group_state == "Stable"


def test_assignment_that_is_not_replicated_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Coordinators()
    join = made.join()
    made.advance(3_000)
    replicas_lag(monkeypatch, made)
    sync = made.sync(join.result.member_id, 1, {})
    made.advance(CONFIG.offsets_commit_timeout_ms)
    assert sync.result.error_code is ErrorCode.coordinator_not_available
    assert made.groups.describe("g").group_state == "PreparingRebalance"


def test_offset_fetch_returns_replicated_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Coordinators()
    assert commit(made, 1).result is ErrorCode.none
    with monkeypatch.context() as lagging:
        replicas_lag(lagging, made)
        second = commit(made, 2)
        assert not second.is_done
        assert offset_of(made) == 1
        assert not made.groups.last_write("g").is_replicated
        made.advance(CONFIG.offsets_commit_timeout_ms)
        assert second.result is ErrorCode.coordinator_not_available
        deletion = made.groups.delete("g", made.now_ms)
        assert not deletion.is_done
        assert offset_of(made) == 1
    made.settle()
    assert deletion.result is ErrorCode.none
    assert offset_of(made) is None


def test_waiting_requests_fail_with_not_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Coordinators()
    join = made.join()
    replicas_lag(monkeypatch, made)
    written = commit(made, 1, group="other")
    made.groups.on_resignation(made.partition, made.now_ms)
    assert join.result.error_code is ErrorCode.not_coordinator
    assert written.result is ErrorCode.not_coordinator
    assert made.heartbeat("x", 1) is ErrorCode.not_coordinator
    assert made.join().result.error_code is ErrorCode.not_coordinator
    made.advance(DAY_MS)  # The timers of unloaded groups have no effect.
    made.groups.on_election(made.partition, made.now_ms)
    assert made.heartbeat("x", 1) is ErrorCode.unknown_member_id


def test_new_coordinator_returns_assignments_that_are_replicated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Coordinators()
    join = made.join()
    made.advance(3_000)
    member_id = join.result.member_id
    with monkeypatch.context() as lagging:
        replicas_lag(lagging, made)
        made.sync(member_id, 1, {member_id: b"x"})
        made.restart()
        failed = made.sync(member_id, 1)
        made.advance(CONFIG.offsets_commit_timeout_ms)
        assert failed.result.error_code is ErrorCode.coordinator_not_available
        sync = made.sync(member_id, 1)
        assert not sync.is_done
        assert made.heartbeat(member_id, 1) is ErrorCode.none
    made.settle()
    assert sync.result.assignment == b"x"


def test_members_survive_a_coordinator_change() -> None:
    made = Coordinators()
    ids, generation_id = made.stable(3)
    made.restart()
    assert [made.heartbeat(one, generation_id) for one in ids] == [ErrorCode.none] * 3
    again = made.sync(ids[1], generation_id)
    assert again.result.assignment == ids[1].encode()
    made.advance(9_999)
    made.heartbeat(ids[0], generation_id)
    made.advance(1)
    assert made.heartbeat(ids[1], generation_id) is ErrorCode.unknown_member_id
    assert made.heartbeat(ids[0], generation_id) is ErrorCode.rebalance_in_progress


def test_large_log_is_loaded_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Coordinators()
    ids, generation_id = made.stable(2)
    for number in range(20):
        commit(made, number, group=f"g{number}")
    monkeypatch.setattr(loader, "STEP_BYTES", 100)
    made.restart()
    assert made.heartbeat(ids[0], generation_id) is ErrorCode.none
    loads = ErrorCode.coordinator_load_in_progress
    assert made.join().result.error_code is loads
    assert made.groups.delete("g", made.now_ms).result is loads
    with pytest.raises(ApiError) as raised:
        made.groups.groups()
    assert raised.value.error_code is loads
    for _ in range(40):
        made.advance(0)
        made.schedule.run(made.now_ms)
    assert made.heartbeat(ids[0], generation_id) is ErrorCode.none
    assert len(made.groups.groups()) == 21
    assert offset_of(made, "g7") == 7


def test_groups_that_could_not_be_loaded_are_loaded_after_the_next_election(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> bool:
        raise LogError(ErrorCode.kafka_storage_error, "the disk fails once")

    made = Coordinators()
    commit(made, 1)
    with monkeypatch.context() as failing:
        failing.setattr(loader.CoordinatorLoader, "step", fail)
        made.restart()
    made.settle()
    assert commit(made, 2).result is ErrorCode.not_coordinator
    metadata = made.partition.metadata
    made.partition.metadata = replace(metadata, leader_epoch=metadata.leader_epoch + 1)
    made.settle()
    assert offset_of(made) == 1


def test_retention_of_an_empty_group() -> None:
    made = Coordinators(
        BrokerConfig(offsets_topic_num_partitions=1, offsets_retention_check_interval_ms=60_000)
    )
    (member_id,), generation_id = made.stable(1)
    commit(made, 1, member_id=member_id, generation_id=generation_id)
    made.groups.leave("g", [MemberIdentity(member_id=member_id)], made.now_ms)
    made.advance(7 * DAY_MS - 60_000)
    assert offset_of(made) == 1
    made.restart()
    made.advance(180_000)
    assert offset_of(made) is None
    assert made.groups.groups() == []
    made.restart()
    assert made.groups.groups() == []


def test_retention_of_a_group_with_members() -> None:
    made = Coordinators(
        BrokerConfig(offsets_topic_num_partitions=1, offsets_retention_minutes=1,
                     group_max_session_timeout_ms=2**31 - 1)
    )  # fmt: skip
    subscribed = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
    join = made.join(
        session_timeout_ms=DAY_MS, protocols=(MemberProtocol(name="range", metadata=subscribed),)
    )
    made.advance(3_000)
    member_id = join.result.member_id
    made.sync(member_id, 1, {member_id: b""})
    other = TopicPartition(topic="left", partition=0)
    committer = Committer(member_id=member_id, generation_id=1)
    offsets = {T0: value(1, made.now_ms), other: value(2, made.now_ms)}
    made.groups.commit("g", committer, offsets, made.now_ms)
    made.advance(700_000)
    assert offset_of(made) == 1
    assert made.groups.committed("g", other) is None


def test_offset_with_its_own_retention() -> None:
    made = Coordinators()
    short = value(1, made.now_ms, expire_timestamp_ms=made.now_ms + 1_000)
    made.groups.commit("g", Committer(), {T0: short}, made.now_ms)
    made.restart()
    assert offset_of(made) == 1
    made.advance(CONFIG.offsets_retention_check_interval_ms)
    assert offset_of(made) is None


def test_cost_of_a_heartbeat_does_not_depend_on_the_number_of_members() -> None:
    made = Coordinators()
    ids, generation_id = made.stable(500)
    assert len(ids) == 500
    made.woken.clear()
    timers = made.schedule._timers_made
    for _ in range(3):
        made.advance(1_000)
        for member_id in ids:
            assert made.heartbeat(member_id, generation_id) is ErrorCode.none
    assert made.woken == []
    assert made.schedule._timers_made == timers
    made.advance(8_000)
    assert made.heartbeat(ids[0], generation_id) is ErrorCode.none


@pytest.mark.slow
def test_commit_of_ten_thousand_partitions() -> None:
    made = Coordinators()
    offsets = {
        TopicPartition(topic="t", partition=partition): value(partition, made.now_ms)
        for partition in range(10_000)
    }
    assert made.groups.commit("g", Committer(), offsets, made.now_ms).result is ErrorCode.none
    assert len(made.groups.all_committed("g")) == 10_000
    assert made.groups.delete("g", made.now_ms).result is ErrorCode.none
    made.restart()
    for _ in range(10):  # The records are loaded in several steps.
        made.advance(1)
    assert made.groups.groups() == []


def test_names_that_are_too_long_for_a_record() -> None:
    made = Coordinators()
    long = "x" * 32_767  # A member id is longer than the client id or instance id that it contains.
    for wrong in (
        {"group_instance_id": long},
        {"protocol_type": long},
        {"protocols": (MemberProtocol(name=long, metadata=b""),)},
    ):
        assert made.join(**wrong).result.error_code is ErrorCode.invalid_request
    assert made.groups.groups() == []


def test_assignment_that_is_too_large_for_a_batch() -> None:
    made = Coordinators()
    join = made.join()
    made.advance(3_000)
    sync = made.sync(join.result.member_id, 1, {join.result.member_id: bytes(2_000_000)})
    assert sync.result.error_code is ErrorCode.unknown_server_error
    assert made.groups.describe("g").group_state == "PreparingRebalance"


def test_deleted_group_stays_deleted_after_a_leader_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Coordinators()
    assert commit(made, 1).result is ErrorCode.none
    replicas_lag(monkeypatch, made)
    made.groups.delete("g", made.now_ms)
    # The next leader has the tombstone, but does not know yet that its followers have it.
    made.restart()
    assert [group.group_id for group in made.groups.groups()] == []


def test_static_member_with_an_empty_instance_id_is_not_a_dynamic_member() -> None:
    made = Coordinators()
    static = made.join(group_instance_id="")
    dynamic = made.join()
    leaves: Any = made.groups.leave("g", [MemberIdentity(member_id="")], made.now_ms)
    assert leaves.result.members == (ErrorCode.unknown_member_id,)
    made.advance(6_000)
    members = {static.result.member_id, dynamic.result.member_id}
    assert {m.member_id for m in made.groups.describe("g").members} == members


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_static_member_without_rebalance_timeout_that_does_not_rejoin(timeout_ms: int) -> None:
    made = Coordinators()
    joins = [made.join(), made.join(group_instance_id="i", rebalance_timeout_ms=timeout_ms)]
    made.advance(6_000)
    dynamic, static = (join.result.member_id for join in joins)
    for member_id in (dynamic, static):
        made.sync(member_id, 1, {})
    made.groups.leave("g", [MemberIdentity(member_id=dynamic)], made.now_ms)
    made.schedule.run(made.now_ms)
    due_ms = made.schedule.next_deadline_ms()
    assert due_ms is not None
    assert due_ms > made.now_ms, "the timer runs permanently"
    assert [m.member_id for m in made.groups.describe("g").members] == [static]
    made.advance(10_000)  # The session of the static member expires.
    assert made.groups.describe("g").group_state == "Empty"


def test_subscription_with_a_negative_number_of_topics_is_invalid() -> None:
    made = Coordinators()
    assert commit(made, 1).result is ErrorCode.none
    protocols = (MemberProtocol(name="range", metadata=b"\0\0\xff\xff\xff\xff"),)
    made.join(protocols=protocols)
    made.advance(3_000)
    codes, _ = made.groups.delete_offsets("g", [T0], made.now_ms)
    assert codes == {T0: ErrorCode.group_subscribed_to_topic}
