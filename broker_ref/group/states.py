"""The states of a classic group, and every way from one to another.

    Empty                no members; offsets may be there; the generation stays known
    PreparingRebalance   members are asked to join again; their JoinGroup requests wait
    CompletingRebalance  all know the new generation; their SyncGroup requests wait for the
                         leader's assignment
    Stable               each member has its assignment
    Dead                 gone from this broker: deleted, or its coordinator is another

Purpose: the table that `Group.transition_to` allows moves from, and what requests are answered in
each state. Invariant: Dead is final. What it must not know: members, time, and what moves a group.
Source: Kafka's `ClassicGroupState`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode


class GroupState(Enum):
    """A state, by the name that Kafka tells clients."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: from where, to where, and when."""

    source: GroupState
    target: GroupState
    when: str


_EMPTY: Final = GroupState.EMPTY
_PREPARING: Final = GroupState.PREPARING_REBALANCE
_COMPLETING: Final = GroupState.COMPLETING_REBALANCE
_STABLE: Final = GroupState.STABLE
_DEAD: Final = GroupState.DEAD

TRANSITIONS: Final = (
    Transition(_EMPTY, _PREPARING, "a first member joins"),
    Transition(_PREPARING, _COMPLETING, "all have joined, or the time for it has passed"),
    Transition(_PREPARING, _EMPTY, "the last member is gone"),
    Transition(_COMPLETING, _STABLE, "the leader's assignment is in the log of every replica"),
    Transition(_COMPLETING, _PREPARING, "a member joins, leaves, expires or does not sync"),
    Transition(_STABLE, _PREPARING, "a member joins, leaves, expires or subscribes otherwise"),
    Transition(_EMPTY, _DEAD, "deleted, expired, or coordinated by another broker"),
    Transition(_PREPARING, _DEAD, "coordinated by another broker"),
    Transition(_COMPLETING, _DEAD, "coordinated by another broker"),
    Transition(_STABLE, _DEAD, "coordinated by another broker"),
)

TARGETS: Final = MappingProxyType(
    {
        state: frozenset(row.target for row in TRANSITIONS if row.source is state)
        for state in GroupState
    }
)
"""Where each state can lead, from the table."""

HEARTBEAT_ANSWERS: Final = MappingProxyType(
    {
        _EMPTY: ErrorCode.unknown_member_id,
        _PREPARING: ErrorCode.rebalance_in_progress,
        _COMPLETING: ErrorCode.none,
        _STABLE: ErrorCode.none,
        _DEAD: ErrorCode.coordinator_not_available,
    }
)
"""What a member of the present generation is told."""

STATES_KEPT_ALIVE_BY_COMMITS: Final = frozenset({_PREPARING, _STABLE})
"""Where a member's commit counts as a heartbeat."""

STATES_OF_A_GENERATION: Final = frozenset({_COMPLETING, _STABLE})
"""Where a new member, or one that is gone, starts a rebalance."""
