"""The state of the model: drivers, tasks, coordinator and commit topic.

States are tuples of numbers, which are fast to hash and compare. Invariant: states are immutable;
`canonicalization` maps symmetric states to the same form.

A `Partition` contains the complete state of one Spark partition: the transactional ids of its task
attempts, the attempts, its entries in decisions, and each driver's remaining work. Partitions can
therefore be sorted, and symmetric traces are explored only once.
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
"""The states of a transactional id at its coordinator. `STATUS_NAMES` contains Kafka's names."""

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
"""The value if there is no epoch, batch or query."""


class TransactionalId(NamedTuple):
    """The coordinator's state of a transactional id.

    `rows` are the rows of the open transaction.
    """

    epoch: int
    status: int
    last_epoch: int
    rows: int


UNUSED: Final = TransactionalId(NONE, EMPTY, NONE, 0)


class TaskId(NamedTuple):
    """The transactional id of a task attempt: `sink_id/generation/partition/attempt-slot`.

    The `Partition` that contains the id determines the partition. The model has no slots.
    """

    generation: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.generation}/{self.attempt}"


class Entry(NamedTuple):
    """A prepared transaction in a decision."""

    query: int
    number: int
    task_id: TaskId
    epoch: int


class Marker(NamedTuple):
    """The marker that ends a task's transaction in the logs."""

    task_id: TaskId
    epoch: int
    is_commit: bool


class Attempt(NamedTuple):
    """A task attempt, with its phase and producer epoch.

    `owner` and `generation` come from the plan. `owner` is the epoch of the sink id. `owner` is
    NONE if the attempt has passed the check in `task.look` or can no longer pass this check.
    """

    run: int
    batch: int
    attempt: int
    phase: int
    epoch: int
    owner: int
    generation: int

    @property
    def task_id(self) -> TaskId:
        return TaskId(self.generation, self.attempt)


TO_BEGIN: Final = 0
LOOKED: Final = 1
TO_PRODUCE: Final = 2
HALF_PRODUCED: Final = 3
ANSWERED: Final = 4
FAILED: Final = 5
"""The phases of an attempt. In the first four, an attempt can act at any later time, or never. Only
a mutation uses `LOOKED`."""

NO_ROLE: Final = 0
TO_WRITE: Final = 1
TO_REWRITE: Final = 2
TO_SKIP: Final = 3
TO_REFUSE: Final = 4
NOTHING_TO_WRITE: Final = 5
"""The roles that the plan can give to a partition's task (step 5)."""


class Listed(NamedTuple):
    """An id that a sweep will fence, and its epoch (NONE if the sweep ignores the epoch)."""

    task_id: TaskId
    epoch: int


class Work(NamedTuple):
    """A driver's remaining work on one partition, and the message of its task.

    `role` is the role of the task. `to_do` contains entries to roll forward, `lost` contains
    aborted entries, and `listed` contains ids that a sweep will fence. `message` is the entry that
    the task returned; its `number` is 0. `spare` contains ids that a sweep will not fence. Only a
    mutation uses `spare`.
    """

    role: int
    to_do: tuple[Entry, ...]
    lost: tuple[Entry, ...]
    listed: tuple[Listed, ...]
    message: Entry
    spare: tuple[TaskId, ...] = ()


NO_MESSAGE: Final = Entry(NONE, NONE, TaskId(NONE, NONE), NONE)
"""The value if there is no message. It is an `Entry`, because partitions must be comparable."""

NO_WORK: Final = Work(NO_ROLE, (), (), (), NO_MESSAGE)


class TaskRequest(NamedTuple):
    """A delayed request for a task's transactional id.

    The sender has stopped waiting for a response. The request may still arrive, at most once.
    """

    kind: int
    task_id: TaskId
    epoch: int


END_COMMIT: Final = 0
END_ABORT: Final = 1
INIT: Final = 2
MARK: Final = 3
"""The kinds of requests that can be delayed, for a task id or for the sink id."""


class Partition(NamedTuple):
    """The state of one Spark partition. Each set bit of `empty` represents a batch without rows."""

    ids: tuple[tuple[TaskId, TransactionalId], ...]
    attempts: tuple[Attempt, ...]
    entries: tuple[Entry, ...]
    markers: tuple[Marker, ...]
    committed: int
    late: tuple[TaskRequest, ...]
    works: tuple[Work, ...]
    empty: int


class Record(NamedTuple):
    """A decision in the commit topic, or a transaction of another sink (if `query` is NONE)."""

    query: int
    number: int
    batch: int
    run: int
    supplements: bool
    is_open: bool


class Driver(NamedTuple):
    """A driver process, which is one run of its query. `pc` is the program counter (see `labels`).

    `owner` is the epoch that planning obtained for the sink id. `last` and `number` are the batch
    and the number of the query's last decision at the time of planning. `unfinished` contains the
    query and number of each decision that the driver rolls forward. `generation` is part of the
    transactional ids of the tasks.
    """

    pc: int
    batch: int
    owner: int
    last: int
    number: int
    unfinished: tuple[tuple[int, int], ...]
    generation: int = NONE


class LateRequest(NamedTuple):
    """A delayed request for the sink id, or a delayed record that marks a decision as finished.

    For `INIT` and for the end of a transaction, `first` is the epoch of the sink id. For `MARK`,
    `first` is the query of the decision and `second` is the number of the decision.
    """

    kind: int
    first: int
    second: int


class Faults(NamedTuple):
    """The number of faults of each kind that can still occur.

    `lost_responses` counts lost responses and delayed requests, `attempts` counts additional
    task attempts (retries or speculation), and `strangers` counts transactions of other sinks
    in the commit topic.
    """

    timeouts: int = 0
    failures: int = 0
    lost_responses: int = 0
    attempts: int = 0
    expiries: int = 0
    strangers: int = 0


NO_FAULTS: Final = Faults()


class State(NamedTuple):
    """The complete state of the model.

    `marks`, `offsets` and `completed` contain one value per query. `marks` contains the number of
    the highest finished decision. `offsets` contains the batch whose source offsets the group has
    committed. `completed` contains the last batch in Spark's commit log.
    """

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
    """Return the coordinator's state of a task id."""
    for name, current in ids:
        if name == task_id:
            return current
    return UNUSED


Value = TypeVar("Value")


def replaced(values: tuple[Value, ...], index: int, value: Value) -> tuple[Value, ...]:
    """Return a copy of the tuple with the value at `index` replaced."""
    return (*values[:index], value, *values[index + 1 :])


def without(values: Iterable[Value], value: Value) -> tuple[Value, ...]:
    """Return a tuple of the values that differ from `value`."""
    return tuple(each for each in values if each != value)
