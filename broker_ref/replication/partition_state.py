"""The in-sync replicas of a partition on its leader, and their changes (KIP-497).

    state                    isr (committed)    maximal isr (counts for the high watermark)
    CommittedPartitionState  the controller's   the same
    PendingExpandIsr         the previous       with the joining replica: stricter, safe if refused
    PendingShrinkIsr         the previous       the previous: the leaving ones count until confirmed

A leader proposes a pending state. It becomes committed when the controller confirms it or new
metadata arrives, and returns to the previous state when the controller has changed nothing.

Purpose: the states as values, and the reaction to each error of AlterPartition. Invariant: no
change is proposed while one is pending, so at most one AlterPartition per partition is in flight.
Must not know: logs, offsets, the controller's address.
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
    """The reaction to a refused change."""

    RESET = "return to the committed state, because the controller changed nothing"
    AWAIT_METADATA = "stay pending until the metadata shows the result"
    RETRY = "send the request again"


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
    """Return the reaction to an error of AlterPartition; other errors are retried."""
    return REACTIONS.get(error_code, Reaction.RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPartitionState:
    """The ISR that the controller has committed."""

    isr: frozenset[int]

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingExpandIsr:
    """`joining` is proposed to join the ISR."""

    joining: int
    committed: CommittedPartitionState

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
class PendingShrinkIsr:
    """`leaving` are proposed to leave the ISR."""

    leaving: frozenset[int]
    committed: CommittedPartitionState

    @property
    def isr(self) -> frozenset[int]:
        return self.committed.isr

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.committed.isr

    @property
    def proposed_isr(self) -> frozenset[int]:
        return self.committed.isr - self.leaving


Pending = PendingExpandIsr | PendingShrinkIsr

PartitionState = CommittedPartitionState | Pending
