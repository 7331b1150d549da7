"""Commit: steps 8 to 10. (Step 7 stands at the end of the job, step 11 is a sweep.)

Purpose: what the code's `commit.commit` does with the messages of all tasks. Invariant: as there;
it acts under the epoch of X that planning got. What it must not know: tasks.
"""

from __future__ import annotations

from integration.sink_model import places
from integration.sink_model.cluster import (
    UNKNOWN,
    WAIT,
    end_x,
    init_x,
    mark_finished,
    produce_decision,
    read_commit_topic,
)
from integration.sink_model.coordinator import CONCURRENT, GRANTED
from integration.sink_model.mutations import (
    AMBIGUOUS_DECISION_IS_SUCCESS,
    DECIDE_TWICE,
    DECIDE_UNDER_A_NEW_EPOCH,
    MARK_BEFORE_ROLLING_FORWARD,
    MARK_DESPITE_LOST_TASKS,
    ROLL_FORWARD_BEFORE_DECIDING,
)
from integration.sink_model.rolling import request_of, rolled, what, with_outcome
from integration.sink_model.state import (
    END_COMMIT,
    MARK,
    NO_MESSAGE,
    NO_WORK,
    NONE,
    TO_REWRITE,
    TO_SKIP,
    Entry,
    Record,
    State,
)
from integration.sink_model.turn import Transitions, Turn


def compare(turn: Turn) -> Transitions:
    """`commit.compare`: a batch that was decided before is looked at once more."""
    state = turn.state
    decision = read_commit_topic(turn.case, state).get(turn.query)
    if decision is None or decision.number != turn.driver.number:
        text = "the decision is another one by now, so abort()"
        yield turn.says(text), turn.to(state, places.ABORT_LOOK)
        return
    name = (turn.query, decision.number)
    is_finished = state.marks[turn.query] >= decision.number
    works = [
        part.works[turn.number]._replace(
            to_do=() if is_finished else tuple(e for e in part.entries if e[:2] == name)
        )
        for part in state.partitions
    ]
    after = turn.to(turn.with_works(state, works), places.COMMIT_COMPARE_ROLL, unfinished=(name,))
    text = "the decision is finished" if is_finished else "the decision is not finished"
    yield turn.says(text), _compared(turn, after, is_finished=is_finished)


def _compared(turn: Turn, state: State, *, is_finished: bool = False) -> State:
    """On to the next decision where what is lost is just what was written again."""
    works = turn.works(state)
    if any(work.to_do for work in works):
        return state
    lost = [bool(work.lost) for work in works]
    state = turn.with_works(state, [work._replace(lost=()) for work in works])
    if lost != [work.message != NO_MESSAGE for work in works]:
        return turn.to(state, places.ABORT_LOOK)
    if any(lost):
        return turn.to(state, places.COMMIT_DECIDE)
    return turn.to(state, places.COMMITTED if is_finished else places.COMMIT_COMPARE_MARK)


def decide(turn: Turn) -> Transitions:
    """`commit.decide`: the decision is written, in a transaction of X."""
    case, state, driver = turn.case, turn.state, turn.driver
    owner = driver.owner
    if case.mutation == DECIDE_UNDER_A_NEW_EPOCH:
        state, answer = init_x(case, state)
        if answer == CONCURRENT:
            return
        owner = state.x.epoch
    number = driver.number + 1
    works = turn.works(state)
    supplements = any(work.role == TO_REWRITE for work in works)
    decision = Record(turn.query, number, driver.batch, turn.number, supplements, True)
    entries: list[Entry | None] = []
    for part, work in zip(state.partitions, works, strict=True):
        entry = None if work.message == NO_MESSAGE else work.message
        if entry is None and supplements and work.role == TO_SKIP:
            old = (turn.query, driver.number)
            entry = next((each for each in part.entries if each[:2] == old), None)
        entries.append(None if entry is None else entry._replace(query=turn.query, number=number))
    after = produce_decision(state, owner, decision, tuple(entries))
    if after is None:
        yield turn.says("writing is refused, so abort()"), turn.to(state, places.ABORT_LOOK)
        return
    after = turn.to(
        after, places.COMMIT_DECIDE_END, owner=owner, unfinished=((turn.query, number),)
    )
    yield turn.says(f"writes decision {number} under epoch {owner}"), after


