"""A member of a consumer group.

    STABLE                 the member has the target assignment of its epoch
    UNREVOKED_PARTITIONS   the member must revoke partitions before it can move to the next epoch
    UNRELEASED_PARTITIONS  the member waits for partitions that other members have not yet revoked
    UNKNOWN                the record of the member contains a state of a later Kafka version

Contains the part of a member's state that is stored in records. Invariants: a member object never
changes; an update creates a new object. `assigned` and `pending_revocation` have no partition in
common. Source: Kafka's `ConsumerGroupMember` and `MemberState`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import IntEnum
from typing import Final

from broker_ref.frozen import dataclass
from broker_ref.group.consumer.assignment import NOTHING_WITH_EPOCHS, AssignmentWithEpochs
from broker_ref.group.members import MemberProtocol
from broker_ref.protocol.identifiers import Uuid

JOIN_EPOCH: Final = 0
"""The epoch of a member that joins or rejoins."""
LEAVE_EPOCH: Final = -1
"""The epoch of a member that leaves."""
LEAVE_STATIC_EPOCH: Final = -2
"""The epoch of a static member that leaves and is going to rejoin."""


class MemberState(IntEnum):
    """A member state with its number in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        del value
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """The data from the JoinGroup request of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A member with its subscription, its epoch and its partitions.

    `rebalance_timeout_ms` is -1 until the member sends a rebalance timeout. `classic` is None if
    the member uses the consumer protocol.
    """

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = ""
    server_assignor: str | None = None
    assigned: AssignmentWithEpochs = field(default_factory=lambda: NOTHING_WITH_EPOCHS)
    pending_revocation: AssignmentWithEpochs = field(default_factory=lambda: NOTHING_WITH_EPOCHS)
    classic: ClassicMetadata | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        """Whether the member sends JoinGroup instead of ConsumerGroupHeartbeat requests."""
        return self.classic is not None

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Return whether the member has reconciled its assignment with the target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def assignment_epoch(self, topic_id: Uuid, partition: int) -> int | None:
        """Return the epoch in which the partition was assigned to the member, or None."""
        found = self.assigned.get(topic_id, {}).get(partition)
        if found is None:
            return self.pending_revocation.get(topic_id, {}).get(partition)
        return found

    def moved_to(
        self,
        epoch: int,
        state: MemberState,
        assigned: Mapping[Uuid, Mapping[int, int]],
        pending_revocation: Mapping[Uuid, Mapping[int, int]],
    ) -> ConsumerGroupMember:
        """Return the member in its new state. The current epoch becomes the previous epoch."""
        return replace(
            self,
            member_epoch=epoch,
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )
