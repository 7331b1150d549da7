"""The situations in which failpoints are met: a table.

Purpose: what is written, what goes wrong before anything is killed, and which processes are then
killed at each of their failpoints. Invariant: which failpoints there are is not said here; a run that
is recorded says it. What it must not know: how a case is run.

Batch 1 of 0 to 2 is the one that things happen to: there is a decision before it, and a batch after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from integration.failpoints.driver import Kind
from integration.failpoints.hook import Action

BATCH: Final = 1
BATCHES: Final = 3


class Death(Enum):
    """How a process ends at a failpoint, and what goes with it."""

    ALONE = "killed"
    """The process: Spark's driver sees that, and aborts the batch."""

    RETRIED = "killed, retried"
    """The process of a task, which gets another attempt."""

    WITH_DRIVER = "killed with the driver"
    FAILS = "fails"
    """It raises an error, as where a connection breaks."""


class Loss(Enum):
    """How prepared transactions are lost."""

    FENCED = "somebody takes the transactional id of task 0"
    TIMED_OUT = "the time of all transactions is over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """Processes of the batch that are killed at each of their failpoints, and in which ways.

    `within` is what the failpoints' names begin with.
    """

    kind: Kind
    deaths: tuple[Death, ...]
    within: str = ""
    life: int = 0
    batch: int = BATCH
    partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Premise:
    """What happens in every case of a scenario, to a process of the first life's batch.

    `meanwhile` is what happens while it is stalled; then it goes on.
    """

    kind: Kind
    failpoint: str
    with_driver: bool = True
    meanwhile: Loss | None = None

    @property
    def action(self) -> Action:
        return Action.KILL if self.meanwhile is None else Action.STALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One situation. `fails` are tasks of the first life's batch whose rows fail in the middle.

    `loss_between_lives` happens before the second life. With `short_transactions` those of the first
    life's batch time out, after seconds: such scenarios are slow.
    `is_refused`: what is lost is noticed before the decision, so that no decided rows are. `failures`
    is how many lives may fail without anything being killed in them.
    """

    name: str
    title: str
    focus: tuple[Focus, ...]
    premises: tuple[Premise, ...] = ()
    fails: frozenset[int] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)
    is_streaming: bool = True
    commits_offsets: bool = False
    fresh_commit_topic: bool = False
    loss_between_lives: Loss | None = None
    short_transactions: bool = False
    is_refused: bool = False
    failures: int = 0


_EVERY_WAY: Final = (Death.ALONE, Death.WITH_DRIVER, Death.FAILS)
_DECIDED: Final = Premise(kind=Kind.COMMIT, failpoint="commit.decide.after")

