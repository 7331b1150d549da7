"""Names the protocol's steps, and defines the failpoints at these steps.

A step has the same name in the code, the log, docs/exactly-once-protocol.md, the model and the
failpoint tests. Invariant: `reach` does nothing unless the `PYSPARK_KAFKA_FAILPOINTS`
environment variable contains the name of a Python function as `module:function`. If the variable is
set, `reach` calls this function with the name of the failpoint.

The name of a failpoint is `step.before` or `step.after`. For a request within a step, the name is
`step.request.before` or `step.request.after` (see `failpoint_client`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Final

VARIABLE: Final = "PYSPARK_KAFKA_FAILPOINTS"


class Step(Enum):
    """A step as `(number, name)`. The numbers are those in docs/exactly-once-protocol.md."""

    PLAN_CHECK = (1, "plan.check")
    PLAN_REGISTER = (1, "plan.register")
    PLAN_FENCE = (1, "plan.fence")
    PLAN_READ = (2, "plan.read")
    PLAN_ROLL_FORWARD = (9, "plan.roll_forward")
    PLAN_MARK = (10, "plan.mark")
    PLAN_SWEEP = (3, "plan.sweep")
    TASK_CHECK = (5, "task.check")
    TASK_COUNT = (5, "task.count")
    TASK_INIT = (6, "task.init")
    TASK_LOOK = (6, "task.look")
    TASK_PRODUCE = (6, "task.produce")
    TASK_GIVE_UP = (6, "task.give_up")
    COMMIT_VERIFY = (7, "commit.verify")
    COMMIT_COMPARE = (7, "commit.compare")
    COMMIT_DECIDE = (8, "commit.decide")
    COMMIT_ROLL_FORWARD = (9, "commit.roll_forward")
    COMMIT_MARK = (10, "commit.mark")
    COMMIT_SWEEP = (11, "commit.sweep")
    ABORT_LOOK = (12, "abort.look")
    ABORT_FENCE = (12, "abort.fence")
    ABORT_READ = (12, "abort.read")
    ABORT_SWEEP = (12, "abort.sweep")

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def title(self) -> str:
        return self.value[1]


_inside: list[Step] = []
"""The steps that are running, innermost last. The protocol runs in one thread per process."""


def reach(failpoint: str) -> None:
    """Call the function in `PYSPARK_KAFKA_FAILPOINTS`, if set, with the name of the failpoint."""
    hook = os.environ.get(VARIABLE)
    if hook:
        _function(hook)(failpoint)


@contextmanager
def step(current: Step) -> Iterator[None]:
    """Run a block as a step. The `after` failpoint is reached only if the block succeeds."""
    reach(f"{current.title}.before")
    _inside.append(current)
    try:
        yield
    finally:
        _inside.pop()
    reach(f"{current.title}.after")


@contextmanager
def request(name: str) -> Iterator[None]:
    """Run a block that sends a request, with failpoints before and after the block.

    A request outside a step has no failpoints.
    """
    where = f"{_inside[-1].title}.{name}" if _inside else None
    if where:
        reach(f"{where}.before")
    yield
    if where:
        reach(f"{where}.after")


@cache
def _function(hook: str) -> Callable[[str], None]:
    module, _, name = hook.partition(":")
    function: Callable[[str], None] = getattr(import_module(module), name)
    return function
