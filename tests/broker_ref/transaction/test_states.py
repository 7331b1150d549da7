"""Tests that the transitions of transaction states are Kafka's."""

from __future__ import annotations

import itertools

import pytest

from broker_ref.transaction.states import CHANGES, STATE_TITLES, TARGETS, TransactionState
from broker_ref.transaction.transitions import Transaction, _step

_IDLE = {
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
}

KAFKA_VALID_PREVIOUS_STATES = {
    TransactionState.EMPTY: _IDLE,
    TransactionState.ONGOING: _IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: {TransactionState.ONGOING},
    TransactionState.PREPARE_ABORT: _IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: {TransactionState.PREPARE_COMMIT},
    TransactionState.COMPLETE_ABORT: {TransactionState.PREPARE_ABORT},
    TransactionState.DEAD: _IDLE,
}

STATES = list(itertools.product(TransactionState, TransactionState))


@pytest.mark.parametrize(("source", "target"), STATES)
def test_transitions_are_allowed_as_in_kafka(
    source: TransactionState, target: TransactionState
) -> None:
    current = Transaction(
        producer_id=5, producer_epoch=0, timeout_ms=1, last_update_timestamp_ms=1, state=source
    )
    if source in KAFKA_VALID_PREVIOUS_STATES[target]:
        assert _step(current, target).state is target
    else:
        with pytest.raises(AssertionError):
            _step(current, target)


def test_table_has_no_duplicates() -> None:
    assert len({(row.source, row.target) for row in CHANGES}) == len(CHANGES)
    assert set(TARGETS) == set(TransactionState)


def test_states_have_the_names_of_kafka() -> None:
    assert {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
        "Dead", "PrepareEpochFence",
    } == STATE_TITLES  # fmt: skip
