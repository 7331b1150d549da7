"""The states of a classic group and their valid transitions.

    Empty                the group has no members; it keeps its generation and may have offsets
    PreparingRebalance   members must rejoin; their JoinGroup requests are pending
    CompletingRebalance  members have joined the new generation; their SyncGroup requests
                         are pending until the leader sends the assignments
    Stable               each member has its assignment
    Dead                 the group is deleted, or its partition is unloaded

This module also maps each state to the error code of Heartbeat responses. Invariant: a group never
leaves the Dead state. Source: Kafka's `ClassicGroupState`.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass


class GroupState(Enum):
    """A group state. The value is the name used in responses to clients."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Transition:
    """A valid transition, with its source state, its target state and the reason."""

    source: GroupState
    target: GroupState
    when: str


_EMPTY: Final = GroupState.EMPTY
_PREPARING: Final = GroupState.PREPARING_REBALANCE
_COMPLETING: Final = GroupState.COMPLETING_REBALANCE
_STABLE: Final = GroupState.STABLE
_DEAD: Final = GroupState.DEAD

TRANSITIONS: Final = (
    Transition(_EMPTY, _PREPARING, "the first member joins"),
    Transition(_PREPARING, _COMPLETING, "all members have joined, or the timeout has passed"),
    Transition(_PREPARING, _EMPTY, "the last member is removed"),
    Transition(_COMPLETING, _STABLE, "the leader's assignment is replicated"),
    Transition(_COMPLETING, _PREPARING, "a member joins, leaves, expires or does not sync"),
    Transition(_STABLE, _PREPARING, "a member joins, leaves, expires or changes its protocols"),
    Transition(_EMPTY, _DEAD, "the group is deleted, expires or is unloaded"),
    Transition(_PREPARING, _DEAD, "the group is unloaded"),
    Transition(_COMPLETING, _DEAD, "the group is unloaded"),
    Transition(_STABLE, _DEAD, "the group is unloaded"),
)

TARGETS: Final = MappingProxyType(
    {
        state: frozenset(row.target for row in TRANSITIONS if row.source is state)
        for state in GroupState
    }
)
"""The valid target states of each state."""

HEARTBEAT_ANSWERS: Final = MappingProxyType(
    {
        _EMPTY: ErrorCode.unknown_member_id,
        _PREPARING: ErrorCode.rebalance_in_progress,
        _COMPLETING: ErrorCode.none,
        _STABLE: ErrorCode.none,
        _DEAD: ErrorCode.coordinator_not_available,
    }
)
"""The Heartbeat error code for a member of the current generation, by state."""

STATES_KEPT_ALIVE_BY_COMMITS: Final = frozenset({_PREPARING, _STABLE})
"""The states in which a commit renews the session of the member."""

STATES_OF_A_GENERATION: Final = frozenset({_COMPLETING, _STABLE})
"""The states in which a joining or leaving member starts a rebalance."""
