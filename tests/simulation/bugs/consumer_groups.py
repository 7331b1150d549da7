"""Bugs of groups with the consumer protocol (KIP-848)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from broker_ref.group import offset_metadata_manager
from broker_ref.group.consumer.reconciliation import Reconciliation
from broker_ref.group.consumer_membership import ConsumerMembership
from integration.simulation.plan import Settings
from tests.simulation.bugs.bug import Bug


def _assign_owned_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    next_state = Reconciliation.next_state

    def without_owners(self: Reconciliation, member: Any) -> Any:
        return next_state(dataclasses.replace(self, has_owner=lambda *_: False), member)

    monkeypatch.setattr(Reconciliation, "next_state", without_owners)


def _accept_commits_of_any_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_metadata_manager, "check_offset_commit", lambda *_, **__: None)


def _extend_sessions_only_after_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ConsumerMembership._start_timers

    def after_changes(self: ConsumerMembership, group_id: str, update: Any, now_ms: int) -> None:
        if update.changes:
            start(self, group_id, update, now_ms)

    monkeypatch.setattr(ConsumerMembership, "_start_timers", after_changes)


def has_consumer_members(settings: Settings) -> bool:
    return settings.consumer_members > 0


BUGS = (
    Bug(
        name="assign owned partitions",
        source="KIP-848, CurrentAssignmentBuilder.computeNextAssignment",
        description="a member receives a partition before its owner has released it",
        reintroduce=_assign_owned_partitions,
        first_seed=21,
        applies_to=has_consumer_members,
    ),
    Bug(
        name="accept commits of any member epoch",
        source="KIP-848, ConsumerGroup.validateOffsetCommit",
        description="a member that was removed from the group can commit offsets",
        reintroduce=_accept_commits_of_any_epoch,
        first_seed=163,
        applies_to=has_consumer_members,
    ),
    Bug(
        name="extend sessions only after changes",
        source="KIP-848, GroupMetadataManager.scheduleConsumerGroupSessionTimeout",
        description="a heartbeat that changes nothing does not extend the session of its member",
        reintroduce=_extend_sessions_only_after_changes,
        first_seed=14,
        applies_to=has_consumer_members,
    ),
)
