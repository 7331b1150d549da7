"""What is explored: how many drivers of which queries, the cluster's version, and what goes wrong.

Purpose: one value that says all of it. Invariant: two runs of one case explore the same states. What
it must not know: how the protocol goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from integration.sink_model.mutations import REUSE_IDS_ACROSS_RUNS
from integration.sink_model.state import NO_FAULTS, Faults, TaskId

BY_TIMEOUT = "its timeout"
BY_TASK = "a task's InitProducerId"
BY_SWEEP = "a sweep"
BY_ITSELF = "the attempt itself"
BY_ABORT = "abort()"
BY_ROLL_FORWARD = "roll-forward"
"""Who ended a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`queries` has the query of each driver, in the order in which they start; all share X.

    `batches` are written by each query, `version` is that of transactions. `slots_wrap`: all batches
    of a run use the same ids, as after sixteen task attempts. `halves`: a task's rows are two
    requests. `slow_decisions` and `slow_markers`: other things happen between the end of X's (of a
    task's) transaction and its markers.
    `late_inits`: a lost answer may also be that of an InitProducerId, of which a copy comes late.
    `empty` has a bit for each batch without rows, by partition. `mutation` breaks the protocol.
    """

    name: str
    queries: tuple[int, ...] = (0, 0)
    batches: int = 3
    version: int = 2
    slots_wrap: bool = False
    halves: bool = False
    slow_decisions: bool = False
    slow_markers: bool = False
    late_inits: bool = False
    empty: tuple[int, ...] = (0, 0)
    faults: Faults = NO_FAULTS
    mutation: str | None = None
    fresh_drivers: int = 0

    def batches_of(self, number: int) -> int:
        """How many batches a driver writes: a fresh one (see `liveness`) one more than others."""
        is_fresh = number >= len(self.queries) - self.fresh_drivers
        return self.batches + 1 if is_fresh else self.batches

    @property
    def query_count(self) -> int:
        return max(self.queries) + 1

    @property
    def ids_are_unique(self) -> bool:
        """Whether no two attempts of partitions ever have one id, and no request for one is late."""
        return not (self.slots_wrap or self.late_inits or self.mutation == REUSE_IDS_ACROSS_RUNS)

    def task_id(self, run: int, batch: int, attempt: int) -> TaskId:
        """The id of a task attempt."""
        slot = 0 if self.slots_wrap else batch
        return TaskId(0 if self.mutation == REUSE_IDS_ACROSS_RUNS else run, attempt, slot)

    def row(self, query: int, batch: int, half: int) -> int:
        """The bit of some rows of a partition: all of a batch, or a half of them."""
        return 1 << ((query * (self.batches + 1) + batch) * 2 + half)

    def rows(self, query: int, batch: int) -> int:
        """The bits of all rows of a batch in one partition."""
        first = self.row(query, batch, 0)
        return first | self.row(query, batch, 1) if self.halves else first

    def may_abort_what_is_decided(self, who: str) -> bool:
        """Whether a decided transaction may be lost to this, since the protocol finds it lost."""
        if who in (BY_TASK, BY_SWEEP):
            return self.slots_wrap or self.late_inits
        return who == BY_TIMEOUT


class Violation(Exception):  # noqa: N818 - what is found is no error of the program
    """A property does not hold. `lines` are what led there from the state that was looked at."""

    def __init__(self, what: str, lines: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.lines = tuple(lines)
