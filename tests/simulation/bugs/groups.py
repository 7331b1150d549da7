"""Bugs of consumer groups: offset commits, generations and changes of the coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.coordination.partition_writer import NOTHING_WRITTEN
from broker_ref.coordination.replies import Reply
from broker_ref.group import membership
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.group.members import Member
from broker_ref.group.shard import Shard
from broker_ref.replication.partition import PendingReplication
from integration.simulation.plan import Settings
from tests.simulation.bugs.bug import Bug


def _acknowledge_commits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Any, write: Any, now_ms: int) -> Reply[ErrorCode]:
        del write, now_ms
        reply: Reply[ErrorCode] = self._done(ErrorCode.none)
        return reply

    monkeypatch.setattr(GroupCoordinator, "_outcome", at_once)


def _take_commits_of_any_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "_check_generation", lambda *_: None)


def _begin_generations_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    make = ClassicGroup.__init__

    def forget(self: Any, *what: Any, **how: Any) -> None:
        make(self, *what, **{**how, "generation_id": 0})

    monkeypatch.setattr(ClassicGroup, "__init__", forget)


def _return_offsets_before_writes_are_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_written(self: Any, group_id: str) -> PendingReplication:
        return PendingReplication(partition=self.check_coordinator(group_id), required_offset=0)

    monkeypatch.setattr(GroupCoordinator, "last_write", nothing_written)


def _return_unreplicated_assignments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shard, "await_loaded_records", lambda *_: NOTHING_WRITTEN)


def _keep_ids_of_static_members(monkeypatch: pytest.MonkeyPatch) -> None:
    replace = ClassicGroup.replace_static

    def keep(self: ClassicGroup, old: Member, new_id: str) -> Member:
        del new_id
        return replace(self, old, old.member_id)

    monkeypatch.setattr(ClassicGroup, "replace_static", keep)


def _accept_transactional_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        membership.Membership, "check_transactional_committer", lambda *_, **__: None
    )


def has_members(settings: Settings) -> bool:
    return settings.group_members > 0


BUGS = (
    Bug(
        name="acknowledge offset commits too early",
        source="GroupMetadataManager.storeOffsets",
        description="an offset commit is acknowledged before it is replicated",
        reintroduce=_acknowledge_commits_at_once,
        first_seed=18,
        applies_to=has_members,
    ),
    Bug(
        name="accept commits of any generation",
        source="GroupMetadataManager.validateOffsetCommit",
        description="a member of an old generation can commit offsets",
        reintroduce=_take_commits_of_any_generation,
        first_seed=194,
        applies_to=has_members,
    ),
    Bug(
        name="restart generations",
        source="GroupMetadataManager.loadGroupsAndOffsets",
        description="a new coordinator loads a group's members but not its generation id",
        reintroduce=_begin_generations_anew,
        first_seed=3,
        applies_to=has_members,
    ),
    Bug(
        name="return offsets before writes are replicated",
        source="GroupCoordinatorService.fetchOffsets",
        description="OffsetFetch with require_stable does not wait for the writes in the log",
        reintroduce=_return_offsets_before_writes_are_replicated,
        first_seed=1,
    ),
    Bug(
        name="return unreplicated assignments",
        source="GroupMetadataManager.classicGroupSyncToMember (not prevented there)",
        description="a new coordinator returns an assignment that another leader removes",
        reintroduce=_return_unreplicated_assignments,
        first_seed=None,
        applies_to=has_members,
    ),
    Bug(
        name="keep ids of static members",
        source="KIP-345, ClassicGroup.replaceStaticMember",
        description="a replaced static member is not fenced, because its successor has the same id",
        reintroduce=_keep_ids_of_static_members,
        first_seed=64,
        applies_to=lambda settings: has_members(settings) and settings.has_static_members,
    ),
    Bug(
        name="accept transactional commits of any generation",
        source="KIP-447, ClassicGroup.validateOffsetCommit",
        description="a member of an old generation can commit offsets in a transaction",
        reintroduce=_accept_transactional_commits,
        first_seed=23,
        applies_to=lambda settings: has_members(settings) and settings.members_use_transactions,
    ),
)
