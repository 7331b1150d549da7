"""The table of states: what it allows, and that a group moves along it alone."""

from __future__ import annotations

import itertools

import pytest

from broker_ref.group.group import Group
from broker_ref.group.states import HEARTBEAT_ANSWERS, TARGETS, TRANSITIONS, GroupState

KAFKA_VALID_PREVIOUS_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.STABLE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.EMPTY,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState) - {GroupState.DEAD},
}


@pytest.mark.parametrize(("source", "target"), list(itertools.product(GroupState, GroupState)))
def test_every_move_is_allowed_or_refused_as_in_kafka(
    source: GroupState, target: GroupState
) -> None:
    group = Group("g", state=source, state_timestamp_ms=1)
    if source in KAFKA_VALID_PREVIOUS_STATES[target]:
        group.transition_to(target, 7)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, source, 7)
    else:
        with pytest.raises(AssertionError):
            group.transition_to(target, 7)


def test_the_table_says_everything_once() -> None:
    assert len({(row.source, row.target) for row in TRANSITIONS}) == len(TRANSITIONS)
    assert set(TARGETS) == set(HEARTBEAT_ANSWERS) == set(GroupState)
    assert not TARGETS[GroupState.DEAD]
