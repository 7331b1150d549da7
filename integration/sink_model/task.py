"""The actions of task attempts: initialize the id, write and return a message, or fail and abort.

Models the steps `task.check`, `task.init`, `task.produce` and `task.give_up`. Invariant: an attempt
uses only its plan and its own id.
"""

from __future__ import annotations

from collections.abc import Iterator

from integration.sink_model.case import BY_ITSELF, BY_TASK, Case
from integration.sink_model.cluster import end_task_transaction, init_task_id, produce_rows
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.labels import TASKS
from integration.sink_model.mutations import COMMIT_BEFORE_PREPARE
from integration.sink_model.state import (
    ANSWERED,
    FAILED,
    HALF_PRODUCED,
    INIT,
    NOTHING_TO_WRITE,
    TO_BEGIN,
    TO_PRODUCE,
    TO_REFUSE,
    TO_REWRITE,
    TO_SKIP,
    TO_WRITE,
    Attempt,
    State,
    TaskRequest,
    replaced,
)
from pyspark_kafka.sink.exactly_once.steps import Step

Transition = tuple[str, State]

_INIT = Step.TASK_INIT.title
_PRODUCE = Step.TASK_PRODUCE.title
_GIVE_UP = Step.TASK_GIVE_UP.title


def role(batch: int, last: int, *, is_lost: bool, any_is_lost: bool, is_empty: bool) -> int:
    """Return a task's role (`task.check`). `last` is the last decided batch of its query."""
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


def steps(case: Case, state: State) -> Iterator[Transition]:
    """Yield the enabled actions of all attempts."""
    for index, part in enumerate(state.partitions):
        for position, attempt in enumerate(part.attempts):
            if has_ended(attempt):
                continue
            action = _AttemptAction(case, state, index, position, attempt)
            if attempt.phase == TO_BEGIN:
                yield from action.begin()
            else:
                yield from action.produce(attempt)


class _AttemptAction:
    """The next action of one attempt."""

    def __init__(self, case: Case, state: State, index: int, position: int, attempt: Attempt):
        self.case = case
        self.state = state
        self.index = index
        self.position = position
        self.attempt = attempt
        self.task_id = case.task_id(attempt.run, attempt.batch, attempt.attempt)

    def begin(self) -> Iterator[Transition]:
        """Send InitProducerId for the task id. If the id is unique, also write the first rows."""
        case, index = self.case, self.index
        state, response, epoch = init_task_id(case, self.state, index, self.task_id, BY_TASK)
        if response == CONCURRENT:
            if state is not self.state:
                yield f"{self}: {_INIT}: aborts the open transaction of the id", state
            return
        after = self._goes_to(state, TO_PRODUCE, epoch)
        if case.ids_are_unique:
            self.state = after
            yield from self.produce(after.partitions[index].attempts[self.position])
            return
        yield f"{self}: {_INIT}: gets epoch {epoch}", after
        if case.late_inits and after.faults.lost_responses:
            part = after.partitions[index]
            request = TaskRequest(INIT, self.task_id, 0)
            part = part._replace(late=tuple(sorted((*part.late, request))))
            faults = after.faults._replace(lost_responses=after.faults.lost_responses - 1)
            after = after._replace(
                partitions=replaced(after.partitions, index, part), faults=faults
            )
            yield f"{self}: {_INIT}: gets epoch {epoch}; a copy is delayed", after

    def produce(self, attempt: Attempt) -> Iterator[Transition]:
        """Write all rows or half of them and return the message, or fail."""
        case, epoch = self.case, attempt.epoch
        is_second = attempt.phase == HALF_PRODUCED
        rows = case.row(case.queries[attempt.run], attempt.batch, int(is_second))
        state = produce_rows(
            case, self.state, self.index, self.task_id, epoch, rows, goes_on=is_second
        )
        if state is None:
            failed = self._goes_to(self.state, FAILED, epoch)
            yield f"{self}: {_PRODUCE}: is fenced and fails", failed
            return
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

    def _goes_to(self, state: State, phase: int, epoch: int) -> State:
        part = state.partitions[self.index]
        attempt = self.attempt._replace(phase=phase, epoch=epoch)
        driver = state.drivers[attempt.run]
        if phase in (ANSWERED, FAILED) and (driver.pc, driver.batch) != (TASKS, attempt.batch):
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
