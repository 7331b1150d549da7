"""The table of scenarios in which failpoints are reached.

A scenario declares the rows to write, its preconditions and its targets. Preconditions are faults
that every case of the scenario injects first. Targets are the processes to kill at each of their
failpoints. Invariant: this table does not list failpoints; recorded runs determine them.

A run writes batches 0 to 2, and the faults are injected into batch 1. Therefore, one decision
precedes the faults, and one batch follows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from integration.failpoints.driver import ProcessKind
from integration.failpoints.hook import Action

BATCH: Final = 1
BATCHES: Final = 3


class FailureMode(Enum):
    """How a process fails at a failpoint, and whether the driver fails with it."""

    ALONE = "killed"
    """The process is killed, and Spark's driver aborts the batch."""

    RETRIED = "killed, retried"
    """The process of a task is killed, and Spark starts another attempt."""

    WITH_DRIVER = "killed with the driver"
    FAILS = "fails"
    """The process raises an error like the error for a broken connection."""


class Loss(Enum):
    """How brokers abort prepared transactions."""

    FENCED = "another producer fences the transactional id of task 0"
    TIMED_OUT = "all transactions time out"


class Wake(Enum):
    """The time at which a stalled process resumes.

    The process resumes after its successor has completed the batch, or while the commit of a later
    batch is stalled.
    """

    AFTERWARDS = "afterwards"
    BEFORE_VERIFICATION = "commit.verify.before"
    BEFORE_DECISION = "commit.verify.after"
    AFTER_DECISION = "commit.decide.after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A process that test cases kill or stall at its failpoints.

    `modes` contains the failure modes to test. `kills` and `stalls` contain the prefixes of the
    failpoints at which the process is killed or stalled.
    """

    kind: ProcessKind
    modes: tuple[FailureMode, ...] = ()
    kills: tuple[str, ...] = ("",)
    stalls: tuple[str, ...] = ("",)
    driver_run: int = 0
    batch: int = BATCH
    partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """A fault that each case of a scenario injects into batch 1 of the first driver run.

    With `meanwhile`, the process is stalled instead of killed. Brokers abort prepared transactions
    before the process continues.
    """

    kind: ProcessKind
    failpoint: str
    kills_driver: bool = True
    meanwhile: Loss | None = None

    @property
    def action(self) -> Action:
        return Action.KILL if self.meanwhile is None else Action.STALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A situation in which processes are killed.

    `tasks` is the number of tasks per batch. `empty_tasks` contains the tasks without rows. In
    batch 1 of the first driver run, the tasks in `fails` fail after they have written some of their
    rows. If `loss_between_runs` is set, brokers abort prepared transactions before the second
    driver run. With `short_transactions`, the transactions of batch 1 in the first driver run time
    out after a few seconds, so these scenarios are slow. With `is_refused`, the commit detects the
    aborted transactions before it writes the decision, so no decided rows are lost. `failures` is
    the number of driver runs that may fail without an injected kill. With `wraps`, a stalled
    process resumes when a later batch reuses the transactional ids of the stalled batch.
    """

    name: str
    title: str
    targets: tuple[Target, ...]
    preconditions: tuple[Precondition, ...] = ()
    tasks: int = 2
    empty_tasks: frozenset[int] = frozenset()
    fails: frozenset[int] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)
    is_streaming: bool = True
    commits_offsets: bool = False
    fresh_commit_topic: bool = False
    loss_between_runs: Loss | None = None
    short_transactions: bool = False
    is_refused: bool = False
    failures: int = 0
    wraps: bool = False

    @property
    def wakes(self) -> tuple[Wake, ...]:
        """Return the points at which the stalled processes of this scenario wake."""
        if self.wraps:
            return (Wake.BEFORE_VERIFICATION, Wake.AFTER_DECISION)
        return (Wake.AFTERWARDS, Wake.BEFORE_DECISION)


def _fencing(sweep: str) -> tuple[str, ...]:
    """Return the failpoints after which a sweep checks the owner or fences an id."""
    requests = ("describe_transactions.after", "end_transactions.before")
    return tuple(f"{sweep}.{each}" for each in (*requests, "init_producer_ids.before"))


_EVERY_MODE: Final = (FailureMode.ALONE, FailureMode.WITH_DRIVER, FailureMode.FAILS)
_DECIDED: Final = Precondition(kind=ProcessKind.COMMIT, failpoint="commit.decide.after")
_PREPARED: Final = Precondition(kind=ProcessKind.COMMIT, failpoint="commit.decide.before")

