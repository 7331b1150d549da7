"""Validates traces of the code: replays the requests of a process as actions of the model.

The module explores cases of the model to determine the order of a driver's actions. `_ACTIONS` maps
each request of a step to the actions that can include the request. A trace is valid if it is the
beginning of a path through these actions, because a process can be killed at any point. Invariant:
this module is not derived from the connector's code.

A trace contains no values. The failpoint matrix and the simulation check the values indirectly,
through the rows and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from integration.sink_model import driver, labels
from integration.sink_model.canonicalization import canonicalize
from integration.sink_model.cases import SMALL
from integration.sink_model.explore import initial_state, transitions
from pyspark_kafka.sink.exactly_once.steps import Step

Request = tuple[str, str]
"""The title of a step, and the name of a request."""

CASES: Final = frozenset(
    {
        "one-batch",
        "one-batch-failing",
        "one-batch-timing-out",
        "one-batch-with-a-lost-answer",
        "one-batch-without-rows",
        "one-batch-version-1-with-a-lost-answer",
        "one-batch-with-late-attempts",
    }
)
"""Cases that together contain all pairs of successive actions of a driver.

Exploring them takes seconds.
"""

_NOT_MODELED: Final = frozenset(
    each.title for each in (Step.PLAN_CHECK, Step.PLAN_REGISTER, Step.TASK_CHECK, Step.TASK_COUNT)
)
"""Steps that the model does not contain, because they change no transaction."""

_TASK_INIT, _TASK_LOOK, _TASK_PRODUCE, _TASK_GIVE_UP = -1, -2, -3, -4
"""The actions of a task attempt. The model combines the first two."""

_ATTEMPT: Final[Mapping[int, frozenset[int]]] = {
    _TASK_INIT: frozenset({_TASK_LOOK, _TASK_GIVE_UP}),
    _TASK_LOOK: frozenset({_TASK_PRODUCE, _TASK_GIVE_UP}),
    _TASK_PRODUCE: frozenset({_TASK_GIVE_UP}),
    _TASK_GIVE_UP: frozenset(),
}

_ROUNDS: Final[Mapping[int, int]] = {
    labels.PLAN_SWEEP_FENCE: labels.PLAN_SWEEP,
    labels.COMMIT_SWEEP_FENCE: labels.COMMIT_SWEEP,
    labels.ABORT_SWEEP_FENCE: labels.ABORT_SWEEP,
}
"""The model's lists are complete. The code lists ids repeatedly until there are none left."""

_STARTS: Final = frozenset({labels.PLAN_FENCE, labels.TASKS, labels.ABORT_LOOK, _TASK_INIT})
"""The first actions of planning, commit(), abort() and a task attempt."""

_LAST: Final = {
    labels.PLAN_FENCE: labels.TASKS,
    labels.TASKS: labels.COMMITTED,
}
"""The action that follows planning and commit() if they succeed, by their first action."""

_READ: Final = ("list_offsets", "read_log")
_WRITE: Final = ("produce", "flush")
_ROLL_FORWARD: Final = ("end_transactions", "describe_transactions", *_READ)


