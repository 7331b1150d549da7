"""The values of the model: what a state of drivers, tasks, coordinator and commit topic is made of.

Purpose: states as tuples of numbers, which hash and compare fast. Invariant: nothing here changes;
two states that differ only in which partition is which, or in how often X was taken before anybody
who still acts looked, have one canonical form. What it must not know: what may happen next.

All that concerns one Spark partition stands together in a `Partition`: the ids of its task attempts
at the coordinator, the attempts, its entries in decisions, and what each driver has still to do with
it. So partitions can be sorted, and a schedule and its mirror image are explored once.
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
"""The states of a transactional id at its coordinator, as Kafka calls them."""

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
    """A transactional id as its coordinator has it. `rows` are those of the open transaction."""

    epoch: int
    status: int
    last_epoch: int
    rows: int


UNUSED: Final = TransactionalId(NONE, EMPTY, NONE, 0)


class TaskId(NamedTuple):
    """The id of a task attempt, of which the partition is known: `X/run/partition/attempt-slot`."""

    run: int
    attempt: int
    slot: int

    def __str__(self) -> str:
        return f"{self.run}/{self.attempt}-{self.slot}"


class Entry(NamedTuple):
    """A prepared transaction that a decision names."""

    query: int
    number: int
    task_id: TaskId
    epoch: int


class Marker(NamedTuple):
    """The end of a task's transaction, as its partitions' logs have it."""

    task_id: TaskId
    epoch: int
    is_commit: bool


class Attempt(NamedTuple):
    """A task attempt: which one, how far it is, and the epoch that it got."""

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
"""Phases of an attempt. One that is in the first three acts at any later time, or never."""

NO_ROLE: Final = 0
TO_WRITE: Final = 1
TO_REWRITE: Final = 2
TO_SKIP: Final = 3
TO_REFUSE: Final = 4
NOTHING_TO_WRITE: Final = 5
"""What the task of a partition makes of the plan (step 5)."""


class Work(NamedTuple):
    """What a driver has to do with one partition, and what its task has answered.

    `role` is what the task is to do; `to_do` and `lost` are entries to be rolled forward, or found
    aborted; `listed` are ids that a sweep is to fence; `message` is the entry that its task
    answered (of number 0).
    """

    role: int
    to_do: tuple[Entry, ...]
    lost: tuple[Entry, ...]
    listed: tuple[TaskId, ...]
    message: Entry


NO_MESSAGE: Final = Entry(NONE, NONE, TaskId(NONE, NONE, NONE), NONE)
"""In place of a message. An `Entry` and not None, so that partitions can be ordered."""

NO_WORK: Final = Work(NO_ROLE, (), (), (), NO_MESSAGE)


class TaskRequest(NamedTuple):
    """A request about a task's id that was given up by its sender and may arrive later, once."""

    kind: int
    task_id: TaskId
    epoch: int


END_COMMIT: Final = 0
END_ABORT: Final = 1
INIT: Final = 2
MARK: Final = 3
"""Kinds of requests that may be late. `INIT` and the ends are also those of X."""


class Partition(NamedTuple):
    """Everything about one Spark partition. `empty` has a bit for each batch without rows in it."""

    ids: tuple[tuple[TaskId, TransactionalId], ...]
    attempts: tuple[Attempt, ...]
    entries: tuple[Entry, ...]
    markers: tuple[Marker, ...]
    committed: int
    late: tuple[TaskRequest, ...]
    works: tuple[Work, ...]
    empty: int


class Record(NamedTuple):
    """A decision in the commit topic, or another sink's transaction there (`query` is NONE)."""

    query: int
    number: int
    batch: int
    run: int
    supplements: bool
    is_open: bool


class Driver(NamedTuple):
    """A driver incarnation, which is a run of its query. `at` is where it stands (see `driver`).

    `owner` is the epoch of X that planning got, `last` and `number` are of the last decision of its
    query by then, `unfinished` the (query, number) of decisions that it rolls forward.
    """

    at: int
    batch: int
    owner: int
    last: int
    number: int
    unfinished: tuple[tuple[int, int], ...]


class LateRequest(NamedTuple):
    """As `TaskRequest`, about X or the commit topic: `INIT` and ends (epoch), `MARK` (query, number)."""

    kind: int
    first: int
    second: int


class Faults(NamedTuple):
    """How many of each kind may still happen.

    `answers` are answers that get lost, or requests that are late; `attempts` are further attempts
    of tasks (retries or speculation); `strangers` are transactions of other sinks in the topic.
    """

    timeouts: int = 0
    failures: int = 0
    answers: int = 0
    attempts: int = 0
    expiries: int = 0
    strangers: int = 0


NO_FAULTS: Final = Faults()


class State(NamedTuple):
    """All of it. `marks`, `offsets` and `completed` are by query: the highest finished decision, the
    batch whose source offsets the group has, and the last batch of Spark's commit log."""

    x: TransactionalId
    log: tuple[Record, ...]
    marks: tuple[int, ...]
    offsets: tuple[int, ...]
    completed: tuple[int, ...]
    drivers: tuple[Driver, ...]
    late: tuple[LateRequest, ...]
    faults: Faults
    partitions: tuple[Partition, ...]


def initial(queries: int, empty: tuple[int, ...], faults: Faults) -> State:
    """Nothing has ever happened."""
    return State(
        x=UNUSED,
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
    """What the coordinator has of an id."""
    for name, current in ids:
        if name == task_id:
            return current
    return UNUSED


Value = TypeVar("Value")


def replaced(values: tuple[Value, ...], index: int, value: Value) -> tuple[Value, ...]:
    """The same but one."""
    return (*values[:index], value, *values[index + 1 :])


def without(values: Iterable[Value], value: Value) -> tuple[Value, ...]:
    """The same without one."""
    return tuple(each for each in values if each != value)
