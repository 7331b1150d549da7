"""The names of deliberate errors in the protocol.

The checker must detect each error, except the errors in `cases.UNDETECTABLE`. Invariant: a case has
at most one mutation.
"""

from __future__ import annotations

from typing import Final

SKIP_THE_FENCE: Final = "skip-the-fence"
DECIDE_TWICE: Final = "decide-twice"
COMMIT_BEFORE_PREPARE: Final = "commit-before-prepare"
ROLL_FORWARD_BEFORE_DECIDING: Final = "roll-forward-before-deciding"
FORGET_ROLL_FORWARD: Final = "skip-roll-forward"
REUSE_UNFINISHED_IDS: Final = "reuse-unfinished-ids"
TRUST_A_STALE_DECISION: Final = "trust-a-stale-decision"
OFFSETS_OUTSIDE_THE_TRANSACTION: Final = "offsets-outside-the-transaction"
SWALLOW_A_LOST_TASK: Final = "ignore-a-lost-task"
IGNORE_THE_QUERY_ID: Final = "ignore-the-query-id"
ABORT_WHAT_WAS_DECIDED: Final = "abort-what-was-decided"
SWEEP_WITHOUT_LOOKING: Final = "sweep-without-owner-check"
LATE_MARK_HIDES_A_NEWER_DECISION: Final = "late-mark-hides-a-newer-decision"
READ_TO_THE_LAST_STABLE_OFFSET: Final = "read-to-the-last-stable-offset"
REWRITE_AN_OLDER_BATCH: Final = "rewrite-an-older-batch"
AMBIGUOUS_END_IS_SUCCESS: Final = "ambiguous-end-is-success"
AMBIGUOUS_DECISION_IS_SUCCESS: Final = "ambiguous-decision-is-success"
DECIDE_UNDER_A_NEW_EPOCH: Final = "decide-under-a-new-epoch"
SWEEP_BY_END_TXN_V4: Final = "sweep-by-end-txn-v4"
MARK_DESPITE_LOST_TASKS: Final = "mark-despite-lost-tasks"
SKIP_THE_VERIFICATION: Final = "skip-the-verification"
OVERTAKE_LOST_TASKS: Final = "overtake-lost-tasks"
WRITE_A_DECIDED_BATCH_AGAIN: Final = "write-a-decided-batch-again"
ABORT_UNDER_ANY_EPOCH: Final = "abort-under-any-epoch"
ABORT_WITHOUT_LOOKING: Final = "abort-without-owner-check"
TRUST_THE_NEXT_EPOCH: Final = "trust-the-next-epoch"
MARK_BEFORE_ROLLING_FORWARD: Final = "mark-before-rolling-forward"
SWEEP_NOTHING_WHEN_PLANNING: Final = "sweep-nothing-when-planning"
ABORT_WITHOUT_FENCING: Final = "abort-without-fencing"
SWEEP_ALL_GENERATIONS: Final = "sweep-all-generations-after-deciding"
LOOK_BEFORE_LISTING: Final = "check-owner-before-listing"
SWEEP_ONLY_OPEN: Final = "sweep-only-open-transactions"
SWEEP_BY_INIT: Final = "sweep-by-init-producer-id"
START_WITHOUT_LOOKING: Final = "start-without-owner-check"
START_DESPITE_A_DECISION: Final = "start-despite-a-decision"
LOOK_BEFORE_INIT: Final = "check-owner-before-init"
SPARE_DECIDED_IDS: Final = "spare-decided-ids"
ABORT_WITH_AN_OPEN_DECISION: Final = "abort-with-an-open-decision"
