"""The actions of task attempts: initialize a producer, write, return a message, fail, and abort.

Models the steps `task.check`, `task.init`, `task.look`, `task.produce` and `task.give_up`.
Invariant: an attempt uses only its plan and its own id.

`task.init` and `task.look` are one action. The combined action covers all behaviors, for two
reasons. A batch that can be decided at `task.look` could also be decided at `task.init`. An attempt
that fails the check in `task.look` has the same effect as an attempt that takes no further actions.
"""

from __future__ import annotations

from collections.abc import Iterator

from integration.sink_model.case import (
    BY_ITSELF,
    BY_LATE_TASK,
    BY_TASK,
    NOTHING_OPEN_AFTER_SWEEP,
    Case,
    InvariantViolationError,
)
from integration.sink_model.cluster import (
    can_decide,
    end_task_transaction,
    init_task_id,
    produce_rows,
)
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.labels import COMMITTED, FINISHED, TASKS
from integration.sink_model.mutations import (
    COMMIT_BEFORE_PREPARE,
    LOOK_BEFORE_INIT,
    START_DESPITE_A_DECISION,
    START_WITHOUT_LOOKING,
)
from integration.sink_model.state import (
    ANSWERED,
    END_ABORT,
    FAILED,
    HALF_PRODUCED,
    INIT,
    LOOKED,
    NONE,
    NOTHING_TO_WRITE,
    ONGOING,
    TO_BEGIN,
    TO_PRODUCE,
    TO_REFUSE,
    TO_REWRITE,
    TO_SKIP,
    TO_WRITE,
    Attempt,
    Partition,
    State,
    TaskRequest,
    find,
    replaced,
)
from pyspark_kafka.sink.exactly_once.steps import Step

Transition = tuple[str, State]

_INIT = Step.TASK_INIT.title
_LOOK = Step.TASK_LOOK.title
_PRODUCE = Step.TASK_PRODUCE.title
_GIVE_UP = Step.TASK_GIVE_UP.title


def role(batch: int, last: int, *, is_lost: bool, any_is_lost: bool, is_empty: bool) -> int:
    """Return what a task must do (`task.check`). `last` is the last decided batch of the query."""
    if batch < last or (batch > last and any_is_lost):
        return TO_REFUSE
    if batch == last:
        return TO_REWRITE if is_lost else TO_SKIP
    return NOTHING_TO_WRITE if is_empty else TO_WRITE


def has_answered(case: Case, attempt: Attempt) -> bool:
    """Return whether the driver has received the attempt's message."""
    if case.mutation == COMMIT_BEFORE_PREPARE and attempt.phase == HALF_PRODUCED:
        return True
    return attempt.phase == ANSWERED


def has_ended(attempt: Attempt) -> bool:
    """Return whether the attempt has returned its message or failed."""
    return attempt.phase in (ANSWERED, FAILED)


def is_expected(state: State, attempt: Attempt) -> bool:
    """Return whether the attempt's job is still running."""
    driver = state.drivers[attempt.run]
    return (driver.pc, driver.batch) == (TASKS, attempt.batch)


def can_produce(part: Partition, attempt: Attempt) -> bool:
    """Return whether the attempt can produce rows that no delayed EndTxn will abort."""
    task_id, epoch = attempt.task_id, attempt.epoch
    return (
        attempt.phase in (TO_PRODUCE, HALF_PRODUCED)
        and find(part.ids, task_id).epoch == epoch
        and TaskRequest(END_ABORT, task_id, epoch) not in part.late
    )


def steps(case: Case, state: State) -> Iterator[Transition]:
    """Yield the enabled actions of all attempts."""
    for index, part in enumerate(state.partitions):
        for position, attempt in enumerate(part.attempts):
            if has_ended(attempt):
                continue
            action = _AttemptAction(case, state, index, position, attempt)
            if attempt.phase == TO_BEGIN and case.mutation == LOOK_BEFORE_INIT:
                yield from action.look()
            elif attempt.phase in (TO_BEGIN, LOOKED):
                yield from action.begin()
            else:
                yield from action.produce()


