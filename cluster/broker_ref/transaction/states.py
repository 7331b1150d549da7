"""The states of a transactional id and their valid transitions.

    Empty            the id has a producer and no transaction
    Ongoing          a transaction is open, and partitions can be added
    PrepareCommit    will be committed; every partition receives a commit marker
    PrepareAbort     will be aborted; every partition receives an abort marker
    CompleteCommit   every partition has its commit marker
    CompleteAbort    every partition has its abort marker
    Dead             the id has expired, and its tombstone is being written

This module also defines the numbers that represent the states in the log. Invariant: Dead is final.
Kafka's PrepareEpochFence is omitted, because it is never stored: a single transition fences a
producer and aborts its transaction. Source: Kafka's `TransactionState`.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Final

from broker_ref.frozen import dataclass


class TransactionState(Enum):
    """A state of a transactional id. The value is the number stored in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        """Return the name used in responses to clients, such as `PrepareCommit`."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the transition table: source state, target state and reason."""

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
    Change(_EMPTY, _EMPTY, "a producer starts"),
    Change(_COMPLETE_COMMIT, _EMPTY, "a producer starts"),
    Change(_COMPLETE_ABORT, _EMPTY, "a producer starts"),
    Change(_EMPTY, _ONGOING, "the first partition is added"),
    Change(_COMPLETE_COMMIT, _ONGOING, "the first partition of the next transaction is added"),
    Change(_COMPLETE_ABORT, _ONGOING, "the first partition of the next transaction is added"),
    Change(_ONGOING, _ONGOING, "a partition is added"),
    Change(_ONGOING, _PREPARE_COMMIT, "the producer commits"),
    Change(_ONGOING, _PREPARE_ABORT, "the producer aborts, is fenced or times out"),
    Change(_EMPTY, _PREPARE_ABORT, "a transaction without partitions is aborted (TV2)"),
    Change(_COMPLETE_COMMIT, _PREPARE_ABORT, "a transaction without partitions is aborted (TV2)"),
    Change(_COMPLETE_ABORT, _PREPARE_ABORT, "a transaction without partitions is aborted (TV2)"),
    Change(_PREPARE_COMMIT, _COMPLETE_COMMIT, "every partition has its marker"),
    Change(_PREPARE_ABORT, _COMPLETE_ABORT, "every partition has its marker"),
    Change(_EMPTY, _DEAD, "the id expires"),
    Change(_COMPLETE_COMMIT, _DEAD, "the id expires"),
    Change(_COMPLETE_ABORT, _DEAD, "the id expires"),
)

TARGETS: Final = MappingProxyType(
    {
        state: frozenset(row.target for row in CHANGES if row.source is state)
        for state in TransactionState
    }
)
"""The valid target states of each state."""

PREPARED: Final = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""The states in which markers are being sent."""

COMPLETED: Final = frozenset({_COMPLETE_COMMIT, _COMPLETE_ABORT})
"""The states in which every partition has its marker."""

IDLE: Final = COMPLETED | {_EMPTY}
"""The states without an open transaction, in which the id can expire."""

OUTCOMES: Final = MappingProxyType(
    {_PREPARE_COMMIT: _COMPLETE_COMMIT, _PREPARE_ABORT: _COMPLETE_ABORT}
)
"""The completed state that follows each prepared state."""

STATE_TITLES: Final = frozenset({*(state.title for state in TransactionState), "PrepareEpochFence"})
"""The state names that filters accept. No transaction is in Kafka's PrepareEpochFence."""
