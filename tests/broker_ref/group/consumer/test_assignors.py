"""Tests of the assignors against the rules of Kafka's assignors."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_ref.group.consumer.assignment import Assignment, MemberSpec
from broker_ref.group.consumer.assignors import ASSIGNORS, RANGE, UNIFORM
from broker_ref.protocol.identifiers import Uuid

TOPICS = [Uuid(int=index) for index in range(1, 6)]
A, B, C = TOPICS[:3]

Previous = Mapping[str, Assignment]


def assign(
    name: str,
    subscriptions: Mapping[str, set[Uuid]],
    counts: Mapping[Uuid, int],
    previous: Previous | None = None,
    instances: Mapping[str, str] | None = None,
) -> dict[str, Assignment]:
    members = {
        member_id: MemberSpec(
            topic_ids=frozenset(topics),
            instance_id=(instances or {}).get(member_id),
            assignment=(previous or {}).get(member_id, {}),
        )
        for member_id, topics in subscriptions.items()
    }
    return ASSIGNORS[name](members, counts)


def count(assignment: Assignment) -> int:
    return sum(len(partitions) for partitions in assignment.values())


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, set[Uuid]], dict[Uuid, int]]:
    counts = {topic: draw(st.integers(1, 12)) for topic in TOPICS}
    members = [f"m{index}" for index in range(draw(st.integers(1, 7)))]
    same = draw(st.none() | st.sets(st.sampled_from(TOPICS)))
    if same is not None:
        return dict.fromkeys(members, same), counts
    return {member: draw(st.sets(st.sampled_from(TOPICS))) for member in members}, counts


def check_is_complete(
    result: Mapping[str, Assignment],
    subscriptions: Mapping[str, set[Uuid]],
    counts: Mapping[Uuid, int],
) -> None:
    """Each partition of each subscribed topic has exactly one owner, which subscribes to it."""
    assert result.keys() == subscriptions.keys()
    owned = [
        (topic, partition)
        for member, assignment in result.items()
        for topic, partitions in assignment.items()
        for partition in partitions
        if topic in subscriptions[member]
    ]
    subscribed = set().union(*subscriptions.values())
    expected = {(topic, index) for topic in subscribed for index in range(counts[topic])}
    assert len(owned) == len(expected) == sum(map(count, result.values()))
    assert set(owned) == expected
    assert all(partitions for assignment in result.values() for partitions in assignment.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ASSIGNORS)
@given(first=groups(), second=groups())
def test_every_partition_has_one_subscribed_owner(
    name: str,
    first: tuple[dict[str, set[Uuid]], dict[Uuid, int]],
    second: tuple[dict[str, set[Uuid]], dict[Uuid, int]],
) -> None:
    previous = assign(name, *first)
    check_is_complete(previous, *first)
    check_is_complete(assign(name, *second, previous), *second)


@given(group=groups())
def test_uniform_is_balanced_and_sticky(
    group: tuple[dict[str, set[Uuid]], dict[Uuid, int]],
) -> None:
    """No member could take a partition from one that has two more, and a second run moves none."""
    subscriptions, counts = group
    result = assign(UNIFORM, subscriptions, counts)
    for poor, topics in subscriptions.items():
        for assignment in result.values():
            shared = topics & assignment.keys()
            assert not shared or count(assignment) - count(result[poor]) <= 1
    assert assign(UNIFORM, subscriptions, counts, result) == result


def test_uniform_moves_only_what_the_balance_needs() -> None:
    """A third member takes two of six partitions; the others keep what they have."""
    counts = {A: 6}
    before = assign(UNIFORM, {"m1": {A}, "m2": {A}}, counts)
    after = assign(UNIFORM, {"m1": {A}, "m2": {A}, "m3": {A}}, counts, before)
    assert [count(one) for one in after.values()] == [2, 2, 2]
    assert after["m1"][A] < before["m1"][A]
    assert after["m2"][A] < before["m2"][A]
    back = assign(UNIFORM, {"m1": {A}, "m3": {A}}, counts, after)
    assert after["m1"][A] < back["m1"][A]
    assert after["m3"][A] < back["m3"][A]


def test_uniform_leaves_the_extra_partition_where_it_is() -> None:
    previous: Previous = {"m1": {A: frozenset({0})}, "m2": {A: frozenset({1, 2})}}
    assert assign(UNIFORM, {"m1": {A}, "m2": {A}}, {A: 3}, previous) == previous


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("other", [{A}, {A, B}], ids=["equal", "different"])
def test_partitions_that_do_not_exist_are_not_kept(name: str, other: set[Uuid]) -> None:
    subscriptions, counts = {"m1": {A}, "m2": other}, {A: 3, B: 1}
    previous: Previous = {"m1": {A: frozenset({-1, 0, 3})}}
    check_is_complete(assign(name, subscriptions, counts, previous), subscriptions, counts)


def test_range_gives_the_first_members_the_larger_ranges() -> None:
    result = assign(RANGE, {"m2": {A, B}, "m1": {A, B}, "m3": {B}}, {A: 3, B: 4})
    assert result == {
        "m1": {A: frozenset({0, 1}), B: frozenset({0, 1})},
        "m2": {A: frozenset({2}), B: frozenset({2})},
        "m3": {B: frozenset({3})},
    }


def test_range_sorts_static_members_by_instance_id_before_dynamic_members() -> None:
    subscriptions = {"a": {C}, "b": {C}, "c": {C}}
    result = assign(RANGE, subscriptions, {C: 2}, instances={"c": "1", "b": "2"})
    assert result == {"a": {}, "b": {C: frozenset({1})}, "c": {C: frozenset({0})}}
