"""The driver's actions in planning, which are steps 1 to 3 of the protocol.

Models `planning.plan`. Invariant: no action uses the driver's query or its next batch, except to
select the query's last decision.
"""

from __future__ import annotations

from collections.abc import Mapping

from integration.sink_model import labels
from integration.sink_model.case import NO_DECISION_GONE, InvariantViolationError
from integration.sink_model.cluster import (
    UNKNOWN,
    WAIT,
    can_decide,
    init_sink_id,
    mark_finished,
    read_commit_topic,
)
from integration.sink_model.coordinator import CONCURRENT
from integration.sink_model.driver_action import DriverAction, Transitions
from integration.sink_model.mutations import (
    FORGET_ROLL_FORWARD,
    MARK_DESPITE_LOST_TASKS,
    SKIP_THE_FENCE,
    SPARE_DECIDED_IDS,
    TRUST_A_STALE_DECISION,
)
from integration.sink_model.rolling import request_of, roll_forward_entry, what, with_outcome
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


def fence(action: DriverAction) -> Transitions:
    """Send InitProducerId for the sink id (`plan.fence`)."""
    case = action.case
    after = labels.PLAN_READ
    if case.mutation == TRUST_A_STALE_DECISION:
        after = labels.PLAN_ROLL_FORWARD
    epoch = action.state.sink_id.epoch
    if case.mutation == SKIP_THE_FENCE and epoch != NONE and can_decide(action.state, epoch):
        yield (
            action.describe(f"reuses epoch {epoch}"),
            action.go_to(action.state, after, owner=epoch),
        )
        return
    state, response = init_sink_id(case, action.state)
    if response == CONCURRENT:
        if state is not action.state:
            yield action.describe("aborts the open decision"), state
        return
    epoch = state.sink_id.epoch
    state = action.go_to(state, after, owner=epoch)
    yield (
        action.describe(f"InitProducerId(sink id) returns epoch {epoch}"),
        _after_roll_forward(action, state),
    )
    if action.may_lose_response and case.late_inits:
        text = action.describe(f"InitProducerId(sink id) returns epoch {epoch}; a copy is delayed")
        yield text, _after_roll_forward(action, action.delay(state, INIT, NONE))


def read(action: DriverAction) -> Transitions:
    """Read the decisions of all queries with this sink id (`plan.read`)."""
    state, case = action.state, action.case
    decisions = read_commit_topic(case, state)
    unfinished = {
        (record.query, record.number)
        for record in decisions.values()
        if state.marks[record.query] < record.number
    }
    if case.mutation == FORGET_ROLL_FORWARD:
        unfinished = set()
    _check_marks(state, decisions)
    own = decisions.get(action.query)
    after = labels.PLAN_ROLL_FORWARD
    if case.mutation == TRUST_A_STALE_DECISION:
        after = labels.PLAN_FENCE
    works = [
        NO_WORK._replace(to_do=tuple(each for each in part.entries if each[:2] in unfinished))
        for part in state.partitions
    ]
    if case.mutation == SPARE_DECIDED_IDS:
        works = [w._replace(spare=tuple(each.task_id for each in w.to_do)) for w in works]
    used = {entry.task_id.generation for work in works for entry in work.to_do}
    driver = Driver(
        after,
        action.driver.batch,
        action.driver.owner,
        NONE if own is None else own.batch,
        0 if own is None else own.number,
        tuple(sorted(unfinished)),
        case.generation(action.number, action.driver.batch, used),
    )
    state = state._replace(drivers=replaced(state.drivers, action.number, driver))
    text = f"the last decided batch is {driver.last}; unfinished: {sorted(unfinished)}"
    yield action.describe(text), _after_roll_forward(action, action.with_works(state, works))


def _check_marks(state: State, decisions: Mapping[int, Record]) -> None:
    """Check that every decision that is marked as finished is visible in the commit topic."""
    if any(each.is_open and each.query != NONE for each in state.log):
        return
    for query, number in enumerate(state.marks):
        if number > (decisions[query].number if query in decisions else 0):
            raise InvariantViolationError(
                f"{NO_DECISION_GONE}: decision {number} of query {query} is marked as finished"
            )


def roll_forward(action: DriverAction) -> Transitions:
    """Send EndTxn(commit) for every entry, in any order (`plan.roll_forward`)."""
    for index, part in enumerate(action.state.partitions):
        for entry in part.works[action.number].to_do:
            state, outcome = roll_forward_entry(action.case, action.state, index, entry)
            if outcome == WAIT:
                if state is not action.state:
                    raise AssertionError("an EndTxn with outcome WAIT must not change the state")
                continue
            text = action.describe(what(index, entry, outcome))
            if outcome == UNKNOWN:
                yield f"{text}, so planning fails", action.fail(state)
                continue
            state = _after_roll_forward(action, with_outcome(action, state, index, entry, outcome))
            yield text, state
            if action.may_lose_response:
                request = request_of(entry)
                state = action.delay_for_task(state, index, request)
                yield f"{text}; a copy is delayed", state
                state = action.delay_for_task(action.state, index, request)
                yield (
                    f"{text}, but delayed without a response, so planning fails",
                    action.fail(state),
                )


def _after_roll_forward(action: DriverAction, state: State) -> State:
    """If all outcomes are known, proceed to mark decisions as finished, or else to sweep."""
    driver = state.drivers[action.number]
    works = action.works(state)
    if driver.pc != labels.PLAN_ROLL_FORWARD or any(work.to_do for work in works):
        return state
    lost = {entry.query for work in works for entry in work.lost}
    if action.case.mutation == MARK_DESPITE_LOST_TASKS:
        lost = set()
    marks = tuple(each for each in driver.unfinished if each[0] not in lost)
    works = [
        NO_WORK._replace(
            role=TO_REWRITE if any(e.query == action.query for e in work.lost) else NO_WORK.role,
            spare=work.spare,
        )
        for work in works
    ]
    pc = labels.PLAN_MARK if marks else labels.PLAN_SWEEP
    driver = driver._replace(pc=pc, unfinished=marks)
    state = state._replace(drivers=replaced(state.drivers, action.number, driver))
    return action.with_works(state, works)


def mark(action: DriverAction) -> Transitions:
    """Mark a decision that has no lost rows as finished (`plan.mark`)."""
    (query, number), *others = action.driver.unfinished
    after = action.go_to(
        action.state,
        labels.PLAN_MARK if others else labels.PLAN_SWEEP,
        unfinished=tuple(others),
    )
    text = action.describe(f"marks decision {number} of query {query} as finished")
    yield text, mark_finished(action.case, after, query, number)
    if action.may_lose_response:
        yield f"{text}; the mark is delayed", action.delay(after, MARK, query, number)
