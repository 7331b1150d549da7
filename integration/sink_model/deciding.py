"""The driver's actions in commit(), which are steps 8 to 10 of the protocol.

The module `job` contains step 7, and the module `sweep` contains step 11. Models `commit.commit`.
Invariant: the actions use the epoch that planning obtained for the sink id.
"""

from __future__ import annotations

from integration.sink_model import labels
from integration.sink_model.cluster import (
    UNKNOWN,
    WAIT,
    end_decision,
    init_sink_id,
    mark_finished,
    produce_decision,
    read_commit_topic,
)
from integration.sink_model.coordinator import CONCURRENT, GRANTED
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.mutations import (
    AMBIGUOUS_DECISION_IS_SUCCESS,
    DECIDE_TWICE,
    DECIDE_UNDER_A_NEW_EPOCH,
    MARK_BEFORE_ROLLING_FORWARD,
    MARK_DESPITE_LOST_TASKS,
    ROLL_FORWARD_BEFORE_DECIDING,
)
from integration.sink_model.rolling import request_of, roll_forward_entry, what, with_outcome
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


def compare(action: DriverAction) -> Transitions:
    """Compare a replayed batch with its decision (`commit.compare`)."""
    state = action.state
    decision = read_commit_topic(action.case, state).get(action.query)
    if decision is None or decision.number != action.driver.number:
        text = "the decision has changed, so Spark calls abort()"
        yield action.describe(text), action.go_to(state, labels.ABORT_LOOK)
        return
    name = (action.query, decision.number)
    is_finished = state.marks[action.query] >= decision.number
    works = [
        part.works[action.number]._replace(
            to_do=() if is_finished else tuple(e for e in part.entries if e[:2] == name)
        )
        for part in state.partitions
    ]
    after = action.go_to(
        action.with_works(state, works), labels.COMMIT_COMPARE_ROLL, unfinished=(name,)
    )
    text = "the decision is finished" if is_finished else "the decision is not finished"
    yield action.describe(text), _after_comparison(action, after, is_finished=is_finished)


def _after_comparison(action: DriverAction, state: State, *, is_finished: bool = False) -> State:
    """Decide the batch again if the tasks rewrote exactly the rows of the lost transactions."""
    works = action.works(state)
    if any(work.to_do for work in works):
        return state
    lost = [bool(work.lost) for work in works]
    state = action.with_works(state, [work._replace(lost=()) for work in works])
    if lost != [work.message != NO_MESSAGE for work in works]:
        return action.go_to(state, labels.ABORT_LOOK)
    if any(lost):
        return action.go_to(state, labels.COMMIT_DECIDE)
    return action.go_to(state, labels.COMMITTED if is_finished else labels.COMMIT_COMPARE_MARK)


def decide(action: DriverAction) -> Transitions:
    """Produce the decision in a transaction of the sink id (`commit.decide`)."""
    case, state, driver = action.case, action.state, action.driver
    owner = driver.owner
    if case.mutation == DECIDE_UNDER_A_NEW_EPOCH:
        state, response = init_sink_id(case, state)
        if response == CONCURRENT:
            return
        owner = state.sink_id.epoch
    number = driver.number + 1
    works = action.works(state)
    supplements = any(work.role == TO_REWRITE for work in works)
    decision = Record(action.query, number, driver.batch, action.number, supplements, True)
    entries: list[Entry | None] = []
    for part, work in zip(state.partitions, works, strict=True):
        entry = None if work.message == NO_MESSAGE else work.message
        if entry is None and supplements and work.role == TO_SKIP:
            old = (action.query, driver.number)
            entry = next((each for each in part.entries if each[:2] == old), None)
        entries.append(None if entry is None else entry._replace(query=action.query, number=number))
    after = produce_decision(state, owner, decision, tuple(entries))
    if after is None:
        yield (
            action.describe("the write is rejected, so Spark calls abort()"),
            action.go_to(state, labels.ABORT_LOOK),
        )
        return
    after = action.go_to(
        after, labels.COMMIT_DECIDE_END, owner=owner, unfinished=((action.query, number),)
    )
    yield action.describe(f"writes decision {number} with epoch {owner}"), after


