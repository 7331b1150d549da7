"""The driver's actions between planning and commit, and its writes to Spark's commit log.

Launches tasks, waits for their messages, verifies their transactions (step 7), and writes
`commits/N`. Invariant: a driver runs each batch once; after a failure, Spark starts another driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from integration.sink_model import labels
from integration.sink_model.case import NO_ROW_MISSING, Case, InvariantViolationError
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.mutations import (
    OFFSETS_OUTSIDE_THE_TRANSACTION,
    OVERTAKE_LOST_TASKS,
    REWRITE_AN_OLDER_BATCH,
    ROLL_FORWARD_BEFORE_DECIDING,
    SKIP_THE_VERIFICATION,
    TRUST_A_STALE_DECISION,
    WRITE_A_DECIDED_BATCH_AGAIN,
)
from integration.sink_model.state import (
    FAILED,
    NO_MESSAGE,
    NO_WORK,
    NONE,
    NOTHING_TO_WRITE,
    ONGOING,
    TO_BEGIN,
    TO_REFUSE,
    TO_REWRITE,
    TO_SKIP,
    TO_WRITE,
    Attempt,
    Driver,
    Entry,
    Partition,
    State,
    Work,
    find,
    replaced,
)
from integration.sink_model.task import has_answered, has_ended, role


def start(case: Case, batch: int) -> Driver:
    """Return a driver that is about to plan a batch."""
    is_late = case.mutation == TRUST_A_STALE_DECISION
    return Driver(labels.PLAN_READ if is_late else labels.PLAN_FENCE, batch, NONE, NONE, 0, ())


def launch_tasks(action: DriverAction, state: State) -> State:
    """Launch the tasks after planning.

    In partitions in which planning found a lost entry of the query, `role` is `TO_REWRITE`.
    """
    case, driver = action.case, action.driver
    lost = [part.works[action.number].role == TO_REWRITE for part in state.partitions]
    partitions = []
    for part, is_lost in zip(state.partitions, lost, strict=True):
        what = _mutated_role(
            case,
            role(
                driver.batch,
                driver.last,
                is_lost=is_lost,
                any_is_lost=any(lost) and case.mutation != OVERTAKE_LOST_TASKS,
                is_empty=bool(part.empty >> driver.batch & 1),
            ),
            is_older=driver.batch < driver.last,
        )
        work = NO_WORK._replace(role=what)
        attempts = part.attempts
        if what in (TO_WRITE, TO_REWRITE):
            attempts = _with(attempts, _attempt(driver, action.number, 0))
        partitions.append(
            part._replace(works=replaced(part.works, action.number, work), attempts=attempts)
        )
    driver = driver._replace(pc=labels.TASKS, last=NONE, unfinished=())
    return state._replace(
        partitions=tuple(partitions), drivers=replaced(state.drivers, action.number, driver)
    )


def _mutated_role(case: Case, what: int, *, is_older: bool) -> int:
    if what == TO_REFUSE and is_older and case.mutation == REWRITE_AN_OLDER_BATCH:
        return TO_WRITE
    if what == TO_SKIP and case.mutation == WRITE_A_DECIDED_BATCH_AGAIN:
        return TO_WRITE
    return what


def _attempt(driver: Driver, run: int, attempt: int) -> Attempt:
    owner, generation = driver.owner, driver.generation
    return Attempt(run, driver.batch, attempt, TO_BEGIN, NONE, owner, generation)


def _with(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    return tuple(sorted((*attempts, attempt)))


def job(action: DriverAction) -> Transitions:
    """Complete the job, fail it, or let Spark start another attempt of a task."""
    state = action.state
    mine = [_attempts(action, part) for part in state.partitions]
    choices = [
        _messages(action, part, attempts)
        for part, attempts in zip(state.partitions, mine, strict=True)
    ]
    if all(choices):
        for messages in product(*choices):
            yield from _verify(action, messages)
    if state.faults.attempts:
        yield from _further_attempts(action, mine)
    has_failed = any(
        part.works[action.number].role == TO_REFUSE
        or (attempts and all(attempt.phase == FAILED for attempt in attempts))
        for part, attempts in zip(state.partitions, mine, strict=True)
    )
    if has_failed or state.faults.failures:
        if not has_failed:
            faults = state.faults._replace(failures=state.faults.failures - 1)
            state = state._replace(faults=faults)
        first = [choice[0] if choice else NO_MESSAGE for choice in choices]
        if any(choices):
            state = action.go_to(_ended(action, state, first), labels.ABORT_LOOK)
        else:
            state = action.fail(_ended(action, state, first))
        yield (
            action.describe(
                "fails" + (", so Spark calls abort()" if any(choices) else " without a message")
            ),
            state,
        )


def _attempts(action: DriverAction, part: Partition) -> list[Attempt]:
    batch = action.driver.batch
    return [each for each in part.attempts if each[:2] == (action.number, batch)]


def _messages(action: DriverAction, part: Partition, attempts: Sequence[Attempt]) -> list[Entry]:
    """Return the possible commit messages for a task, one per attempt that has returned."""
    if part.works[action.number].role in (TO_SKIP, NOTHING_TO_WRITE):
        return [NO_MESSAGE]
    return [
        Entry(NONE, 0, each.task_id, each.epoch)
        for each in attempts
        if has_answered(action.case, each)
    ]


def _further_attempts(action: DriverAction, mine: Sequence[Sequence[Attempt]]) -> Transitions:
    """Start a speculative or repeated attempt. Attempts are numbered consecutively."""
    for index, attempts in enumerate(mine):
        if attempts:
            state = action.state
            part = state.partitions[index]
            number = 0 if action.case.same_ids else len(attempts)
            attempt = _attempt(action.driver, action.number, number)
            part = part._replace(attempts=_with(part.attempts, attempt))
            faults = state.faults._replace(attempts=state.faults.attempts - 1)
            yield (
                action.describe(f"starts attempt {attempt.attempt} of partition {index}"),
                state._replace(faults=faults, partitions=replaced(state.partitions, index, part)),
            )


def _ended(action: DriverAction, state: State, messages: Sequence[Entry]) -> State:
    """End the job: keep the messages of its tasks, and remove its completed attempts."""
    partitions = []
    for part, message in zip(state.partitions, messages, strict=True):
        work: Work = part.works[action.number]._replace(message=message)
        attempts = tuple(
            each
            for each in part.attempts
            if each[:2] != (action.number, action.driver.batch) or not has_ended(each)
        )
        partitions.append(
            part._replace(works=replaced(part.works, action.number, work), attempts=attempts)
        )
    return state._replace(partitions=tuple(partitions))


def _verify(action: DriverAction, messages: Sequence[Entry]) -> Transitions:
    """Send DescribeTransactions for all prepared transactions (`commit.verify`)."""
    case = action.case
    state = _ended(action, action.state, messages)
    works = action.works(state)
    is_verified = all(
        message == NO_MESSAGE or _is_prepared(part, message)
        for part, message in zip(state.partitions, messages, strict=True)
    )
    if not (is_verified or case.mutation == SKIP_THE_VERIFICATION):
        state = action.go_to(state, labels.ABORT_LOOK)
        yield (
            action.describe(
                "completes; commit.verify: some transactions are not prepared, so Spark calls "
                "abort()"
            ),
            state,
        )
        return
    if case.mutation == OFFSETS_OUTSIDE_THE_TRANSACTION:
        offsets = replaced(state.offsets, action.query, action.driver.batch)
        state = state._replace(offsets=offsets)
    if case.mutation == ROLL_FORWARD_BEFORE_DECIDING:
        rolls = [
            work._replace(to_do=() if work.message == NO_MESSAGE else (work.message,))
            for work in works
        ]
        state = action.go_to(action.with_works(state, rolls), labels.COMMIT_ROLL_FORWARD)
    elif any(work.role in (TO_SKIP, TO_REWRITE) for work in works):
        state = action.go_to(state, labels.COMMIT_COMPARE)
    else:
        state = action.go_to(state, labels.COMMIT_DECIDE)
    yield action.describe("completes; commit.verify: all transactions are prepared"), state


def _is_prepared(part: Partition, message: Entry) -> bool:
    current = find(part.ids, message.task_id)
    return current.status == ONGOING and current.epoch == message.epoch


def committed(action: DriverAction) -> Transitions:
    """Write `commits/N`, as Spark does after commit() has returned."""
    case, state, driver = action.case, action.state, action.driver
    if state.completed[action.query] != driver.batch - 1:
        yield (
            action.describe(f"fails because commits/{driver.batch} already exists"),
            action.fail(state),
        )
        return
    rows = case.rows(action.query, driver.batch)
    for index, part in enumerate(state.partitions):
        if not part.empty >> driver.batch & 1 and part.committed & rows != rows:
            raise InvariantViolationError(
                f"{NO_ROW_MISSING}: batch {driver.batch} of query {action.query} is complete, but "
                f"rows of partition {index} are missing"
            )
    state = state._replace(completed=replaced(state.completed, action.query, driver.batch))
    batch = driver.batch + 1
    following = (
        start(case, batch)
        if batch < case.batches_of(action.number)
        else Driver(labels.FINISHED, 0, NONE, NONE, 0, ())
    )
    state = state._replace(drivers=replaced(state.drivers, action.number, following))
    state = action.with_works(state, [NO_WORK] * len(state.partitions))
    yield action.describe(f"writes commits/{driver.batch}"), state