class _AttemptAction:
    """The next action of one attempt."""

    def __init__(self, case: Case, state: State, index: int, position: int, attempt: Attempt):
        self.case = case
        self.state = state
        self.index = index
        self.position = position
        self.attempt = attempt
        self.task_id = attempt.task_id
        self.can_decide = can_decide(state, attempt.owner)
        if case.mutation == START_DESPITE_A_DECISION:
            self.can_decide = state.sink_id.epoch == attempt.owner

    def look(self) -> Iterator[Transition]:
        """Check the owner of the sink id before InitProducerId (only with LOOK_BEFORE_INIT)."""
        phase = LOOKED if self.can_decide else FAILED
        yield f"{self}: {self._looked}", self._goes_to(self.state, phase, NONE)

    @property
    def _looked(self) -> str:
        result = "can be decided" if self.can_decide else "can no longer be decided"
        return f"{_LOOK}: the batch {result}"

    def begin(self) -> Iterator[Transition]:
        """Send InitProducerId for the attempt's id, and check the owner of the sink id."""
        case, index = self.case, self.index
        who = BY_TASK if self.can_decide else BY_LATE_TASK
        state, response, epoch = init_task_id(case, self.state, index, self.task_id, who)
        if response == CONCURRENT:
            if state is not self.state:
                yield f"{self}: {_INIT}: aborts the open transaction of the id", state
            return
        text = f"{self}: {_INIT}: gets epoch {epoch}"
        if case.mutation in (START_WITHOUT_LOOKING, LOOK_BEFORE_INIT):
            after = self._goes_to(state, TO_PRODUCE, epoch)
        elif self.can_decide:
            after = self._goes_to(state, TO_PRODUCE, epoch)
            text = f"{text}; {self._looked}"
        else:
            state, _ = end_task_transaction(
                case, state, index, self.task_id, epoch, BY_ITSELF, is_commit=False
            )
            after = self._goes_to(state, FAILED, epoch)
            text = f"{text}; {self._looked}, so the attempt fails"
        yield text, after
        if case.late_inits and after.faults.lost_responses:
            part = after.partitions[index]
            request = TaskRequest(INIT, self.task_id, 0)
            part = part._replace(late=tuple(sorted((*part.late, request))))
            faults = after.faults._replace(lost_responses=after.faults.lost_responses - 1)
            after = after._replace(
                partitions=replaced(after.partitions, index, part), faults=faults
            )
            yield f"{text}; a copy of InitProducerId is delayed", after

    def produce(self) -> Iterator[Transition]:
        """Write all or half of the rows. Return the task's message after the last row, or fail."""
        case, attempt, epoch = self.case, self.attempt, self.attempt.epoch
        is_second = attempt.phase == HALF_PRODUCED
        rows = case.row(case.queries[attempt.run], attempt.batch, int(is_second))
        state = produce_rows(
            case, self.state, self.index, self.task_id, epoch, rows, goes_on=is_second
        )
        if state is None:
            failed = self._goes_to(self.state, FAILED, epoch)
            yield f"{self}: {_PRODUCE}: is fenced and fails", failed
            return
        self._check_not_swept()
        is_last = is_second or not case.halves
        what = "its rows and returns" if is_last else "half of its rows"
        after = self._goes_to(state, ANSWERED if is_last else HALF_PRODUCED, epoch)
        yield f"{self}: {_PRODUCE}: writes {what} (epoch {epoch})", after
        if state.faults.failures:
            faults = state.faults._replace(failures=state.faults.failures - 1)
            state = self._goes_to(state._replace(faults=faults), FAILED, epoch)
            state, _ = end_task_transaction(
                case, state, self.index, self.task_id, epoch, BY_ITSELF, is_commit=False
            )
            yield f"{self}: {_GIVE_UP}: fails after writing rows, and aborts them", state

    def _check_not_swept(self) -> None:
        """Check that the attempt does not begin a transaction after the sweep of its batch."""
        attempt = self.attempt
        driver = self.state.drivers[attempt.run]
        part = self.state.partitions[self.index]
        is_swept = (
            driver.pc == FINISHED
            or driver.batch > attempt.batch
            or (driver.pc == COMMITTED and driver.batch == attempt.batch)
        )
        if (
            is_swept
            and can_produce(part, attempt)
            and find(part.ids, self.task_id).status != ONGOING
        ):
            raise InvariantViolationError(
                f"{NOTHING_OPEN_AFTER_SWEEP}: {self} begins a transaction"
            )

    def _goes_to(self, state: State, phase: int, epoch: int) -> State:
        part = state.partitions[self.index]
        attempt = self.attempt._replace(phase=phase, epoch=epoch, owner=NONE)
        if phase in (ANSWERED, FAILED) and not is_expected(state, attempt):
            left = part.attempts[: self.position] + part.attempts[self.position + 1 :]
            part = part._replace(attempts=left)  # the driver no longer waits for this attempt
        else:
            part = part._replace(attempts=replaced(part.attempts, self.position, attempt))
        return state._replace(partitions=replaced(state.partitions, self.index, part))

    def __str__(self) -> str:
        attempt = self.attempt
        return (
            f"task of driver {attempt.run}, batch {attempt.batch}, partition {self.index}, "
            f"attempt {attempt.attempt}"
        )