SCENARIOS: Final = (
    Scenario(
        name="micro-batch",
        title="a micro-batch without trouble",
        focus=(
            Focus(kind=Kind.PLANNING, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.TASK, deaths=(*_EVERY_WAY, Death.RETRIED)),
            Focus(kind=Kind.COMMIT, deaths=_EVERY_WAY),
        ),
    ),
    Scenario(
        name="first-start",
        title="the first batch of all, with a commit topic to be made",
        fresh_commit_topic=True,
        focus=(
            Focus(kind=Kind.PLANNING, batch=0, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.COMMIT, batch=0, deaths=(Death.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="offsets",
        title="a micro-batch that commits its source offsets",
        commits_offsets=True,
        focus=(Focus(kind=Kind.COMMIT, deaths=(Death.ALONE, Death.WITH_DRIVER)),),
    ),
    Scenario(
        name="failing-task",
        title="a task fails in the middle of its rows, and the batch is aborted",
        fails=frozenset({1}),
        failures=1,
        focus=(
            Focus(kind=Kind.TASK, partition=1, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.ABORT, deaths=(Death.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="abort-undecided",
        title="the commit dies while its decision is under way, and the batch is aborted",
        premises=(
            Premise(kind=Kind.COMMIT, failpoint="commit.decide.flush.after", with_driver=False),
        ),
        focus=(Focus(kind=Kind.ABORT, deaths=(Death.WITH_DRIVER, Death.FAILS)),),
    ),
    Scenario(
        name="abort-decided",
        title="the commit dies after it has decided, and Spark aborts the batch all the same",
        premises=(Premise(kind=Kind.COMMIT, failpoint="commit.decide.after", with_driver=False),),
        focus=(Focus(kind=Kind.ABORT, deaths=(Death.WITH_DRIVER,)),),
    ),
    Scenario(
        name="decided-before",
        title="the driver died after it had decided: its successor rolls the batch forward",
        premises=(_DECIDED,),
        focus=(
            Focus(kind=Kind.PLANNING, life=1, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.TASK, life=1, deaths=(Death.ALONE, Death.WITH_DRIVER)),
            Focus(kind=Kind.COMMIT, life=1, deaths=(Death.ALONE, Death.WITH_DRIVER)),
        ),
    ),
    Scenario(
        name="prepared-before",
        title="the driver died before it had decided: its successor sweeps",
        premises=(Premise(kind=Kind.COMMIT, failpoint="commit.decide.before"),),
        focus=(
            Focus(kind=Kind.PLANNING, life=1, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.COMMIT, life=1, deaths=(Death.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="lost-before",
        title="a task's rows are lost after the decision, and written again",
        premises=(_DECIDED,),
        loss_between_lives=Loss.FENCED,
        focus=(
            Focus(kind=Kind.PLANNING, life=1, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.TASK, life=1, deaths=_EVERY_WAY),
            Focus(kind=Kind.COMMIT, life=1, deaths=(Death.ALONE, Death.WITH_DRIVER)),
        ),
    ),
    Scenario(
        name="lost-in-commit",
        title="a task's rows are lost between the decision and its roll-forward",
        premises=(
            Premise(
                kind=Kind.COMMIT,
                failpoint="commit.decide.after",
                with_driver=False,
                meanwhile=Loss.FENCED,
            ),
        ),
        failures=1,
        focus=(
            Focus(kind=Kind.COMMIT, deaths=(Death.ALONE, Death.WITH_DRIVER)),
            Focus(kind=Kind.ABORT, deaths=(Death.WITH_DRIVER,)),
        ),
    ),
    Scenario(
        name="batch-job",
        title="a batch job with `batchId`",
        is_streaming=False,
        focus=(
            Focus(kind=Kind.PLANNING, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.TASK, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.COMMIT, deaths=(Death.ALONE, Death.WITH_DRIVER)),
        ),
    ),
    Scenario(
        name="two-phase",
        title="a micro-batch of two-phase transactions, with a batch of a dead driver before",
        options={"twoPhaseCommit": "true"},
        premises=(Premise(kind=Kind.COMMIT, failpoint="commit.decide.before"),),
        focus=(
            Focus(kind=Kind.PLANNING, life=1, deaths=(Death.WITH_DRIVER,)),
            Focus(kind=Kind.TASK, life=1, deaths=(Death.WITH_DRIVER,)),
        ),
    ),
)

SLOW_SCENARIOS: Final = (
    Scenario(
        name="timed-out-before",
        title="the driver died after it had decided, and all transactions time out meanwhile",
        premises=(_DECIDED,),
        short_transactions=True,
        loss_between_lives=Loss.TIMED_OUT,
        focus=(
            Focus(
                kind=Kind.PLANNING,
                life=1,
                deaths=(Death.WITH_DRIVER,),
                within="plan.roll_forward",
            ),
        ),
    ),
    Scenario(
        name="timed-out-unverified",
        title="all transactions time out before the commit looks at them: it refuses",
        premises=(
            Premise(
                kind=Kind.COMMIT,
                failpoint="commit.verify.before",
                with_driver=False,
                meanwhile=Loss.TIMED_OUT,
            ),
        ),
        short_transactions=True,
        is_refused=True,
        failures=1,
        focus=(),
    ),
    Scenario(
        name="timed-out-undecided",
        title="all transactions time out after the commit has looked at them: it refuses",
        premises=(
            Premise(
                kind=Kind.COMMIT,
                failpoint="commit.decide.before",
                with_driver=False,
                meanwhile=Loss.TIMED_OUT,
            ),
        ),
        short_transactions=True,
        is_refused=True,
        failures=1,
        focus=(),
    ),
)
"""A time of seconds has to pass in each."""

OF_BOTH_VERSIONS: Final = frozenset(
    {"micro-batch", "failing-task", "decided-before", "lost-before", "lost-in-commit"}
)
"""Scenarios for which it makes a difference whether the end of a transaction begins an epoch."""
