"""Tests of consumer groups in virtual time: intervals, retention, failover and protocols."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.group.consumer import regular_expressions
from broker_ref.group.consumer.group import ConsumerGroup, ConsumerGroupState
from broker_ref.group.consumer.regular_expressions import Resolution
from broker_ref.protocol.errors import ApiError
from tests.broker_ref.group.consumer.consumer_groups import CONFIG, Consumer, Groups, settle

NONE = ErrorCode.none
MINUTE_MS = 60_000


def types(groups: Groups) -> dict[str, str]:
    return {
        group.group_id: "consumer" if isinstance(group, ConsumerGroup) else "classic"
        for group in groups.groups.groups()
    }


def test_target_assignments_wait_for_the_assignment_interval() -> None:
    groups = Groups(replace(CONFIG, group_consumer_assignment_interval_ms=1000))
    first, second = Consumer(groups, "m1", "t"), Consumer(groups, "m2", "t")
    assert [first.join(), second.join()] == [NONE, NONE]
    group = groups.group
    assert (group.group_epoch, group.assignment_epoch) == (3, 2)
    assert (second.epoch, second.owned) == (2, {})
    assert group.state is ConsumerGroupState.ASSIGNING
    groups.advance(1000)
    settle(groups, first, second)
    assert (second.epoch, len(second.partitions)) == (3, 5)

    groups.groups.update_config(CONFIG)  # The interval is 0 now.
    third = Consumer(groups, "m3", "t")
    assert third.join() is NONE
    assert groups.group.assignment_epoch == groups.group.group_epoch


def test_a_regex_that_replaces_another_one_is_resolved_at_once() -> None:
    groups = Groups()
    member = Consumer(groups, "m", subscribed_topic_regex="t2")
    assert member.join() is NONE
    groups.advance(10_001)
    assert set(groups.group.resolved) == {"t2"}
    assert member.heartbeat(subscribed_topic_regex="t3") is NONE
    groups.advance(1)
    assert member.heartbeat() is NONE
    assert {topic for topic, _ in member.partitions} == {groups.topic_id("t3")}


def test_requests_are_handled_while_regexes_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group gets all results at once, so its members are rebalanced only once."""
    monkeypatch.setattr(regular_expressions, "MATCHES_PER_STEP", 1)
    groups = Groups()
    members = [Consumer(groups, name, subscribed_topic_regex=name) for name in ("t2", "t3")]
    assert [member.join() for member in members] == [NONE, NONE]
    groups.advance(10_001)
    assert set(groups.group.resolved) == {"t2"}
    epoch = groups.group.group_epoch
    assert members[0].heartbeat() is NONE
    groups.schedule.run(groups.now_ms)
    assert members[1].heartbeat() is NONE
    assert set(groups.group.resolved) == {"t2"}
    groups.schedule.run(groups.now_ms)
    assert set(groups.group.resolved) == {"t2", "t3"}
    assert groups.group.group_epoch == epoch + 1


def test_a_group_subscribes_to_topics_by_name_and_by_regex() -> None:
    groups = Groups()
    members = [
        Consumer(groups, "m1", "t2"),
        Consumer(groups, "m2", subscribed_topic_regex="t3"),
    ]
    assert [member.join() for member in members] == [NONE, NONE]
    groups.advance(1)
    group, topics = groups.group, ("t", "t2", "t3")
    assert [group.subscribes_to_any({topic}) for topic in topics] == [False, True, True]
    assert group.subscribed_of(set(topics)) == {"t2", "t3"}


def test_only_topics_that_match_a_regex_are_authorized() -> None:
    """Each of these topics is authorized once, even if several expressions match it."""
    checked: list[str] = []

    def is_visible(topic: str) -> bool:
        checked.append(topic)
        return topic == "t2"

    metadata = Groups().driver.broker.metadata
    resolution = Resolution(["t2|t3", "t2", "t3"], metadata, is_visible, now_ms=0)
    assert resolution.step()
    assert [set(one.topics) for one in resolution.resolved.values()] == [{"t2"}, {"t2"}, set()]
    assert sorted(checked) == ["t2", "t3"]


def test_timers_continue_after_a_failover() -> None:
    """The new coordinator waits for a full session, and for the rebalance timeout."""
    groups = Groups()
    slow, other = Consumer(groups, "m1", "t"), Consumer(groups, "m2", "t")
    assert [slow.join(), other.join()] == [NONE, NONE]
    before = slow.owned
    assert slow.heartbeat(topic_partitions=None) is NONE
    groups.move()
    groups.advance(9_999)
    slow.owned = before
    assert slow.heartbeat() is NONE
    groups.advance(1)
    assert slow.heartbeat() is ErrorCode.unknown_member_id
    groups.advance(36_000)
    assert groups.group.state is ConsumerGroupState.EMPTY


def test_offsets_and_groups_expire() -> None:
    groups = Groups()
    member = Consumer(groups, "m1", "t")
    assert member.join() is NONE
    assert groups.commit(7, member_id="m1", generation_id=member.epoch).result is NONE
    retention_ms = CONFIG.offsets_retention_minutes * MINUTE_MS
    groups.now_ms += retention_ms
    groups.groups.run_retention(groups.now_ms)
    assert groups.offset_of() == 7  # A member subscribes to the topic.
    groups.heartbeat_of("m1", -1)
    groups.groups.run_retention(groups.now_ms)
    assert (groups.offset_of(), types(groups)) == (None, {})
    groups.move()
    assert types(groups) == {}


def test_a_group_without_members_changes_its_protocol() -> None:
    groups = Groups()
    member = Consumer(groups, "m1", "t")
    assert member.join() is NONE
    groups.heartbeat_of("m1", -1)
    assert groups.join("x").result.error_code is ErrorCode.unknown_member_id
    assert types(groups) == {"g": "consumer"}
    groups.join()
    assert types(groups) == {"g": "classic"}
    assert member.join() is ErrorCode.group_id_not_found
    groups.move()
    assert types(groups) == {"g": "classic"}
    assert member.join() is NONE
    groups.move()
    assert types(groups) == {"g": "consumer"}


def test_a_missing_group_is_not_described() -> None:
    with pytest.raises(ApiError) as raised:
        Groups().groups.describe_consumer_group("g")
    assert raised.value.error_code is ErrorCode.group_id_not_found
