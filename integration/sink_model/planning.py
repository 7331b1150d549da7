"""Planning: steps 1 to 3, and those of roll-forward and marks inside of it.

Purpose: what the code's `planning.plan` does before the tasks of a batch. Invariant: as there; it
knows neither what its query is called nor which batch is next. What it must not know: tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

from integration.sink_model import places
from integration.sink_model.case import Violation
from integration.sink_model.cluster import UNKNOWN, WAIT, init_x, mark_finished, read_commit_topic
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.mutations import (
    FORGET_ROLL_FORWARD,
    MARK_DESPITE_LOST_TASKS,
    SKIP_THE_FENCE,
    TRUST_A_STALE_DECISION,
)
from integration.sink_model.rolling import request_of, rolled, what, with_outcome
from integration.sink_model.state import (
    INIT,
    MARK,
    NO_WORK,
    NONE,
    TO_REWRITE,
    Driver,
    Record,
    State,
    replaced,
)
from integration.sink_model.turn import Transitions, Turn


def fence(turn: Turn) -> Transitions:
    """`plan.fence`: InitProducerId(X)."""
    case = turn.case
    after = places.PLAN_READ
    if case.mutation == TRUST_A_STALE_DECISION:
        after = places.PLAN_ROLL_FORWARD
    if case.mutation == SKIP_THE_FENCE and turn.state.x.epoch != NONE:
        epoch = turn.state.x.epoch
        yield turn.says(f"takes up epoch {epoch}"), turn.to(turn.state, after, owner=epoch)
        return
    state, answer = init_x(case, turn.state)
    if answer == CONCURRENT:
        if state is not turn.state:
            yield turn.says("aborts the open decision"), state
        return
    epoch = state.x.epoch
    state = turn.to(state, after, owner=epoch)
    yield turn.says(f"InitProducerId(X) gets epoch {epoch}"), _rolls(turn, state)
    if turn.is_lossy and case.late_inits:
        text = turn.says(f"InitProducerId(X) gets epoch {epoch}; the request comes once more")
        yield text, _rolls(turn, turn.late(state, INIT, NONE))


def read(turn: Turn) -> Transitions:
    """`plan.read`: the decisions of all queries of X."""
    state, case = turn.state, turn.case
    decisions = read_commit_topic(case, state)
    unfinished = {
        (record.query, record.number)
        for record in decisions.values()
        if state.marks[record.query] < record.number
    }
    if case.mutation == FORGET_ROLL_FORWARD:
        unfinished = set()
    _check_marks(state, decisions)
    own = decisions.get(turn.query)
    after = places.PLAN_ROLL_FORWARD
    if case.mutation == TRUST_A_STALE_DECISION:
        after = places.PLAN_FENCE
    works = [
        NO_WORK._replace(to_do=tuple(each for each in part.entries if each[:2] in unfinished))
        for part in state.partitions
    ]
    driver = Driver(
        after,
        turn.driver.batch,
        turn.driver.owner,
        NONE if own is None else own.batch,
        0 if own is None else own.number,
        tuple(sorted(unfinished)),
    )
    state = state._replace(drivers=replaced(state.drivers, turn.number, driver))
    text = f"the last decided batch is {driver.last}, unfinished are {sorted(unfinished)}"
    yield turn.says(text), _rolls(turn, turn.with_works(state, works))


def _check_marks(state: State, decisions: Mapping[int, Record]) -> None:
    """A mark never comes without its decision, but for one that is not decided yet."""
    if any(each.is_open and each.query != NONE for each in state.log):
        return
    for query, number in enumerate(state.marks):
        if number > (decisions[query].number if query in decisions else 0):
            raise Violation(f"no decision seems gone: {number} of query {query} is finished")


def roll_forward(turn: Turn) -> Transitions:
    """`plan.roll_forward`: EndTxn(commit) for every entry, side by side."""
    for index, part in enumerate(turn.state.partitions):
        for entry in part.works[turn.number].to_do:
            state, outcome = rolled(turn.case, turn.state, index, entry)
            if outcome == WAIT:
                if state is not turn.state:
                    raise AssertionError("an end that waits has changed nothing")
                continue
            text = turn.says(what(index, entry, outcome))
            if outcome == UNKNOWN:
                yield f"{text}, so planning fails", turn.dies(state)
                continue
            state = _rolls(turn, with_outcome(turn, state, index, entry, outcome))
            yield text, state
            if turn.is_lossy:
                request = request_of(entry)
                state = turn.late_about_task(state, index, request)
                yield f"{text}; the request comes once more", state
                state = turn.late_about_task(turn.state, index, request)
                yield f"{text} in the end; no answer, so planning fails", turn.dies(state)


def _rolls(turn: Turn, state: State) -> State:
    """On to marks once every entry is known, and on to the sweep once all marks are set."""
    driver = state.drivers[turn.number]
    works = turn.works(state)
    if driver.at != places.PLAN_ROLL_FORWARD or any(work.to_do for work in works):
        return state
    lost = {entry.query for work in works for entry in work.lost}
    if turn.case.mutation == MARK_DESPITE_LOST_TASKS:
        lost = set()
    marks = tuple(each for each in driver.unfinished if each[0] not in lost)
    works = [
        NO_WORK._replace(
            role=TO_REWRITE if any(e.query == turn.query for e in work.lost) else NO_WORK.role
        )
        for work in works
    ]
    at = places.PLAN_MARK if marks else places.PLAN_SWEEP
    driver = driver._replace(at=at, unfinished=marks)
    state = state._replace(drivers=replaced(state.drivers, turn.number, driver))
    return turn.with_works(state, works)


def mark(turn: Turn) -> Transitions:
    """`plan.mark`: the finished mark of a decision that has no lost tasks."""
    (query, number), *others = turn.driver.unfinished
    after = turn.to(
        turn.state,
        places.PLAN_MARK if others else places.PLAN_SWEEP,
        unfinished=tuple(others),
    )
    text = turn.says(f"query {query}'s decision {number} is finished")
    yield text, mark_finished(turn.case, after, query, number)
    if turn.is_lossy:
        yield f"{text}; the mark comes late", turn.late(after, MARK, query, number)
