"""The job between planning and commit, and Spark's commit log after it.

Purpose: launch tasks with what planning found, wait for their messages, verify them (step 7), and
write `commits/N`. Invariant: a driver runs each batch once; after a failure Spark starts another
incarnation. What it must not know: how a batch is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from integration.sink_model import places
from integration.sink_model.case import Case, Violation
from integration.sink_model.garbage import forget
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
from integration.sink_model.task import has_answered, is_over, role
from integration.sink_model.turn import Transitions, Turn


def start(case: Case, batch: int) -> Driver:
    """A driver that begins with a batch."""
    is_late = case.mutation == TRUST_A_STALE_DECISION
    return Driver(places.PLAN_READ if is_late else places.PLAN_FENCE, batch, NONE, NONE, 0, ())


def launched(turn: Turn, state: State) -> State:
    """Planning is over: tasks begin. `role` is `TO_REWRITE` where planning found an entry lost."""
    case, driver = turn.case, turn.driver
    lost = [part.works[turn.number].role == TO_REWRITE for part in state.partitions]
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
            attempts = _with(attempts, Attempt(turn.number, driver.batch, 0, TO_BEGIN, NONE))
        partitions.append(
            part._replace(works=replaced(part.works, turn.number, work), attempts=attempts)
        )
    driver = Driver(places.TASKS, driver.batch, driver.owner, NONE, driver.number, ())
    return state._replace(
        partitions=tuple(partitions), drivers=replaced(state.drivers, turn.number, driver)
    )


def _mutated_role(case: Case, what: int, *, is_older: bool) -> int:
    if what == TO_REFUSE and is_older and case.mutation == REWRITE_AN_OLDER_BATCH:
        return TO_WRITE
    if what == TO_SKIP and case.mutation == WRITE_A_DECIDED_BATCH_AGAIN:
        return TO_WRITE
    return what


def _with(attempts: tuple[Attempt, ...], attempt: Attempt) -> tuple[Attempt, ...]:
    return tuple(sorted((*attempts, attempt)))


def job(turn: Turn) -> Transitions:
    """The job is done or fails, or Spark starts another attempt of a task."""
    state = turn.state
    mine = [_attempts(turn, part) for part in state.partitions]
    choices = [
        _messages(turn, part, attempts)
        for part, attempts in zip(state.partitions, mine, strict=True)
    ]
    if all(choices):
        for messages in product(*choices):
            yield from _verify(turn, messages)
    if state.faults.attempts:
        yield from _further_attempts(turn, mine)
    has_failed = any(
        part.works[turn.number].role == TO_REFUSE
        or (attempts and all(attempt.phase == FAILED for attempt in attempts))
        for part, attempts in zip(state.partitions, mine, strict=True)
    )
    if has_failed or state.faults.failures:
        if not has_failed:
            faults = state.faults._replace(failures=state.faults.failures - 1)
            state = state._replace(faults=faults)
        first = [choice[0] if choice else NO_MESSAGE for choice in choices]
        if any(choices):
            state = turn.to(_ended(turn, state, first), places.ABORT_LOOK)
        else:
            state = turn.dies(_ended(turn, state, first))
        yield turn.says("fails" + (", so abort()" if any(choices) else ", with no message")), state


def _attempts(turn: Turn, part: Partition) -> list[Attempt]:
    batch = turn.driver.batch
    return [each for each in part.attempts if each[:2] == (turn.number, batch)]


def _messages(turn: Turn, part: Partition, attempts: Sequence[Attempt]) -> list[Entry]:
    """What the task of a partition has answered, by its attempts; an entry where it prepared one."""
    if part.works[turn.number].role in (TO_SKIP, NOTHING_TO_WRITE):
        return [NO_MESSAGE]
    return [
        Entry(NONE, 0, turn.case.task_id(turn.number, each.batch, each.attempt), each.epoch)
        for each in attempts
        if has_answered(turn.case, each)
    ]


def _further_attempts(turn: Turn, mine: Sequence[Sequence[Attempt]]) -> Transitions:
    """Speculation, or a retry: attempts are numbered on end."""
    for index, attempts in enumerate(mine):
        if attempts:
            state = turn.state
            part = state.partitions[index]
            attempt = Attempt(turn.number, turn.driver.batch, len(attempts), TO_BEGIN, NONE)
            part = part._replace(attempts=_with(part.attempts, attempt))
            faults = state.faults._replace(attempts=state.faults.attempts - 1)
            yield (
                turn.says(f"starts attempt {attempt.attempt} of partition {index}"),
                state._replace(faults=faults, partitions=replaced(state.partitions, index, part)),
            )


def _ended(turn: Turn, state: State, messages: Sequence[Entry]) -> State:
    """The job is over: its messages are there, and attempts that still act are nobody's."""
    partitions = []
    for part, message in zip(state.partitions, messages, strict=True):
        work: Work = part.works[turn.number]._replace(message=message)
        attempts = tuple(
            each
            for each in part.attempts
            if each[:2] != (turn.number, turn.driver.batch) or not is_over(each)
        )
        partitions.append(
            part._replace(works=replaced(part.works, turn.number, work), attempts=attempts)
        )
    return state._replace(partitions=tuple(partitions))


