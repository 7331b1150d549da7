"""The state of the model: drivers, tasks, coordinator and commit topic.

Purpose: states as tuples of numbers, which are fast to hash and compare. Invariant: states are
immutable; `canonicalization` maps symmetric states to one form. What it must not know: the actions.

A `Partition` has everything about one Spark partition: the ids of its task attempts at the
coordinator, the attempts, its entries in decisions, and each driver's remaining work. Partitions
can therefore be sorted, and symmetric traces are explored once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

EMPTY: Final = 0
ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
COMPLETE_COMMIT: Final = 4
COMPLETE_ABORT: Final = 5
EXPIRED: Final = 6
"""The states of a transactional id at its coordinator, with Kafka's names."""

STATUS_NAMES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "expired",
)
PREPARED: Final = (PREPARE_COMMIT, PREPARE_ABORT)

NONE: Final = -1
"""No epoch, no batch, no query."""


class TransactionalId(NamedTuple):
    """A transactional id at its coordinator. `rows` are those of the open transaction."""

    epoch: int
    status: int
    last_epoch: int
    rows: int


UNUSED: Final = TransactionalId(NONE, EMPTY, NONE, 0)


class TaskId(NamedTuple):
    """The id of a task attempt of a partition: `sink_id/run/partition/attempt-slot`."""

    run: int
    attempt: int
    slot: int

    def __str__(self) -> str:
        return f"{self.run}/{self.attempt}-{self.slot}"


class Entry(NamedTuple):
    """A prepared transaction in a decision."""

    query: int
    number: int
    task_id: TaskId
    epoch: int


class Marker(NamedTuple):
    """The end marker of a task's transaction in the logs."""

    task_id: TaskId
    epoch: int
    is_commit: bool


class Attempt(NamedTuple):
    """A task attempt with its phase and epoch."""

    run: int
    batch: int
    attempt: int
    phase: int
    epoch: int


TO_BEGIN: Final = 0
TO_PRODUCE: Final = 1
HALF_PRODUCED: Final = 2
ANSWERED: Final = 3
FAILED: Final = 4
"""Phases of an attempt. An attempt in the first three may act at any later time, or never."""

NO_ROLE: Final = 0
TO_WRITE: Final = 1
TO_REWRITE: Final = 2
TO_SKIP: Final = 3
TO_REFUSE: Final = 4
NOTHING_TO_WRITE: Final = 5
"""The role of a partition's task according to the plan (step 5)."""


class Work(NamedTuple):
    """A driver's remaining work on one partition, and the message of its task.

    `role` is the task's role; `to_do` are entries to roll forward, `lost` are aborted ones;
    `listed` are ids that a sweep fences; `message` is the entry that the task returned (with number
    0).
    """

    role: int
    to_do: tuple[Entry, ...]
    lost: tuple[Entry, ...]
    listed: tuple[TaskId, ...]
    message: Entry


NO_MESSAGE: Final = Entry(NONE, NONE, TaskId(NONE, NONE, NONE), NONE)
"""Represents no message. It is an `Entry`, since partitions must be comparable."""

NO_WORK: Final = Work(NO_ROLE, (), (), (), NO_MESSAGE)


class TaskRequest(NamedTuple):
    """A delayed request for a task id: its sender has given up, and it may arrive once."""

    kind: int
    task_id: TaskId
    epoch: int


END_COMMIT: Final = 0
END_ABORT: Final = 1
INIT: Final = 2
MARK: Final = 3
"""Kinds of requests that may be delayed, for a task id or for the sink id."""


class Partition(NamedTuple):
    """The state of one Spark partition. `empty` has a bit per batch without rows."""

    ids: tuple[tuple[TaskId, TransactionalId], ...]
    attempts: tuple[Attempt, ...]
    entries: tuple[Entry, ...]
    markers: tuple[Marker, ...]
    committed: int
    late: tuple[TaskRequest, ...]
    works: tuple[Work, ...]
    empty: int


class Record(NamedTuple):
    """A decision in the commit topic, or a transaction of another sink (`query` is NONE)."""

    query: int
    number: int
    batch: int
    run: int
    supplements: bool
    is_open: bool


class Driver(NamedTuple):
    """A driver process, which is a run of its query. `pc` is the program counter (see `labels`).

    `owner` is the epoch of the sink id that planning got; `last` and `number` are the batch and
    number of its query's last decision at that time; `unfinished` are the (query, number) of
    decisions that it rolls forward.
    """

    pc: int
    batch: int
    owner: int
    last: int
    number: int
    unfinished: tuple[tuple[int, int], ...]


class LateRequest(NamedTuple):
    """A delayed request for the sink id (`INIT`, ends: epoch) or a `MARK` (query, number)."""

    kind: int
    first: int
    second: int


class Faults(NamedTuple):
    """The remaining fault budget.

    `answers` are lost responses or delayed requests; `attempts` are further attempts of tasks
    (retries or speculation); `strangers` are transactions of other sinks in the commit topic.
    """

    timeouts: int = 0
    failures: int = 0
    answers: int = 0
    attempts: int = 0
    expiries: int = 0
    strangers: int = 0


NO_FAULTS: Final = Faults()


class State(NamedTuple):
    """The complete state. `marks`, `offsets` and `completed` are by query: the highest finished
    decision, the batch of the group's source offsets, and the last batch of Spark's commit log."""

    sink_id: TransactionalId
    log: tuple[Record, ...]
    marks: tuple[int, ...]
    offsets: tuple[int, ...]
    completed: tuple[int, ...]
    drivers: tuple[Driver, ...]
    late: tuple[LateRequest, ...]
    faults: Faults
    partitions: tuple[Partition, ...]


def initial(queries: int, empty: tuple[int, ...], faults: Faults) -> State:
    """Return the initial state."""
    return State(
        sink_id=UNUSED,
        log=(),
        marks=(0,) * queries,
        offsets=(NONE,) * queries,
        completed=(NONE,) * queries,
        drivers=(),
        late=(),
        faults=faults,
        partitions=tuple(Partition((), (), (), (), 0, (), (), bits) for bits in empty),
    )


def find(ids: tuple[tuple[TaskId, TransactionalId], ...], task_id: TaskId) -> TransactionalId:
    """Return the coordinator's state of an id."""
    for name, current in ids:
        if name == task_id:
            return current
    return UNUSED


Value = TypeVar("Value")


def replaced(values: tuple[Value, ...], index: int, value: Value) -> tuple[Value, ...]:
    """Return the tuple with one value replaced."""
    return (*values[:index], value, *values[index + 1 :])


def without(values: Iterable[Value], value: Value) -> tuple[Value, ...]:
    """Return the tuple without a value."""
    return tuple(each for each in values if each != value)
