"""The values of a driver's program counter (PlusCal calls them labels), and their titles.

Labels are numbers to keep the states compact. Invariant: each title is the title of a `Step`,
except the titles of two actions of Spark. Some steps have several labels.
"""

from __future__ import annotations

from typing import Final

from pyspark_kafka.sink.exactly_once.steps import Step

DEAD: Final = 0
FINISHED: Final = 1
PLAN_FENCE: Final = 2
PLAN_READ: Final = 3
PLAN_ROLL_FORWARD: Final = 4
PLAN_MARK: Final = 5
PLAN_SWEEP: Final = 6
PLAN_SWEEP_LOOK: Final = 7
PLAN_SWEEP_FENCE: Final = 8
TASKS: Final = 9
COMMIT_DECIDE: Final = 10
COMMIT_DECIDE_END: Final = 11
COMMIT_ROLL_FORWARD: Final = 12
COMMIT_MARK: Final = 13
COMMIT_SWEEP: Final = 14
COMMIT_SWEEP_LOOK: Final = 15
COMMIT_SWEEP_FENCE: Final = 16
COMMITTED: Final = 17
ABORT_LOOK: Final = 18
ABORT_LOOK_END: Final = 19
ABORT_FENCE: Final = 20
ABORT_READ: Final = 21
ABORT_SWEEP: Final = 22
ABORT_SWEEP_LOOK: Final = 23
ABORT_SWEEP_FENCE: Final = 24
COMMIT_COMPARE: Final = 25
COMMIT_COMPARE_ROLL: Final = 26
COMMIT_COMPARE_MARK: Final = 27

TITLES: Final = {
    PLAN_FENCE: Step.PLAN_FENCE.title,
    PLAN_READ: Step.PLAN_READ.title,
    PLAN_ROLL_FORWARD: Step.PLAN_ROLL_FORWARD.title,
    PLAN_MARK: Step.PLAN_MARK.title,
    PLAN_SWEEP: Step.PLAN_SWEEP.title,
    PLAN_SWEEP_LOOK: Step.PLAN_SWEEP.title,
    PLAN_SWEEP_FENCE: Step.PLAN_SWEEP.title,
    TASKS: "the job",
    COMMIT_COMPARE: Step.COMMIT_COMPARE.title,
    COMMIT_COMPARE_ROLL: Step.COMMIT_COMPARE.title,
    COMMIT_COMPARE_MARK: Step.COMMIT_MARK.title,
    COMMIT_DECIDE: Step.COMMIT_DECIDE.title,
    COMMIT_DECIDE_END: Step.COMMIT_DECIDE.title,
    COMMIT_ROLL_FORWARD: Step.COMMIT_ROLL_FORWARD.title,
    COMMIT_MARK: Step.COMMIT_MARK.title,
    COMMIT_SWEEP: Step.COMMIT_SWEEP.title,
    COMMIT_SWEEP_LOOK: Step.COMMIT_SWEEP.title,
    COMMIT_SWEEP_FENCE: Step.COMMIT_SWEEP.title,
    COMMITTED: "Spark",
    ABORT_LOOK: Step.ABORT_LOOK.title,
    ABORT_LOOK_END: Step.ABORT_LOOK.title,
    ABORT_FENCE: Step.ABORT_FENCE.title,
    ABORT_READ: Step.ABORT_READ.title,
    ABORT_SWEEP: Step.ABORT_SWEEP.title,
    ABORT_SWEEP_LOOK: Step.ABORT_SWEEP.title,
    ABORT_SWEEP_FENCE: Step.ABORT_SWEEP.title,
}
