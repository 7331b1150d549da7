"""A case, which is one configuration of the protocol's model (TLC calls it a model).

Defines the drivers, the queries, the transaction version and how many faults may occur. Invariant:
two runs of a case explore the same states.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from integration.sink_model.mutations import REUSE_UNFINISHED_IDS
from integration.sink_model.state import NO_FAULTS, Faults

BY_TIMEOUT = "a timeout"
BY_TASK = "the InitProducerId of a task"
BY_LATE_TASK = "the InitProducerId of a late task"
BY_DELAYED_INIT = "a delayed InitProducerId"
BY_SWEEP = "a sweep"
BY_ITSELF = "the attempt itself"
BY_ROLL_FORWARD = "roll-forward"
"""The possible reasons why a transaction ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration to check.

    - `queries`: the query of each driver, in the order in which the drivers start. All queries
      share one sink id.
    - `batches`: the number of batches per query.
    - `version`: the `transaction.version`.
    - `ids_wrap`: all plans of all runs have the same generation, unless an unfinished decision
      contains ids of this generation. If false, each plan has its own generation.
    - `reuses_unfinished_ids`: even ids of unfinished decisions are reused. The invariants must
      still hold.
    - `same_ids`: all attempts of a task have the same id. This can happen after Spark has
      repeated a stage.
    - `halves`: a task writes its rows in two requests.
    - `slow_decisions`: other actions can happen between an EndTxn for the sink id and its marker.
    - `slow_markers`: other actions can happen between an EndTxn for a task and its markers.
    - `late_inits`: a copy of an InitProducerId request can be delayed.
    - `empty`: one number per partition, in which each set bit represents a batch without rows.
    - `mutation`: the name of a deliberate error in the protocol.
    """

    name: str
    queries: tuple[int, ...] = (0, 0)
    batches: int = 3
    version: int = 2
    ids_wrap: bool = False
    reuses_unfinished_ids: bool = False
    same_ids: bool = False
    halves: bool = False
    slow_decisions: bool = False
    slow_markers: bool = False
    late_inits: bool = False
    empty: tuple[int, ...] = (0, 0)
    faults: Faults = NO_FAULTS
    mutation: str | None = None
    fresh_drivers: int = 0

    def batches_of(self, number: int) -> int:
        """Return the number of batches of a driver.

        A fresh driver (see `liveness`) writes one more batch.
        """
        is_fresh = number >= len(self.queries) - self.fresh_drivers
        return self.batches + 1 if is_fresh else self.batches

    @property
    def query_count(self) -> int:
        return max(self.queries) + 1

    @property
    def ids_are_unique(self) -> bool:
        """Whether each task attempt has its own id and no InitProducerId request is delayed."""
        return not (self.ids_wrap or self.same_ids or self.late_inits)

    def generation(self, run: int, batch: int, unfinished: Container[int]) -> int:
        """Return the generation of a plan.

        `unfinished` contains the generations of unfinished decisions.
        """
        if not self.ids_wrap:
            return run * (self.batches + 1) + batch
        if self.reuses_unfinished_ids or self.mutation == REUSE_UNFINISHED_IDS:
            return 0
        return next(each for each in count() if each not in unfinished)

    def row(self, query: int, batch: int, half: int) -> int:
        """Return the bit for the rows of a batch in a partition, or for one half of these rows."""
        return 1 << ((query * (self.batches + 1) + batch) * 2 + half)

    def rows(self, query: int, batch: int) -> int:
        """Return the bits for all rows of a batch in a partition."""
        first = self.row(query, batch, 0)
        return first | self.row(query, batch, 1) if self.halves else first

    def may_abort_decided(self, who: str) -> bool:
        """Return whether `who` (the cause of an abort) may abort a decided transaction.

        If this happens, the protocol detects that rows are lost. With transaction version 1, a
        stalled sweep may fence an attempt of a much later batch if the attempt has the same id.
        """
        if who == BY_LATE_TASK:
            return self.ids_wrap or self.same_ids
        if who == BY_SWEEP:
            return self.ids_wrap and self.version == 1
        return who == BY_TIMEOUT or (who == BY_DELAYED_INIT and self.late_inits)


NO_ROW_TWICE: Final = "no row is committed twice"
NO_ROW_MISSING: Final = "no completed batch has a row missing"
BATCHES_RISE: Final = "decided batches only increase"
DECIDED_STAYS: Final = "the sink never aborts a decided transaction"
OFFSETS_WITH_DECISION: Final = "offsets are committed with their decision or not at all"
FINISHES: Final = "a fresh driver always finishes"
NOTHING_OPEN: Final = "a fresh driver leaves nothing open"
NOTHING_OPEN_AFTER_SWEEP: Final = "no transaction is open after the sweep of its batch"
NEWER_OWNER_STAYS: Final = "abort() never fences a newer owner"
ABORT_IS_NOT_REJECTED: Final = "abort() is rejected only if its batch has another owner"
NO_DECISION_GONE: Final = "no decision becomes invisible"
"""The names of the invariants in `InvariantViolationError`."""


class InvariantViolationError(Exception):
    """An invariant is violated.

    `lines` are the last lines of the trace, which describe the actions after the checked state.
    """

    def __init__(self, what: str, lines: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.lines = tuple(lines)
