"""A driver incarnation: planning, the job, commit and abort of its batches, one after the other.

Purpose: which step is taken where. Invariant: one transition is one request that reached its broker,
with its answer, if any; a driver that is killed is one that is never scheduled again, one that stalls
is scheduled late, so neither needs a transition. What it must not know: what steps do.

A request is answered; or, while the case has `answers` to lose, it is done and its answer lost, or it
comes late, or it is done and comes once more. A sweep is three places: list, look who owns X, fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from integration.sink_model import aborting, deciding, job, places, planning, sweep
from integration.sink_model.case import Case
from integration.sink_model.state import State
from integration.sink_model.turn import Transitions, Turn

_STEPS: Final[dict[int, Callable[[Turn], Transitions]]] = {
    places.PLAN_FENCE: planning.fence,
    places.PLAN_READ: planning.read,
    places.PLAN_ROLL_FORWARD: planning.roll_forward,
    places.PLAN_MARK: planning.mark,
    places.PLAN_SWEEP: sweep.list_open,
    places.PLAN_SWEEP_LOOK: sweep.look,
    places.PLAN_SWEEP_FENCE: sweep.fence,
    places.TASKS: job.job,
    places.COMMIT_COMPARE: deciding.compare,
    places.COMMIT_COMPARE_ROLL: deciding.roll_forward,
    places.COMMIT_COMPARE_MARK: deciding.mark,
    places.COMMIT_DECIDE: deciding.decide,
    places.COMMIT_DECIDE_END: deciding.end,
    places.COMMIT_ROLL_FORWARD: deciding.roll_forward,
    places.COMMIT_MARK: deciding.mark,
    places.COMMIT_SWEEP: sweep.list_open,
    places.COMMIT_SWEEP_LOOK: sweep.look,
    places.COMMIT_SWEEP_FENCE: sweep.fence,
    places.COMMITTED: job.committed,
    places.ABORT_LOOK: aborting.look,
    places.ABORT_FENCE: aborting.fence,
    places.ABORT_READ: aborting.read,
    places.ABORT_TASKS: aborting.abort_tasks,
    places.ABORT_SWEEP: sweep.list_open,
    places.ABORT_SWEEP_LOOK: sweep.look,
    places.ABORT_SWEEP_FENCE: sweep.fence,
}


def steps(case: Case, state: State, number: int) -> Transitions:
    """What a driver may do next."""
    step = _STEPS.get(state.drivers[number].at)
    if step is not None:
        yield from step(Turn(case, state, number))
