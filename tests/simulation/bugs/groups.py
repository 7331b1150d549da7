"""Bugs of consumer groups: commits, generations, coordinator changes."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.coordination.replies import Reply
from broker_ref.group import membership
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.coordinator import GroupCoordinator
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


def has_members(settings: Settings) -> bool:
    return settings.group_members > 0


BUGS = (
    Bug(
        name="acknowledge commits at once",
        source="GroupMetadataManager.storeOffsets",
        what="an offset is acknowledged as committed before it is replicated",
        reintroduce=_acknowledge_commits_at_once,
        first_seed=18,
        needs=has_members,
    ),
    Bug(
        name="accept commits of any generation",
        source="GroupMetadataManager.validateOffsetCommit",
        what="a member of an old generation can commit",
        reintroduce=_take_commits_of_any_generation,
        first_seed=None,
        needs=has_members,
    ),
    Bug(
        name="restart generations",
        source="GroupMetadataManager.loadGroupsAndOffsets",
        what="a new coordinator loads a group's members but not its generation id",
        reintroduce=_begin_generations_anew,
        first_seed=3,
        needs=has_members,
    ),
)
