"""The cases to check, and the case that detects each mutation.

Tests, the command line and docs/sink-model.md use the same list. Invariant: every mutation is in
exactly one of two tables. `FOUND_BY` names a case that detects the mutation. `UNDETECTABLE`
explains why no case can detect the mutation, and names the test that covers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from integration.sink_model import mutations
from integration.sink_model.case import (
    ABORT_IS_NOT_REJECTED,
    BATCHES_RISE,
    DECIDED_STAYS,
    FINISHES,
    NEWER_OWNER_STAYS,
    NO_DECISION_GONE,
    NO_ROW_MISSING,
    NO_ROW_TWICE,
    NOTHING_OPEN,
    NOTHING_OPEN_AFTER_SWEEP,
    OFFSETS_WITH_DECISION,
    Case,
)
from integration.sink_model.state import Faults

SMALL: Final = (
    Case(name="one-batch", batches=1),
    Case(name="one-batch-of-two-queries", batches=1, queries=(0, 1)),
    Case(name="one-batch-failing", batches=1, faults=Faults(failures=1)),
    Case(name="one-batch-timing-out", batches=1, faults=Faults(timeouts=1)),
    Case(name="one-batch-with-a-lost-answer", batches=1, faults=Faults(lost_responses=1)),
    Case(name="one-batch-expiring", batches=1, faults=Faults(expiries=1, timeouts=1)),
    Case(name="one-batch-in-halves", batches=1, halves=True),
    Case(name="one-batch-with-slow-markers", batches=1, slow_markers=True),
    Case(name="one-batch-half-empty", batches=1, empty=(1, 0)),
    Case(name="one-batch-without-rows", batches=1, empty=(1, 1)),
    Case(name="one-batch-beside-a-stranger", batches=1, faults=Faults(strangers=1)),
    Case(name="one-batch-version-1", batches=1, version=1, faults=Faults(timeouts=1)),
    Case(
        name="one-batch-version-1-with-a-lost-answer",
        batches=1,
        version=1,
        faults=Faults(lost_responses=1),
    ),
    Case(name="one-batch-with-late-attempts", batches=1, queries=(0,), faults=Faults(attempts=1)),
    Case(
        name="one-batch-version-1-with-late-attempts",
        batches=1,
        version=1,
        queries=(0,),
        faults=Faults(attempts=1),
    ),
    Case(name="two-batches", batches=2),
    Case(
        name="one-task-in-halves",
        batches=2,
        ids_wrap=True,
        halves=True,
        empty=(0,),
        faults=Faults(attempts=1),
    ),
    Case(
        name="one-task-with-same-ids",
        batches=2,
        ids_wrap=True,
        same_ids=True,
        empty=(0,),
        faults=Faults(attempts=1),
    ),
    Case(
        name="one-task-reusing-unfinished-ids",
        batches=2,
        version=1,
        ids_wrap=True,
        reuses_unfinished_ids=True,
        empty=(0,),
        faults=Faults(failures=1, lost_responses=2),
    ),
    Case(
        name="one-task-version-1",
        batches=2,
        version=1,
        ids_wrap=True,
        empty=(0,),
        faults=Faults(attempts=1, failures=1),
    ),
)
"""Cases that take seconds to explore. `make test` explores all but the largest."""

FULL: Final = (
    Case(name="three-batches", faults=Faults(timeouts=1, lost_responses=1)),
    Case(name="three-batches-version-1", version=1, faults=Faults(timeouts=1, lost_responses=1)),
    Case(name="three-batches-failing", faults=Faults(timeouts=1, failures=1)),
    Case(
        name="slow-decisions",
        batches=2,
        slow_decisions=True,
        faults=Faults(timeouts=1, lost_responses=1),
    ),
    Case(
        name="expiring-ids",
        batches=2,
        ids_wrap=True,
        faults=Faults(expiries=1, lost_responses=1),
    ),
    Case(
        name="slow-markers",
        batches=2,
        slow_markers=True,
        slow_decisions=True,
        faults=Faults(timeouts=1),
    ),
    Case(
        name="wrapped-ids",
        batches=2,
        ids_wrap=True,
        faults=Faults(timeouts=1, lost_responses=1),
    ),
    Case(
        name="wrapped-ids-version-1",
        batches=2,
        version=1,
        ids_wrap=True,
        faults=Faults(timeouts=1, lost_responses=1),
    ),
    Case(
        name="wrapped-ids-of-two-queries",
        batches=2,
        queries=(0, 1),
        ids_wrap=True,
        faults=Faults(timeouts=1, lost_responses=1),
    ),
    Case(name="late-inits", batches=2, late_inits=True, faults=Faults(lost_responses=1)),
    Case(
        name="late-inits-version-1",
        batches=2,
        version=1,
        late_inits=True,
        faults=Faults(lost_responses=1),
    ),
    Case(name="speculation", batches=2, faults=Faults(attempts=1)),
)
"""Cases that only `make test-all` explores."""

ALL: Final[Mapping[str, Case]] = {case.name: case for case in SMALL + FULL}


class Found(NamedTuple):
    """The case that detects a mutation, and the invariant that is violated."""

    case: str
    violates: str


FOUND_BY: Final[Mapping[str, Found]] = {
    mutations.SKIP_THE_FENCE: Found("one-batch", NOTHING_OPEN_AFTER_SWEEP),
    mutations.DECIDE_TWICE: Found("one-batch-with-a-lost-answer", BATCHES_RISE),
    mutations.COMMIT_BEFORE_PREPARE: Found("one-batch-in-halves", NO_ROW_MISSING),
    mutations.ROLL_FORWARD_BEFORE_DECIDING: Found("one-batch", NO_ROW_TWICE),
    mutations.FORGET_ROLL_FORWARD: Found("one-batch", DECIDED_STAYS),
    mutations.TRUST_A_STALE_DECISION: Found("one-batch", DECIDED_STAYS),
    mutations.OFFSETS_OUTSIDE_THE_TRANSACTION: Found("one-batch", OFFSETS_WITH_DECISION),
    mutations.SWALLOW_A_LOST_TASK: Found("one-batch-timing-out", NO_ROW_MISSING),
    mutations.IGNORE_THE_QUERY_ID: Found("one-batch-of-two-queries", FINISHES),
    mutations.ABORT_WHAT_WAS_DECIDED: Found("one-batch-with-a-lost-answer", DECIDED_STAYS),
    mutations.SWEEP_WITHOUT_LOOKING: Found("one-batch", DECIDED_STAYS),
    mutations.LATE_MARK_HIDES_A_NEWER_DECISION: Found("two-batches", DECIDED_STAYS),
    mutations.READ_TO_THE_LAST_STABLE_OFFSET: Found(
        "one-batch-beside-a-stranger", NO_DECISION_GONE
    ),
    mutations.REWRITE_AN_OLDER_BATCH: Found("two-batches", BATCHES_RISE),
    mutations.AMBIGUOUS_END_IS_SUCCESS: Found("one-batch-timing-out", NO_ROW_MISSING),
    mutations.AMBIGUOUS_DECISION_IS_SUCCESS: Found("one-batch", NO_DECISION_GONE),
    mutations.DECIDE_UNDER_A_NEW_EPOCH: Found("one-batch", DECIDED_STAYS),
    mutations.SWEEP_BY_END_TXN_V4: Found("one-task-in-halves", NOTHING_OPEN_AFTER_SWEEP),
    mutations.SWEEP_BY_INIT: Found("one-task-in-halves", DECIDED_STAYS),
    mutations.SWEEP_ONLY_OPEN: Found("one-batch-with-late-attempts", NOTHING_OPEN_AFTER_SWEEP),
    mutations.MARK_DESPITE_LOST_TASKS: Found("one-batch-timing-out", NO_ROW_MISSING),
    mutations.WRITE_A_DECIDED_BATCH_AGAIN: Found("one-batch", BATCHES_RISE),
    mutations.ABORT_UNDER_ANY_EPOCH: Found("one-batch-failing", NEWER_OWNER_STAYS),
    mutations.TRUST_THE_NEXT_EPOCH: Found("one-task-reusing-unfinished-ids", FINISHES),
    mutations.LOOK_BEFORE_LISTING: Found("one-batch", DECIDED_STAYS),
    mutations.MARK_BEFORE_ROLLING_FORWARD: Found("one-batch", NO_ROW_MISSING),
    mutations.SWEEP_NOTHING_WHEN_PLANNING: Found("one-batch", NOTHING_OPEN),
    mutations.ABORT_WITHOUT_FENCING: Found("one-batch-with-a-lost-answer", DECIDED_STAYS),
    mutations.ABORT_WITH_AN_OPEN_DECISION: Found(
        "one-batch-version-1-with-a-lost-answer", ABORT_IS_NOT_REJECTED
    ),
    mutations.SPARE_DECIDED_IDS: Found("one-task-with-same-ids", NOTHING_OPEN_AFTER_SWEEP),
    mutations.START_WITHOUT_LOOKING: Found(
        "one-batch-with-late-attempts", NOTHING_OPEN_AFTER_SWEEP
    ),
    mutations.START_DESPITE_A_DECISION: Found(
        "one-batch-version-1-with-late-attempts", NOTHING_OPEN_AFTER_SWEEP
    ),
    mutations.LOOK_BEFORE_INIT: Found("one-batch-with-late-attempts", NOTHING_OPEN_AFTER_SWEEP),
}

UNDETECTABLE: Final[Mapping[str, tuple[str, str]]] = {
    mutations.SKIP_THE_VERIFICATION: (
        "roll-forward detects an aborted transaction, and its rows are written again",
        "test_commit.py::test_transaction_that_has_ended",
    ),
    mutations.OVERTAKE_LOST_TASKS: (
        "Spark does not continue after a batch with lost rows unless the checkpoint is changed",
        "test_task.py::test_batch_after_lost_rows_is_refused",
    ),
    mutations.ABORT_WITHOUT_LOOKING: (
        "only an undecided batch of the newer owner fails, which the protocol allows",
        "test_abort.py::test_abort_leaves_a_newer_owner_alone",
    ),
    mutations.SWEEP_ALL_GENERATIONS: (
        "the owner check of the sweep prevents it",
        "test_commit.py::test_attempts_of_other_batches_are_not_swept",
    ),
    mutations.REUSE_UNFINISHED_IDS: (
        "the outcome of a decision can still be determined when its ids are in use again",
        "test_names.py::test_generation_skips_unfinished_decisions",
    ),
}
"""The mutations that no case can detect, with the reason and the test of the code that covers it.
"""
