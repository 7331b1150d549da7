"""What a leader knows of the in-sync replicas, and how a change of them comes about (KIP-497).

      Committed ──propose_expand──> PendingExpand ──┐
          │                                         ├── confirmed, or new metadata ──> Committed
          └─────propose_shrink────> PendingShrink ──┘
                                       │  refused, nothing was changed ──> the Committed before

    state            isr (committed)    maximal isr (counts for the high watermark)
    Committed        the controller's   the same
    PendingExpand    that before        with the joining replica: stricter, so safe if refused
    PendingShrink    that before        that before: the leaving ones count until confirmed

Purpose: the states as values, and what each error of AlterPartition means for them. Invariant: no
change is proposed while one is pending, so one AlterPartition of a partition is under way at most.
What it must not know: logs, offsets, and how the controller is reached.
Source: Kafka's `PartitionState`, `Partition.handleAlterPartitionError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode


class Reaction(Enum):
    """What becomes of a pending change that the controller refused."""

    RESET = "back to the committed state: the controller says that nothing was changed"
    AWAIT_METADATA = "stay pending: the metadata will tell what is true"
    RETRY = "send it again"


REACTIONS: Final[Mapping[ErrorCode, Reaction]] = MappingProxyType(
    {
        ErrorCode.operation_not_attempted: Reaction.RESET,
        ErrorCode.ineligible_replica: Reaction.RESET,
        ErrorCode.unknown_topic_or_partition: Reaction.AWAIT_METADATA,
        ErrorCode.unknown_topic_id: Reaction.AWAIT_METADATA,
        ErrorCode.fenced_leader_epoch: Reaction.AWAIT_METADATA,
        ErrorCode.invalid_update_version: Reaction.AWAIT_METADATA,
        ErrorCode.invalid_request: Reaction.AWAIT_METADATA,
        ErrorCode.new_leader_elected: Reaction.AWAIT_METADATA,
    }
)


def reaction_to(error_code: ErrorCode) -> Reaction:
    """What to do about an error of AlterPartition; the errors not in the table are passing ones."""
    return REACTIONS.get(error_code, Reaction.RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The controller's last word."""

    isr: frozenset[int]

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingExpand:
    """`joining` is proposed to be in sync."""

    joining: int
    committed: Committed

    @property
    def isr(self) -> frozenset[int]:
        return self.committed.isr

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.committed.isr | {self.joining}

    @property
    def proposed_isr(self) -> frozenset[int]:
        return self.maximal_isr


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingShrink:
    """`leaving` are proposed to be in sync no more."""

    leaving: frozenset[int]
    committed: Committed

    @property
    def isr(self) -> frozenset[int]:
        return self.committed.isr

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.committed.isr

    @property
    def proposed_isr(self) -> frozenset[int]:
        return self.committed.isr - self.leaving


Pending = PendingExpand | PendingShrink

IsrState = Committed | Pending
