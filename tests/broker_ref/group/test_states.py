"""Tests of the transitions between group states."""

from __future__ import annotations

import itertools

import pytest

from broker_ref.group.classic_group import ClassicGroup
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
def test_transitions_are_allowed_as_in_kafka(source: GroupState, target: GroupState) -> None:
    group = ClassicGroup("g", state=source, state_timestamp_ms=1)
    if source in KAFKA_VALID_PREVIOUS_STATES[target]:
        group.transition_to(target, 7)
        assert (group.state, group.previous_state, group.state_timestamp_ms) == (target, source, 7)
    else:
        with pytest.raises(AssertionError):
            group.transition_to(target, 7)


def test_table_has_no_duplicates() -> None:
    assert len({(row.source, row.target) for row in TRANSITIONS}) == len(TRANSITIONS)
    assert set(TARGETS) == set(HEARTBEAT_ANSWERS) == set(GroupState)
    assert not TARGETS[GroupState.DEAD]
