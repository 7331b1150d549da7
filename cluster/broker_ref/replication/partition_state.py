"""The in-sync replicas of a partition on its leader, and changes to the ISR (KIP-497).

    state                    isr                    maximal isr, for the high watermark
    CommittedPartitionState  the committed ISR      the committed ISR
    PendingExpandIsr         the committed ISR      the committed ISR and the joining replica
    PendingShrinkIsr         the committed ISR      the committed ISR, including leaving replicas

A leader proposes a change and enters a pending state. It enters a new committed state when the
controller accepts the change or when new metadata arrives. If an error shows that the controller
has not changed the ISR, the leader returns to the previous state. In a pending state, the maximal
ISR contains every replica that may be in the ISR, so the high watermark is correct whether the
controller accepts or rejects the change.

Invariant: no change is proposed while another change is pending, so at most one AlterPartition
request per partition is in flight. Source: Kafka's `PartitionState`,
`Partition.handleAlterPartitionError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass


class Reaction(Enum):
    """The leader's reaction when the controller rejects a change."""

    RESET = "return to the committed state, because the controller has not changed the ISR"
    AWAIT_METADATA = "keep the change pending until new metadata arrives"
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
    """Return the reaction to an AlterPartition error code; the default is a retry."""
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
    """The leader has proposed adding `joining` to the ISR."""

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
    """The leader has proposed removing the replicas in `leaving` from the ISR."""

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