def _verify(turn: Turn, messages: Sequence[Entry]) -> Transitions:
    """`commit.verify`: DescribeTransactions of every prepared one."""
    case = turn.case
    state = _ended(turn, turn.state, messages)
    works = turn.works(state)
    is_well = all(
        message == NO_MESSAGE or _is_prepared(part, message)
        for part, message in zip(state.partitions, messages, strict=True)
    )
    if not (is_well or case.mutation == SKIP_THE_VERIFICATION):
        state = turn.to(state, places.ABORT_LOOK)
        yield turn.says("is done; commit.verify: not all are prepared, so abort()"), state
        return
    if case.mutation == OFFSETS_OUTSIDE_THE_TRANSACTION:
        offsets = replaced(state.offsets, turn.query, turn.driver.batch)
        state = state._replace(offsets=offsets)
    if case.mutation == ROLL_FORWARD_BEFORE_DECIDING:
        rolls = [
            work._replace(to_do=() if work.message == NO_MESSAGE else (work.message,))
            for work in works
        ]
        state = turn.to(turn.with_works(state, rolls), places.COMMIT_ROLL_FORWARD)
    elif any(work.role in (TO_SKIP, TO_REWRITE) for work in works):
        state = turn.to(state, places.COMMIT_COMPARE)
    else:
        state = turn.to(state, places.COMMIT_DECIDE)
    yield turn.says("is done; commit.verify: all are prepared"), state


def _is_prepared(part: Partition, message: Entry) -> bool:
    current = find(part.ids, message.task_id)
    return current.status == ONGOING and current.epoch == message.epoch


def committed(turn: Turn) -> Transitions:
    """commit() has returned, and Spark writes `commits/N`."""
    case, state, driver = turn.case, turn.state, turn.driver
    if state.completed[turn.query] != driver.batch - 1:
        yield turn.says(f"finds commits/{driver.batch} written, and fails"), turn.dies(state)
        return
    rows = case.rows(turn.query, driver.batch)
    for index, part in enumerate(state.partitions):
        if not part.empty >> driver.batch & 1 and part.committed & rows != rows:
            raise Violation(
                f"no completed batch has a row missing: batch {driver.batch} of query "
                f"{turn.query} is complete without all rows of partition {index}"
            )
    state = state._replace(completed=replaced(state.completed, turn.query, driver.batch))
    batch = driver.batch + 1
    following = (
        start(case, batch)
        if batch < case.batches_of(turn.number)
        else Driver(places.FINISHED, 0, NONE, NONE, 0, ())
    )
    state = state._replace(drivers=replaced(state.drivers, turn.number, following))
    state = turn.with_works(state, [NO_WORK] * len(state.partitions))
    yield turn.says(f"writes commits/{driver.batch}"), forget(case, state)