def end(action: DriverAction) -> Transitions:
    """Send EndTxn(commit) for the sink id (`commit.decide`).

    If the request succeeds, it commits the batch.
    """
    case, owner = action.case, action.driver.owner
    state, response = end_decision(case, action.state, owner, is_commit=True)
    if response == GRANTED or case.mutation == AMBIGUOUS_DECISION_IS_SUCCESS:
        yield action.describe("EndTxn(sink id, commit) succeeds"), _decided(action, state)
        if action.may_lose_response:
            lost = action.spend_lost_response(state)
            yield (
                action.describe("EndTxn(sink id, commit) succeeds, but the response is lost"),
                _undetermined(action, lost),
            )
    else:
        yield action.describe("EndTxn(sink id, commit) is rejected"), _undetermined(action, state)
    if action.may_lose_response:
        late = action.delay(action.state, END_COMMIT, owner)
        yield (
            action.describe("EndTxn(sink id, commit) is delayed and gets no response"),
            _undetermined(action, late),
        )


def _undetermined(action: DriverAction, state: State) -> State:
    """Handle an unknown outcome: commit() raises an error, so Spark calls abort()."""
    if action.case.mutation == DECIDE_TWICE:
        state, response = init_sink_id(action.case, state, action.driver.owner)
        if response == GRANTED:
            return action.go_to(state, labels.COMMIT_DECIDE, owner=state.sink_id.epoch)
    if action.case.mutation == AMBIGUOUS_DECISION_IS_SUCCESS:
        return _decided(action, state)
    return action.go_to(state, labels.ABORT_LOOK)


def _decided(action: DriverAction, state: State) -> State:
    """Start to roll forward all entries of the decision."""
    if action.case.mutation == ROLL_FORWARD_BEFORE_DECIDING:
        return action.go_to(state, labels.COMMIT_MARK)
    ((query, number),) = action.driver.unfinished
    works = [
        NO_WORK._replace(
            to_do=tuple(each for each in part.entries if each[:2] == (query, number)),
            message=part.works[action.number].message,
        )
        for part in state.partitions
    ]
    if action.case.mutation == MARK_BEFORE_ROLLING_FORWARD:
        state = mark_finished(action.case, state, query, number)
    return _after_roll_forward(
        action, action.go_to(action.with_works(state, works), labels.COMMIT_ROLL_FORWARD)
    )


def roll_forward(action: DriverAction) -> Transitions:
    """Send EndTxn(commit) for all entries, in any order (`commit.roll_forward`).

    The `commit.compare` step also uses this function.
    """
    for index, part in enumerate(action.state.partitions):
        for entry in part.works[action.number].to_do:
            state, outcome = roll_forward_entry(action.case, action.state, index, entry)
            if outcome == WAIT:
                continue
            text = action.describe(what(index, entry, outcome))
            if outcome == UNKNOWN:
                yield f"{text}, so Spark calls abort()", action.go_to(state, labels.ABORT_LOOK)
                continue
            state = _after_roll_forward(action, with_outcome(action, state, index, entry, outcome))
            yield text, state
            if action.may_lose_response:
                request = request_of(entry)
                state = action.delay_for_task(state, index, request)
                yield f"{text}; a copy is delayed", state
                state = action.delay_for_task(action.state, index, request)
                state = action.go_to(state, labels.ABORT_LOOK)
                yield f"{text}, but delayed without a response, so Spark calls abort()", state


def _after_roll_forward(action: DriverAction, state: State) -> State:
    """When all outcomes are known, continue with marking the decision as finished.

    If entries are lost, commit() raises an error.
    """
    if action.driver.pc == labels.COMMIT_COMPARE_ROLL:
        return _after_comparison(action, state)
    works = action.works(state)
    if any(work.to_do for work in works):
        return state
    if action.case.mutation == ROLL_FORWARD_BEFORE_DECIDING:
        return action.go_to(state, labels.COMMIT_DECIDE)
    is_lost = any(work.lost for work in works)
    if is_lost and action.case.mutation != MARK_DESPITE_LOST_TASKS:
        state = action.with_works(state, [work._replace(lost=()) for work in works])
        return action.go_to(state, labels.ABORT_LOOK)
    return action.go_to(action.with_works(state, [NO_WORK] * len(works)), labels.COMMIT_MARK)


def mark(action: DriverAction) -> Transitions:
    """Write the finished mark (`commit.mark`)."""
    ((query, number),) = action.driver.unfinished
    is_replay = action.driver.pc == labels.COMMIT_COMPARE_MARK
    at = labels.COMMITTED if is_replay else labels.COMMIT_SWEEP
    after = action.go_to(action.state, at, owner=NONE if is_replay else None, unfinished=())
    text = action.describe(f"decision {number} is finished")
    yield text, mark_finished(action.case, after, query, number)
    if action.may_lose_response:
        yield f"{text}; the mark is delayed", action.delay(after, MARK, query, number)
