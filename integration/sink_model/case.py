"""A case: the model's configuration (TLC would call it a model).

Purpose: define drivers, queries, transaction version and fault budget. Invariant: two runs of a
case explore the same states. What it must not know: the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from integration.sink_model.mutations import REUSE_IDS_ACROSS_RUNS
from integration.sink_model.state import NO_FAULTS, Faults, TaskId

BY_TIMEOUT = "a timeout"
BY_TASK = "the InitProducerId of a task"
BY_SWEEP = "a sweep"
BY_ITSELF = "the attempt itself"
BY_ABORT = "abort()"
BY_ROLL_FORWARD = "roll-forward"
"""The cause of a transaction's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`queries` is the query of each driver, in the order of their starts; all share one sink id.

    `batches` is the number of batches per query; `version` is `transaction.version`. `slots_wrap`:
    all batches of a run use the same task ids, as after sixteen task attempts. `halves`: a task
    writes its rows in two requests. `slow_decisions` and `slow_markers`: other actions can happen
    between EndTxn of the sink id (of a task id) and the markers. `late_inits`: a copy of an
    InitProducerId may be delayed. `empty` has a bit per batch without rows, by partition.
    `mutation` names a deliberate error in the protocol.
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
        """Return the number of batches of a driver; a fresh one (see `liveness`)
        writes one more.
        """
        is_fresh = number >= len(self.queries) - self.fresh_drivers
        return self.batches + 1 if is_fresh else self.batches

    @property
    def query_count(self) -> int:
        return max(self.queries) + 1

    @property
    def ids_are_unique(self) -> bool:
        """Whether no two task attempts share an id, and no InitProducerId for one is delayed."""
        return not (self.slots_wrap or self.late_inits or self.mutation == REUSE_IDS_ACROSS_RUNS)

    def task_id(self, run: int, batch: int, attempt: int) -> TaskId:
        """Return the id of a task attempt."""
        slot = 0 if self.slots_wrap else batch
        return TaskId(0 if self.mutation == REUSE_IDS_ACROSS_RUNS else run, attempt, slot)

    def row(self, query: int, batch: int, half: int) -> int:
        """Return the bit of a batch's rows in a partition, or of one half of them."""
        return 1 << ((query * (self.batches + 1) + batch) * 2 + half)

    def rows(self, query: int, batch: int) -> int:
        """Return the bits of all rows of a batch in a partition."""
        first = self.row(query, batch, 0)
        return first | self.row(query, batch, 1) if self.halves else first

    def may_abort_decided(self, who: str) -> bool:
        """Whether this cause may abort a decided transaction; the protocol detects the loss."""
        if who in (BY_TASK, BY_SWEEP):
            return self.slots_wrap or self.late_inits
        return who == BY_TIMEOUT


NO_ROW_TWICE: Final = "no row is committed twice"
NO_ROW_MISSING: Final = "no completed batch has a row missing"
BATCHES_RISE: Final = "decided batches only increase"
DECIDED_STAYS: Final = "the sink never aborts a decided transaction"
OFFSETS_WITH_DECISION: Final = "offsets commit with their decision or not at all"
FINISHES: Final = "a fresh driver always finishes"
NOTHING_OPEN: Final = "a fresh driver leaves nothing open"
NEWER_OWNER_STAYS: Final = "abort() never fences a newer owner"
NO_DECISION_GONE: Final = "no decision becomes invisible"
"""The invariants, as `InvariantViolationError` names them."""


class InvariantViolationError(Exception):
    """An invariant does not hold. `lines` are the end of the trace, after the checked state."""

    def __init__(self, what: str, lines: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.lines = tuple(lines)