SCENARIOS: Final = (
    Scenario(
        name="micro-batch",
        title="a micro-batch without failures",
        targets=(
            Target(kind=ProcessKind.PLANNING, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.TASK, modes=(*_EVERY_MODE, FailureMode.RETRIED)),
            Target(kind=ProcessKind.COMMIT, modes=_EVERY_MODE),
        ),
    ),
    Scenario(
        name="first-start",
        title="the first batch, before the commit topic exists",
        fresh_commit_topic=True,
        targets=(
            Target(kind=ProcessKind.PLANNING, batch=0, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.COMMIT, batch=0, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="offsets",
        title="a micro-batch that commits its source offsets",
        commits_offsets=True,
        targets=(
            Target(kind=ProcessKind.COMMIT, modes=(FailureMode.ALONE, FailureMode.WITH_DRIVER)),
        ),
    ),
    Scenario(
        name="failing-task",
        title="a task fails after it has written some of its rows, and Spark aborts the batch",
        fails=frozenset({1}),
        failures=1,
        targets=(
            Target(kind=ProcessKind.TASK, partition=1, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.ABORT, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="abort-undecided",
        title="the commit is killed while it writes its decision, and Spark aborts the batch",
        preconditions=(
            Precondition(
                kind=ProcessKind.COMMIT, failpoint="commit.decide.flush.after", kills_driver=False
            ),
        ),
        targets=(
            Target(kind=ProcessKind.ABORT, modes=(FailureMode.WITH_DRIVER, FailureMode.FAILS)),
        ),
    ),
    Scenario(
        name="abort-decided",
        title="the commit is killed after its decision, but Spark aborts the batch",
        preconditions=(
            Precondition(
                kind=ProcessKind.COMMIT, failpoint="commit.decide.after", kills_driver=False
            ),
        ),
        targets=(Target(kind=ProcessKind.ABORT, modes=(FailureMode.WITH_DRIVER,)),),
    ),
    Scenario(
        name="decided-before",
        title="the driver was killed after the decision, and the next driver rolls it forward",
        preconditions=(_DECIDED,),
        targets=(
            Target(kind=ProcessKind.PLANNING, driver_run=1, modes=(FailureMode.WITH_DRIVER,)),
            Target(
                kind=ProcessKind.TASK,
                driver_run=1,
                modes=(FailureMode.ALONE, FailureMode.WITH_DRIVER),
            ),
            Target(
                kind=ProcessKind.COMMIT,
                driver_run=1,
                modes=(FailureMode.ALONE, FailureMode.WITH_DRIVER),
            ),
        ),
    ),
    Scenario(
        name="prepared-before",
        title="the driver was killed before the decision, and the next driver sweeps",
        preconditions=(_PREPARED,),
        targets=(
            Target(
                kind=ProcessKind.PLANNING,
                driver_run=1,
                modes=(FailureMode.WITH_DRIVER,),
                stalls=("plan.sweep",),
            ),
            Target(
                kind=ProcessKind.COMMIT,
                driver_run=1,
                modes=(FailureMode.WITH_DRIVER,),
                stalls=(),
            ),
        ),
    ),
    Scenario(
        name="lost-before",
        title="the rows of a task are lost after the decision and are written again",
        preconditions=(_DECIDED,),
        loss_between_runs=Loss.FENCED,
        targets=(
            Target(
                kind=ProcessKind.PLANNING,
                driver_run=1,
                modes=(FailureMode.WITH_DRIVER,),
                stalls=(),
            ),
            Target(kind=ProcessKind.TASK, driver_run=1, modes=_EVERY_MODE),
            Target(
                kind=ProcessKind.COMMIT,
                driver_run=1,
                modes=(FailureMode.ALONE, FailureMode.WITH_DRIVER),
            ),
        ),
    ),
    Scenario(
        name="lost-in-commit",
        title="the rows of a task are lost between the decision and the roll-forward",
        preconditions=(
            Precondition(
                kind=ProcessKind.COMMIT,
                failpoint="commit.decide.after",
                kills_driver=False,
                meanwhile=Loss.FENCED,
            ),
        ),
        failures=1,
        targets=(
            Target(kind=ProcessKind.COMMIT, modes=(FailureMode.ALONE, FailureMode.WITH_DRIVER)),
            Target(kind=ProcessKind.ABORT, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="batch-job",
        title="a batch job with `batchId`",
        is_streaming=False,
        targets=(
            Target(kind=ProcessKind.PLANNING, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.TASK, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.COMMIT, modes=(FailureMode.ALONE, FailureMode.WITH_DRIVER)),
        ),
    ),
    Scenario(
        name="many-tasks",
        title="a micro-batch with five tasks, one of which has no rows",
        tasks=5,
        empty_tasks=frozenset({2}),
        targets=(
            Target(
                kind=ProcessKind.TASK,
                partition=3,
                modes=(FailureMode.WITH_DRIVER, FailureMode.RETRIED),
                stalls=(),
            ),
            Target(kind=ProcessKind.COMMIT, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="many-tasks-lost",
        title="the rows of one of five tasks are lost after the decision and are written again",
        tasks=5,
        empty_tasks=frozenset({2}),
        preconditions=(_DECIDED,),
        loss_between_runs=Loss.FENCED,
        targets=(
            Target(
                kind=ProcessKind.COMMIT,
                driver_run=1,
                modes=(FailureMode.WITH_DRIVER,),
                stalls=(),
            ),
        ),
    ),
)

SLOW_SCENARIOS: Final = (
    Scenario(
        name="timed-out-before",
        title="the driver was killed after the decision, and then all transactions time out",
        preconditions=(_DECIDED,),
        short_transactions=True,
        loss_between_runs=Loss.TIMED_OUT,
        targets=(
            Target(
                kind=ProcessKind.PLANNING,
                driver_run=1,
                modes=(FailureMode.WITH_DRIVER,),
                kills=("plan.roll_forward",),
                stalls=(),
            ),
        ),
    ),
    Scenario(
        name="timed-out-unverified",
        title="all transactions time out before the commit verifies them, so the commit fails",
        preconditions=(
            Precondition(
                kind=ProcessKind.COMMIT,
                failpoint="commit.verify.before",
                kills_driver=False,
                meanwhile=Loss.TIMED_OUT,
            ),
        ),
        short_transactions=True,
        is_refused=True,
        failures=1,
        targets=(),
    ),
    Scenario(
        name="timed-out-undecided",
        title="all transactions time out after the commit verified them, so the commit fails",
        preconditions=(
            Precondition(
                kind=ProcessKind.COMMIT,
                failpoint="commit.decide.before",
                kills_driver=False,
                meanwhile=Loss.TIMED_OUT,
            ),
        ),
        short_transactions=True,
        is_refused=True,
        failures=1,
        targets=(),
    ),
)
"""Scenarios that wait a few seconds for a timeout."""

WRAPPING_SCENARIOS: Final = (
    Scenario(
        name="wrapped-task",
        title="a task stalls around its InitProducerId until its id is in use again",
        wraps=True,
        targets=(Target(kind=ProcessKind.TASK, stalls=("task.init.init_producer_id",)),),
    ),
    Scenario(
        name="wrapped-sweep",
        title="a planning run stalls in its sweep until the swept ids are in use again",
        wraps=True,
        preconditions=(_PREPARED,),
        targets=(Target(kind=ProcessKind.PLANNING, driver_run=1, stalls=_fencing("plan.sweep")),),
    ),
    Scenario(
        name="wrapped-roll-forward",
        title="a planning run stalls in its roll-forward until the decided ids are in use again",
        wraps=True,
        preconditions=(_DECIDED,),
        targets=(
            Target(
                kind=ProcessKind.PLANNING,
                driver_run=1,
                stalls=("plan.roll_forward.end_transactions.before",),
            ),
        ),
    ),
    Scenario(
        name="wrapped-abort",
        title="an abort stalls in its sweep until the swept ids are in use again",
        wraps=True,
        fails=frozenset({1}),
        failures=1,
        targets=(Target(kind=ProcessKind.ABORT, stalls=_fencing("abort.sweep")),),
    ),
)
"""Scenarios with 15 to 32 batches. They run only with stalls."""

VERSION_DEPENDENT: Final = frozenset(
    {
        "micro-batch",
        "failing-task",
        "abort-undecided",
        "abort-decided",
        "decided-before",
        "prepared-before",
        "lost-before",
        "lost-in-commit",
        *(scenario.name for scenario in WRAPPING_SCENARIOS),
    }
)
"""Scenarios that depend on whether EndTxn bumps the producer epoch (`transaction.version` 2)."""
