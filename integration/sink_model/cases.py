"""The cases that are explored, and which of them finds which mutation.

Purpose: one list for tests, the command and docs/sink-model.md. Invariant: every mutation is either
found by a small case or has the reason why no case can, with the test of the code that does. What it
must not know: the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from integration.sink_model import mutations
from integration.sink_model.case import Case
from integration.sink_model.state import Faults

SMALL: Final = (
    Case(name="one-batch", batches=1),
    Case(name="one-batch-of-two-queries", batches=1, queries=(0, 1)),
    Case(name="one-batch-failing", batches=1, faults=Faults(failures=1)),
    Case(name="one-batch-timing-out", batches=1, faults=Faults(timeouts=1)),
    Case(name="one-batch-with-a-lost-answer", batches=1, faults=Faults(answers=1)),
    Case(name="one-batch-expiring", batches=1, faults=Faults(expiries=1, timeouts=1)),
    Case(name="one-batch-in-halves", batches=1, halves=True),
    Case(name="one-batch-beside-a-stranger", batches=1, faults=Faults(strangers=1)),
    Case(name="one-batch-version-1", batches=1, version=1, faults=Faults(timeouts=1)),
    Case(name="two-batches", batches=2),
    Case(
        name="one-task-in-halves",
        batches=2,
        slots_wrap=True,
        halves=True,
        empty=(0,),
        faults=Faults(attempts=1),
    ),
    Case(
        name="one-task-version-1",
        batches=2,
        version=1,
        slots_wrap=True,
        empty=(0,),
        faults=Faults(attempts=1, failures=1),
    ),
)
"""In `make test`."""

FULL: Final = (
    Case(name="three-batches", faults=Faults(timeouts=1, answers=1)),
    Case(name="three-batches-version-1", version=1, faults=Faults(timeouts=1, answers=1)),
    Case(name="three-batches-failing", faults=Faults(timeouts=1, failures=1)),
    Case(
        name="slow-decisions",
        batches=2,
        slow_decisions=True,
        faults=Faults(timeouts=1, answers=1),
    ),
    Case(
        name="expiring-slots",
        batches=2,
        slots_wrap=True,
        faults=Faults(expiries=1, answers=1),
    ),
    Case(name="wrapped-slots", batches=2, slots_wrap=True, faults=Faults(timeouts=1, answers=1)),
    Case(name="late-inits", batches=2, late_inits=True, faults=Faults(answers=1)),
    Case(name="speculation", batches=2, faults=Faults(attempts=1)),
)
"""Only in `make test-all`."""

ALL: Final[Mapping[str, Case]] = {case.name: case for case in SMALL + FULL}

FOUND_BY: Final[Mapping[str, str]] = {
    mutations.SKIP_THE_FENCE: "one-batch",
    mutations.DECIDE_TWICE: "one-batch-with-a-lost-answer",
    mutations.COMMIT_BEFORE_PREPARE: "one-batch-in-halves",
    mutations.ROLL_FORWARD_BEFORE_DECIDING: "one-batch",
    mutations.FORGET_ROLL_FORWARD: "one-batch",
    mutations.REUSE_IDS_ACROSS_RUNS: "one-batch",
    mutations.TRUST_A_STALE_DECISION: "one-batch",
    mutations.OFFSETS_OUTSIDE_THE_TRANSACTION: "one-batch",
    mutations.SWALLOW_A_LOST_TASK: "one-batch-timing-out",
    mutations.IGNORE_THE_QUERY_ID: "one-batch-of-two-queries",
    mutations.ABORT_WHAT_WAS_DECIDED: "one-batch-with-a-lost-answer",
    mutations.SWEEP_WITHOUT_LOOKING: "one-batch",
    mutations.LATE_MARK_HIDES_A_NEWER_DECISION: "two-batches",
    mutations.READ_TO_THE_LAST_STABLE_OFFSET: "one-batch-beside-a-stranger",
    mutations.REWRITE_AN_OLDER_BATCH: "two-batches",
    mutations.AMBIGUOUS_END_IS_SUCCESS: "one-batch-timing-out",
    mutations.AMBIGUOUS_DECISION_IS_SUCCESS: "one-batch",
    mutations.DECIDE_UNDER_A_NEW_EPOCH: "one-batch",
    mutations.SWEEP_BY_END_TXN: "one-task-in-halves",
    mutations.MARK_DESPITE_LOST_TASKS: "one-batch-timing-out",
    mutations.WRITE_A_DECIDED_BATCH_AGAIN: "one-batch",
    mutations.ABORT_UNDER_ANY_EPOCH: "one-batch-failing",
    mutations.TRUST_THE_NEXT_EPOCH: "one-task-version-1",
    mutations.LOOK_BEFORE_LISTING: "one-batch",
    mutations.MARK_BEFORE_ROLLING_FORWARD: "one-batch",
    mutations.SWEEP_NOTHING_WHEN_PLANNING: "one-batch",
    mutations.ABORT_WITHOUT_FENCING: "one-batch-with-a-lost-answer",
}

UNSEEN: Final[Mapping[str, tuple[str, str]]] = {
    mutations.SKIP_THE_VERIFICATION: (
        "what is decided though it was aborted is found lost by roll-forward, and written again",
        "test_commit.py::test_a_transaction_that_is_over",
    ),
    mutations.OVERTAKE_LOST_TASKS: (
        "Spark's commit log never gets past a batch with lost tasks; only a checkpoint could",
        "test_task.py::test_a_batch_behind_lost_rows_is_refused",
    ),
    mutations.ABORT_WITHOUT_LOOKING: (
        "it costs a newer owner a batch that fails undecided, which the protocol allows",
        "test_abort.py::test_a_newer_owner_is_left_alone",
    ),
    mutations.SWEEP_ALL_RUNS: (
        "the look at who owns X covers it",
        "test_commit.py::test_attempts_of_other_runs_are_not_swept",
    ),
}
"""Why no case can see it, and the test of the code that does."""
