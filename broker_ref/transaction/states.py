"""The states of a transactional id, and every way from one to another.

    Empty            a producer is known, and has no transaction
    Ongoing          a transaction has begun: partitions may be added to it
    PrepareCommit    it is decided: what the log has, every partition gets as a commit marker
    PrepareAbort     it is decided: every partition gets an abort marker
    CompleteCommit   every partition has its commit marker
    CompleteAbort    every partition has its abort marker
    Dead             the id has expired: its tombstone is being written

Purpose: the table that a change of state is checked against, and the numbers under which the log
keeps states. Invariant: Dead is final. Kafka's PrepareEpochFence is never kept anywhere, so it is
no state here: fencing a producer and aborting its transaction are one step. What it must not know:
producers, partitions, time. Source: Kafka's `TransactionState`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final


class TransactionState(Enum):
    """A state, by the number that the log has."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        """The name that Kafka tells clients, as in `PrepareCommit`."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the table: from where, to where, and when."""

    source: TransactionState
    target: TransactionState
    when: str


_EMPTY: Final = TransactionState.EMPTY
_ONGOING: Final = TransactionState.ONGOING
_PREPARE_COMMIT: Final = TransactionState.PREPARE_COMMIT
_PREPARE_ABORT: Final = TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT
_COMPLETE_ABORT: Final = TransactionState.COMPLETE_ABORT
_DEAD: Final = TransactionState.DEAD

CHANGES: Final = (
    Change(_EMPTY, _EMPTY, "a producer starts, again or anew"),
    Change(_COMPLETE_COMMIT, _EMPTY, "a producer starts, again or anew"),
    Change(_COMPLETE_ABORT, _EMPTY, "a producer starts, again or anew"),
    Change(_EMPTY, _ONGOING, "the first partition is added"),
    Change(_COMPLETE_COMMIT, _ONGOING, "the first partition of the next transaction is added"),
    Change(_COMPLETE_ABORT, _ONGOING, "the first partition of the next transaction is added"),
    Change(_ONGOING, _ONGOING, "a partition is added"),
    Change(_ONGOING, _PREPARE_COMMIT, "the producer commits"),
    Change(_ONGOING, _PREPARE_ABORT, "the producer aborts or is fenced, or the time is over"),
    Change(_EMPTY, _PREPARE_ABORT, "aborts what no partition has heard of (version 2)"),
    Change(_COMPLETE_COMMIT, _PREPARE_ABORT, "aborts what no partition has heard of (version 2)"),
    Change(_COMPLETE_ABORT, _PREPARE_ABORT, "aborts what no partition has heard of (version 2)"),
    Change(_PREPARE_COMMIT, _COMPLETE_COMMIT, "every partition has its marker"),
    Change(_PREPARE_ABORT, _COMPLETE_ABORT, "every partition has its marker"),
    Change(_EMPTY, _DEAD, "not used for so long that it expires"),
    Change(_COMPLETE_COMMIT, _DEAD, "not used for so long that it expires"),
    Change(_COMPLETE_ABORT, _DEAD, "not used for so long that it expires"),
)

TARGETS: Final = MappingProxyType(
    {
        state: frozenset(row.target for row in CHANGES if row.source is state)
        for state in TransactionState
    }
)
"""Where each state can lead, from the table."""

PREPARED: Final = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""Decided, and markers are on their way."""

COMPLETED: Final = frozenset({_COMPLETE_COMMIT, _COMPLETE_ABORT})
"""Over, with every marker written."""

IDLE: Final = COMPLETED | {_EMPTY}
"""Without a transaction, so that the id may expire."""

OUTCOMES: Final = MappingProxyType(
    {_PREPARE_COMMIT: _COMPLETE_COMMIT, _PREPARE_ABORT: _COMPLETE_ABORT}
)
"""What a decision leads to."""

STATE_TITLES: Final = frozenset({*(state.title for state in TransactionState), "PrepareEpochFence"})
"""The names that filters may have; Kafka knows of one more, in which no transaction is listed."""