def _actions() -> dict[Request, frozenset[int]]:
    """Return a mapping from each request to the actions that can include the request."""
    found: dict[Request, set[int]] = {}

    def add(step: Step, requests: Iterable[str], *actions: int) -> None:
        for request in requests:
            found.setdefault((step.title, request), set()).update(actions)

    add(Step.PLAN_FENCE, ["init_producer_id"], labels.PLAN_FENCE)
    add(Step.PLAN_READ, [*_WRITE, *_READ], labels.PLAN_READ)
    add(Step.PLAN_ROLL_FORWARD, _ROLL_FORWARD, labels.PLAN_ROLL_FORWARD)
    add(Step.PLAN_MARK, _WRITE, labels.PLAN_MARK)
    add(Step.TASK_INIT, ["init_producer_id"], _TASK_INIT)
    add(Step.TASK_LOOK, ["describe_transactions"], _TASK_LOOK)
    add(Step.TASK_PRODUCE, [*_WRITE, "describe_topics"], _TASK_PRODUCE)
    add(Step.TASK_GIVE_UP, ["end_transactions"], _TASK_GIVE_UP)
    add(Step.COMMIT_VERIFY, ["describe_transactions"], labels.TASKS)
    add(Step.COMMIT_COMPARE, [*_WRITE, *_READ], labels.COMMIT_COMPARE)
    add(Step.COMMIT_COMPARE, _ROLL_FORWARD, labels.COMMIT_COMPARE_ROLL)
    decide = [*_WRITE, "send_offsets", "describe_transactions"]
    add(Step.COMMIT_DECIDE, decide, labels.COMMIT_DECIDE)
    add(Step.COMMIT_DECIDE, ["end_transactions"], labels.COMMIT_DECIDE_END)
    add(Step.COMMIT_ROLL_FORWARD, _ROLL_FORWARD, labels.COMMIT_ROLL_FORWARD)
    add(Step.COMMIT_MARK, _WRITE, labels.COMMIT_MARK, labels.COMMIT_COMPARE_MARK)
    add(Step.ABORT_LOOK, ["describe_transactions"], labels.ABORT_LOOK)
    add(Step.ABORT_LOOK, ["end_transactions"], labels.ABORT_LOOK_END)
    add(Step.ABORT_FENCE, ["init_producer_id"], labels.ABORT_FENCE)
    add(Step.ABORT_READ, [*_WRITE, *_READ], labels.ABORT_READ)
    for step, at in (
        (Step.PLAN_SWEEP, labels.PLAN_SWEEP),
        (Step.COMMIT_SWEEP, labels.COMMIT_SWEEP),
        (Step.ABORT_SWEEP, labels.ABORT_SWEEP),
    ):
        add(step, ["list_transactions", "describe_transactions"], at)
        add(step, ["describe_transactions"], at + 1)
        add(step, ["end_transactions", "init_producer_ids"], at + 2)
    return {request: frozenset(actions) for request, actions in found.items()}


_ACTIONS: Final = _actions()


@cache
def followers() -> Mapping[int, frozenset[int]]:
    """Return the actions that can follow each action, in the same process or in a later one."""
    found: dict[int, set[int]] = {at: {to} for at, to in _ROUNDS.items()}
    for case in SMALL:
        if case.name not in CASES:
            continue
        known = {canonicalize(initial_state(case))}
        frontier = list(known)
        while frontier:
            at = frontier.pop()
            for number, here in enumerate(at.drivers):
                for _, after in driver.steps(case, at, number):
                    found.setdefault(here.pc, set()).add(after.drivers[number].pc)
            for _, following in transitions(case, at):
                after = canonicalize(following)
                if after not in known:
                    known.add(after)
                    frontier.append(after)
    return {**{at: frozenset(to) for at, to in found.items()}, **_ATTEMPT}


def first_invalid(failpoints: Iterable[str], *, is_complete: bool = False) -> str | None:
    """Return the first step or request that the model does not allow, or None if all are allowed.

    `failpoints` contains the failpoints of one process, in order. `is_complete` is true if the
    process has ended without an error.
    """
    order = followers()
    at: frozenset[int] = frozenset()
    last = "nothing"
    end: int | None = None
    for failpoint in failpoints:
        step, _, rest = failpoint.rpartition(".before")[0].rpartition(".")
        if "." not in step or step in _NOT_MODELED:
            continue  # The end of a request, or the beginning or end of a step.
        actions = _ACTIONS.get((step, rest), frozenset())
        if at:
            reachable = at.union(*(order.get(each, frozenset()) for each in at))
            following = actions & reachable
        else:
            # The first action of commit() depends on whether a task has written rows.
            following = actions & (_STARTS | order[labels.TASKS])
            end = next((_LAST.get(s) for s in _STARTS if s in following), labels.COMMITTED)
        if not following:
            return f"{step}.{rest} after {last}"
        at, last = following, f"{step}.{rest}"
    is_early = end is not None and not any(end in order.get(each, ()) for each in at)
    return f"the end after {last}" if is_complete and is_early else None
