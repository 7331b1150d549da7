"""Roll-forward: one EndTxn(commit) for an entry of a decision, and what its answer means.

Purpose: the ladder of outcomes, for planning and commit. Invariant: an entry is done only where its
rows are committed, and lost only where they never will be. What it must not know: who asks.
"""

from __future__ import annotations

from integration.sink_model.case import BY_ROLL_FORWARD, Case
from integration.sink_model.cluster import DONE, LOST, UNKNOWN, WAIT, end_task_transaction, fate
from integration.sink_model.coordinator import CONCURRENT, GRANTED
from integration.sink_model.mutations import (
    AMBIGUOUS_END_IS_SUCCESS,
    SWALLOW_A_LOST_TASK,
    TRUST_THE_NEXT_EPOCH,
)
from integration.sink_model.state import END_COMMIT, Entry, State, TaskRequest, Work, without
from integration.sink_model.turn import Turn

OUTCOME_NAMES = {DONE: "done", LOST: "lost", UNKNOWN: "unknown"}


def rolled(case: Case, state: State, index: int, entry: Entry) -> tuple[State, int]:
    """One entry: the state and what became of it, or `WAIT`."""
    state, answer = end_task_transaction(
        case, state, index, entry.task_id, entry.epoch, BY_ROLL_FORWARD, is_commit=True
    )
    if answer == GRANTED or (answer != CONCURRENT and case.mutation == AMBIGUOUS_END_IS_SUCCESS):
        return state, DONE
    if answer == CONCURRENT:
        return state, WAIT
    outcome = fate(
        case,
        state.partitions[index],
        entry,
        trusts_next_epoch=case.mutation == TRUST_THE_NEXT_EPOCH,
    )
    if outcome == LOST and case.mutation == SWALLOW_A_LOST_TASK:
        outcome = DONE
    return state, outcome


def with_outcome(turn: Turn, state: State, index: int, entry: Entry, outcome: int) -> State:
    """The driver knows it."""
    work: Work = state.partitions[index].works[turn.number]
    work = work._replace(
        to_do=without(work.to_do, entry),
        lost=(*work.lost, entry) if outcome == LOST else work.lost,
    )
    return turn.with_work(state, index, work)


def request_of(entry: Entry) -> TaskRequest:
    """The EndTxn(commit) of an entry, where it comes late."""
    return TaskRequest(END_COMMIT, entry.task_id, entry.epoch)


def what(index: int, entry: Entry, outcome: int) -> str:
    """A line of a schedule."""
    return (
        f"EndTxn(commit) of partition {index}'s {entry.task_id}, epoch {entry.epoch}: "
        f"{OUTCOME_NAMES[outcome]}"
    )
