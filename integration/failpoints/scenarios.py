"""The scenarios in which failpoints are reached: a table.

Purpose: declare what is written, which faults every case of a scenario injects first, and which
processes are then killed at each of their failpoints. Invariant: failpoints are not listed here; a
recorded run lists them. What it must not know: how a case is run.

Faults are injected into batch 1 of 0 to 2: a decision precedes it, and a batch follows.
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
    """How a process fails at a failpoint, and what fails with it."""

    ALONE = "killed"
    """The process is killed; Spark's driver aborts the batch."""

    RETRIED = "killed, retried"
    """The process of a task is killed; Spark starts another attempt."""

    WITH_DRIVER = "killed with the driver"
    FAILS = "fails"
    """The process raises an error, as if a connection broke."""


class Loss(Enum):
    """How brokers abort prepared transactions."""

    FENCED = "another producer fences the transactional id of task 0"
    TIMED_OUT = "all transactions time out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A process of the batch that is killed at each of its failpoints, in these ways.

    `prefix` restricts the failpoints by name.
    """

    kind: ProcessKind
    modes: tuple[FailureMode, ...]
    prefix: str = ""
    driver_run: int = 0
    batch: int = BATCH
    partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """A fault that every case of a scenario injects into batch 1 of the first driver run.

    With `meanwhile` the process is stalled, transactions are lost, and the process continues.
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
    """One situation. `fails` are tasks of the first run's batch whose rows fail in the middle.

    `loss_between_runs` happens before the second driver run. With `short_transactions` the
    transactions of the first run's batch time out after seconds; such scenarios are slow.
    `is_refused`: the commit detects the loss before its decision, so no decided rows are lost.
    `failures` is how many driver runs may fail although nothing was killed in them.
    """

    name: str
    title: str
    targets: tuple[Target, ...]
    preconditions: tuple[Precondition, ...] = ()
    fails: frozenset[int] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)
    is_streaming: bool = True
    commits_offsets: bool = False
    fresh_commit_topic: bool = False
    loss_between_runs: Loss | None = None
    short_transactions: bool = False
    is_refused: bool = False
    failures: int = 0


_EVERY_MODE: Final = (FailureMode.ALONE, FailureMode.WITH_DRIVER, FailureMode.FAILS)
_DECIDED: Final = Precondition(kind=ProcessKind.COMMIT, failpoint="commit.decide.after")

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
        title="the first batch; the commit topic does not exist yet",
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
        title="a task fails in the middle of its rows; Spark aborts the batch",
        fails=frozenset({1}),
        failures=1,
        targets=(
            Target(kind=ProcessKind.TASK, partition=1, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.ABORT, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="abort-undecided",
        title="the commit dies while it writes its decision; Spark aborts the batch",
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
        title="the commit dies after its decision; Spark aborts the batch nevertheless",
        preconditions=(
            Precondition(
                kind=ProcessKind.COMMIT, failpoint="commit.decide.after", kills_driver=False
            ),
        ),
        targets=(Target(kind=ProcessKind.ABORT, modes=(FailureMode.WITH_DRIVER,)),),
    ),
    Scenario(
        name="decided-before",
        title="the driver died after the decision; its successor rolls the batch forward",
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
        title="the driver died before the decision; its successor sweeps",
        preconditions=(Precondition(kind=ProcessKind.COMMIT, failpoint="commit.decide.before"),),
        targets=(
            Target(kind=ProcessKind.PLANNING, driver_run=1, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.COMMIT, driver_run=1, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="lost-before",
        title="a task's rows are lost after the decision and written again",
        preconditions=(_DECIDED,),
        loss_between_runs=Loss.FENCED,
        targets=(
            Target(kind=ProcessKind.PLANNING, driver_run=1, modes=(FailureMode.WITH_DRIVER,)),
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
        title="a task's rows are lost between the decision and its roll-forward",
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
        name="two-phase",
        title="a micro-batch with `twoPhaseCommit` after a driver that died before its decision",
        options={"twoPhaseCommit": "true"},
        preconditions=(Precondition(kind=ProcessKind.COMMIT, failpoint="commit.decide.before"),),
        targets=(
            Target(kind=ProcessKind.PLANNING, driver_run=1, modes=(FailureMode.WITH_DRIVER,)),
            Target(kind=ProcessKind.TASK, driver_run=1, modes=(FailureMode.WITH_DRIVER,)),
        ),
    ),
)

SLOW_SCENARIOS: Final = (
    Scenario(
        name="timed-out-before",
        title="the driver died after the decision; then all transactions time out",
        preconditions=(_DECIDED,),
        short_transactions=True,
        loss_between_runs=Loss.TIMED_OUT,
        targets=(
            Target(
                kind=ProcessKind.PLANNING,
                driver_run=1,
                modes=(FailureMode.WITH_DRIVER,),
                prefix="plan.roll_forward",
            ),
        ),
    ),
    Scenario(
        name="timed-out-unverified",
        title="all transactions time out before the commit verifies them; it refuses",
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
        title="all transactions time out after the commit has verified them; it refuses",
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
"""Scenarios that wait for a timeout of seconds."""

VERSION_DEPENDENT: Final = frozenset(
    {"micro-batch", "failing-task", "decided-before", "lost-before", "lost-in-commit"}
)
"""Scenarios that depend on whether EndTxn bumps the producer epoch (`transaction.version` 2)."""
