"""Roll-forward: sends EndTxn(commit) for an entry of a decision, and determines its outcome.

Planning and commit use these functions. Invariant: an entry is reported as committed only if its
rows are committed, and as lost only if its rows will never be committed.

In the code, planning first describes the transactions, and sends EndTxn only for open ones. The
outcome is the same, because EndTxn(commit) changes only an open transaction.
"""

from __future__ import annotations

from integration.sink_model.case import BY_ROLL_FORWARD, Case
from integration.sink_model.cluster import (
    DONE,
    LOST,
    UNKNOWN,
    end_task_transaction,
    outcome_of,
)
from integration.sink_model.coordinator import CONCURRENT, GRANTED
from integration.sink_model.driver_action import DriverAction
from integration.sink_model.mutations import (
    AMBIGUOUS_END_IS_SUCCESS,
    SWALLOW_A_LOST_TASK,
    TRUST_THE_NEXT_EPOCH,
)
from integration.sink_model.state import END_COMMIT, Entry, State, TaskRequest, Work, without

OUTCOME_NAMES = {DONE: "done", LOST: "lost", UNKNOWN: "unknown"}


def roll_forward_entry(case: Case, state: State, index: int, entry: Entry) -> tuple[State, int]:
    """Roll one entry forward; return the state and the outcome."""
    state, response = end_task_transaction(
        case, state, index, entry.task_id, entry.epoch, BY_ROLL_FORWARD, is_commit=True
    )
    if response == GRANTED or (
        response != CONCURRENT and case.mutation == AMBIGUOUS_END_IS_SUCCESS
    ):
        return state, DONE
    outcome = outcome_of(
        case,
        state.partitions[index],
        entry,
        trusts_next_epoch=case.mutation == TRUST_THE_NEXT_EPOCH,
    )
    if outcome == LOST and case.mutation == SWALLOW_A_LOST_TASK:
        outcome = DONE
    return state, outcome


def with_outcome(
    action: DriverAction, state: State, index: int, entry: Entry, outcome: int
) -> State:
    """Return the state with an outcome stored in the driver's work."""
    work: Work = state.partitions[index].works[action.number]
    work = work._replace(
        to_do=without(work.to_do, entry),
        lost=(*work.lost, entry) if outcome == LOST else work.lost,
    )
    return action.with_work(state, index, work)


def request_of(entry: Entry) -> TaskRequest:
    """Return the EndTxn(commit) request for an entry, as a delayed request."""
    return TaskRequest(END_COMMIT, entry.task_id, entry.epoch)


def what(index: int, entry: Entry, outcome: int) -> str:
    """Return the text that describes the action in a trace."""
    return (
        f"EndTxn(commit) for partition {index}, id {entry.task_id}, epoch {entry.epoch}: "
        f"{OUTCOME_NAMES[outcome]}"
    )
