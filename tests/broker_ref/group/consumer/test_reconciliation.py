"""Tests of the reconciliation of members with their target assignment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.group.consumer.assignment import Assignment
from broker_ref.group.consumer.member import ConsumerGroupMember, MemberState
from broker_ref.group.consumer.reconciliation import Reconciliation
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid

A, B = Uuid(int=1), Uuid(int=2)
STABLE, UNREVOKED, UNRELEASED = list(MemberState)[:3]

MEMBER = ConsumerGroupMember(
    member_id="m", member_epoch=5, previous_member_epoch=4, assigned={A: {1: 3, 2: 5}}
)


def reconciled(
    member: ConsumerGroupMember,
    target: dict[Uuid, set[int]],
    *,
    epoch: int = 6,
    owned: dict[Uuid, set[int]] | None = None,
    used: frozenset[tuple[Uuid, int]] = frozenset(),
    subscribed: frozenset[Uuid] = frozenset({A, B}),
    subscription_changed: bool = False,
) -> ConsumerGroupMember:
    def frozen(partitions: dict[Uuid, set[int]]) -> Assignment:
        return {topic: frozenset(found) for topic, found in partitions.items()}

    return Reconciliation(
        target_epoch=epoch,
        target=frozen(target),
        subscribed=subscribed,
        subscription_changed=subscription_changed,
        has_owner=lambda topic, partition: (topic, partition) in used,
        owned=None if owned is None else frozen(owned),
    ).next_state(member)


def test_partitions_are_revoked_before_the_epoch_changes() -> None:
    revoking = reconciled(MEMBER, {A: {2, 3}, B: {0}})
    assert (revoking.state, revoking.member_epoch) == (UNREVOKED, 5)
    assert (revoking.assigned, revoking.pending_revocation) == ({A: {2: 5}}, {A: {1: 3}})
    for owned in (None, {A: {1, 2}}):
        assert reconciled(revoking, {A: {2, 3}, B: {0}}, owned=owned) == revoking
    done = reconciled(revoking, {A: {2, 3}, B: {0}}, owned={A: {2}})
    assert (done.state, done.member_epoch, done.previous_member_epoch) == (STABLE, 6, 5)
    assert (done.assigned, done.pending_revocation) == ({A: {2: 5, 3: 6}, B: {0: 6}}, {})


def test_partitions_of_other_members_are_awaited() -> None:
    target = {A: {1, 2, 3}, B: {0}}
    waiting = reconciled(MEMBER, target, used=frozenset({(A, 3)}))
    assert (waiting.state, waiting.member_epoch) == (UNRELEASED, 6)
    assert waiting.assigned == {A: {1: 3, 2: 5}, B: {0: 6}}
    done = reconciled(waiting, target, epoch=7)
    assert (done.state, done.assigned[A]) == (STABLE, {1: 3, 2: 5, 3: 7})


def test_a_revoked_partition_can_come_back() -> None:
    """Its own revocation does not count as an owner, and the partition gets a new epoch."""
    revoking = reconciled(MEMBER, {A: {2}})
    back = reconciled(revoking, {A: {1, 2}}, owned={A: {2}}, used=frozenset({(A, 1)}))
    assert (back.state, back.assigned) == (STABLE, {A: {1: 6, 2: 5}})


def test_unsubscribed_topics_are_revoked_without_a_new_target() -> None:
    member = replace(MEMBER, assigned={A: {1: 3}, B: {0: 4}})
    subscribed = frozenset({B})
    same = reconciled(member, {}, epoch=5, subscribed=subscribed)
    assert same == member
    revoking = reconciled(member, {}, epoch=5, subscribed=subscribed, subscription_changed=True)
    assert (revoking.state, revoking.member_epoch) == (UNREVOKED, 5)
    assert (revoking.assigned, revoking.pending_revocation) == ({B: {0: 4}}, {A: {1: 3}})
    already = reconciled(
        member, {}, epoch=5, subscribed=subscribed, subscription_changed=True, owned={B: {0}}
    )
    assert (already.state, already.assigned) == (STABLE, {B: {0: 4}})


def test_a_member_of_unknown_state_must_rejoin() -> None:
    member = replace(MEMBER, state=MemberState(99))
    with pytest.raises(ApiError) as raised:
        reconciled(member, {A: {1}}, owned={A: {1}})
    assert raised.value.error_code is ErrorCode.fenced_member_epoch
    assert reconciled(member, {A: {1}}, owned={}).state is STABLE
