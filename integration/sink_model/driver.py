"""A driver process, which plans, runs, and commits or aborts successive batches.

Maps each value of the program counter to its action. Invariant: one action is one request that
reaches its broker, together with its response. A killed driver is a driver that takes no further
actions, and a stalled driver acts later, so the model needs no actions for kills and stalls.

Usually, a request receives a response. If `Faults.lost_responses` is positive, the response
can be lost, and the request or a copy of it can be delayed. A sweep has three labels, because it
lists the transactions, checks the owner, and fences the transactional ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from integration.sink_model import aborting, deciding, job, labels, planning, sweep
from integration.sink_model.case import Case
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.state import State

_STEPS: Final[dict[int, Callable[[DriverAction], Transitions]]] = {
    labels.PLAN_FENCE: planning.fence,
    labels.PLAN_READ: planning.read,
    labels.PLAN_ROLL_FORWARD: planning.roll_forward,
    labels.PLAN_MARK: planning.mark,
    labels.PLAN_SWEEP: sweep.list_open,
    labels.PLAN_SWEEP_LOOK: sweep.look,
    labels.PLAN_SWEEP_FENCE: sweep.fence,
    labels.TASKS: job.job,
    labels.COMMIT_COMPARE: deciding.compare,
    labels.COMMIT_COMPARE_ROLL: deciding.roll_forward,
    labels.COMMIT_COMPARE_MARK: deciding.mark,
    labels.COMMIT_DECIDE: deciding.decide,
    labels.COMMIT_DECIDE_END: deciding.end,
    labels.COMMIT_ROLL_FORWARD: deciding.roll_forward,
    labels.COMMIT_MARK: deciding.mark,
    labels.COMMIT_SWEEP: sweep.list_open,
    labels.COMMIT_SWEEP_LOOK: sweep.look,
    labels.COMMIT_SWEEP_FENCE: sweep.fence,
    labels.COMMITTED: job.committed,
    labels.ABORT_LOOK: aborting.look,
    labels.ABORT_LOOK_END: aborting.end_decision,
    labels.ABORT_FENCE: aborting.fence,
    labels.ABORT_READ: aborting.read,
    labels.ABORT_SWEEP: sweep.list_open,
    labels.ABORT_SWEEP_LOOK: sweep.look,
    labels.ABORT_SWEEP_FENCE: sweep.fence,
}


def steps(case: Case, state: State, number: int) -> Transitions:
    """Yield the enabled actions of a driver."""
    step = _STEPS.get(state.drivers[number].pc)
    if step is not None:
        yield from step(DriverAction(case, state, number))