def end(turn: Turn) -> Transitions:
    """`commit.decide`: EndTxn(X, commit), the atomic point."""
    case, owner = turn.case, turn.driver.owner
    state, answer = end_x(case, turn.state, owner)
    if answer == GRANTED or case.mutation == AMBIGUOUS_DECISION_IS_SUCCESS:
        yield turn.says("EndTxn(X, commit) is answered NONE"), _decided(turn, state)
        if turn.is_lossy:
            lost = turn.lossy(state)
            yield turn.says("EndTxn(X, commit) is done, but not answered"), _unsure(turn, lost)
    else:
        yield turn.says("EndTxn(X, commit) is refused"), _unsure(turn, state)
    if turn.is_lossy:
        late = turn.late(turn.state, END_COMMIT, owner)
        yield turn.says("EndTxn(X, commit) is late, and not answered"), _unsure(turn, late)


def _unsure(turn: Turn, state: State) -> State:
    """It may be decided or not: commit() raises, so Spark calls abort()."""
    if turn.case.mutation == DECIDE_TWICE:
        state, answer = init_x(turn.case, state, turn.driver.owner)
        if answer == GRANTED:
            return turn.to(state, places.COMMIT_DECIDE, owner=state.x.epoch)
    if turn.case.mutation == AMBIGUOUS_DECISION_IS_SUCCESS:
        return _decided(turn, state)
    return turn.to(state, places.ABORT_LOOK)


def _decided(turn: Turn, state: State) -> State:
    """All entries of the decision are to be rolled forward."""
    if turn.case.mutation == ROLL_FORWARD_BEFORE_DECIDING:
        return turn.to(state, places.COMMIT_MARK)
    ((query, number),) = turn.driver.unfinished
    works = [
        NO_WORK._replace(
            to_do=tuple(each for each in part.entries if each[:2] == (query, number)),
            message=part.works[turn.number].message,
        )
        for part in state.partitions
    ]
    if turn.case.mutation == MARK_BEFORE_ROLLING_FORWARD:
        state = mark_finished(turn.case, state, query, number)
    return _rolls(turn, turn.to(turn.with_works(state, works), places.COMMIT_ROLL_FORWARD))


def roll_forward(turn: Turn) -> Transitions:
    """`commit.roll_forward` and `commit.compare`: EndTxn(commit) for every entry, side by side."""
    for index, part in enumerate(turn.state.partitions):
        for entry in part.works[turn.number].to_do:
            state, outcome = rolled(turn.case, turn.state, index, entry)
            if outcome == WAIT:
                continue
            text = turn.says(what(index, entry, outcome))
            if outcome == UNKNOWN:
                yield f"{text}, so abort()", turn.to(state, places.ABORT_LOOK)
                continue
            state = _rolls(turn, with_outcome(turn, state, index, entry, outcome))
            yield text, state
            if turn.is_lossy:
                request = request_of(entry)
                state = turn.late_about_task(state, index, request)
                yield f"{text}; the request comes once more", state
                state = turn.late_about_task(turn.state, index, request)
                state = turn.to(state, places.ABORT_LOOK)
                yield f"{text} in the end; no answer, so abort()", state


def _rolls(turn: Turn, state: State) -> State:
    """On to the mark once every entry is known; with lost ones commit() raises."""
    if turn.driver.at == places.COMMIT_COMPARE_ROLL:
        return _compared(turn, state)
    works = turn.works(state)
    if any(work.to_do for work in works):
        return state
    if turn.case.mutation == ROLL_FORWARD_BEFORE_DECIDING:
        return turn.to(state, places.COMMIT_DECIDE)
    is_lost = any(work.lost for work in works)
    if is_lost and turn.case.mutation != MARK_DESPITE_LOST_TASKS:
        state = turn.with_works(state, [work._replace(lost=()) for work in works])
        return turn.to(state, places.ABORT_LOOK)
    return turn.to(turn.with_works(state, [NO_WORK] * len(works)), places.COMMIT_MARK)


def mark(turn: Turn) -> Transitions:
    """`commit.mark`: the finished mark."""
    ((query, number),) = turn.driver.unfinished
    is_replay = turn.driver.at == places.COMMIT_COMPARE_MARK
    at = places.COMMITTED if is_replay else places.COMMIT_SWEEP
    after = turn.to(turn.state, at, owner=NONE if is_replay else None, unfinished=())
    text = turn.says(f"decision {number} is finished")
    yield text, mark_finished(turn.case, after, query, number)
    if turn.is_lossy:
        yield f"{text}; the mark comes late", turn.late(after, MARK, query, number)
