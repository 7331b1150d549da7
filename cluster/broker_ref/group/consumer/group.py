"""A consumer group: its members, epochs and assignments.

    Empty         the group has no members
    Assigning     the group epoch is higher than the epoch of the target assignment
    Reconciling   some members do not yet have their target assignment
    Stable        all members have their target assignment
    Dead          the group does not exist

Stores the state of a group that results from its records. Invariants: only `replay` changes the
state, so a record has the same effect when it is written and when it is loaded. The epochs of the
group and of its target assignment never decrease. Source: KIP-848; Kafka's `ConsumerGroup`,
`ModernGroup` and the part of `GroupMetadataManager.replay` for consumer groups.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.group.consumer.assignment import NOTHING, Assignment, AssignmentWithEpochs
from broker_ref.group.consumer.member import LEAVE_EPOCH, ConsumerGroupMember, MemberState
from broker_ref.group.consumer.records import (
    AssignedPartitions,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ConsumerGroupValue,
)
from broker_ref.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid

logger = logging.getLogger(__name__)

FIRST_EPOCH: Final = 1
"""The epoch of a group, and of its empty target assignment, before the first member subscribes."""
NO_ASSIGNMENT_EPOCH: Final = -1
"""The epoch of a deleted target assignment."""


class ConsumerGroupState(Enum):
    """A group state. The value is the name used in responses to clients."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegularExpression:
    """The topics that match a regular expression.

    `version` is the metadata offset at which the expression was resolved.
    """

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """A group, initially without members.

    `target` contains the target assignment of each member. `static_members` maps instance ids to
    member ids. `resolved` contains the resolved regular expressions. `subscribed_regexes` contains
    the number of members that subscribe to each regular expression. `has_stored_topics` is True if
    the log contains topic metadata that Kafka 4.0 stored. The metadata of the
    subscribed topics is checked again at `metadata_refresh_ms`, or immediately if the group epoch
    is lower than `metadata_refresh_epoch`.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.static_members: dict[str, str] = {}
        self.target: dict[str, Assignment] = {}
        self.resolved: dict[str, ResolvedRegularExpression] = {}
        self.subscribed_regexes: Counter[str] = Counter()
        self.has_stored_topics = False
        self.metadata_refresh_ms = 0
        self.metadata_refresh_epoch = 0
        self._owner_epochs: dict[tuple[Uuid, int], int] = {}

    # Queries

    @property
    def protocol_type(self) -> str:
        """The protocol type in responses to clients."""
        return CONSUMER_PROTOCOL_TYPE

    @property
    def state(self) -> ConsumerGroupState:
        """The state, derived from the epochs and the members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(one.is_reconciled_to(self.assignment_epoch) for one in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def member(self, member_id: str) -> ConsumerGroupMember:
        """Return a member. Raises: ApiError (UNKNOWN_MEMBER_ID)."""
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """Return the member with this instance id, or None."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def has_owner(self, topic_id: Uuid, partition: int) -> bool:
        """Return whether a member owns the partition or still has to revoke it."""
        return (topic_id, partition) in self._owner_epochs

    def supports_classic_protocols(self, names: Iterable[str]) -> bool:
        """Return whether all members that use the classic protocol support one of `names`."""
        supported = [
            {protocol.name for protocol in member.classic.protocols}
            for member in self.members.values()
            if member.classic is not None
        ]
        return any(all(name in protocols for protocols in supported) for name in names)

    def waits_for_partitions(self, member: ConsumerGroupMember) -> bool:
        """Return whether other members own partitions of the member's target assignment."""
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.has_owner(topic_id, partition)
            for topic_id, partitions in self.target_of(member).items()
            for partition in partitions
        )

    def target_of(self, member: ConsumerGroupMember) -> Assignment:
        """Return the target assignment of a member, or of the static member that it replaces."""
        member_id = member.member_id
        if member.instance_id is not None:
            member_id = self.static_members.get(member.instance_id, member_id)
        return self.target.get(member_id, NOTHING)

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the topics to which a member subscribes by name and by regular expression."""
        resolved = self.resolved.get(member.subscribed_topic_regex or "")
        if resolved is None:
            return member.subscribed_topic_names
        return member.subscribed_topic_names | resolved.topics

    def subscribes_to_any(self, topics: Set[str]) -> bool:
        """Return whether at least one member subscribes to one of the topics."""
        return any(not subscribed.isdisjoint(topics) for subscribed in self._subscriptions())

    def subscribed_of(self, topics: Set[str]) -> Set[str]:
        """Return the topics in `topics` to which at least one member subscribes."""
        return frozenset().union(*(topics & subscribed for subscribed in self._subscriptions()))

    def _subscriptions(self) -> Iterator[frozenset[str]]:
        """Yield the topics of each member and of each regular expression.

        The union of these topics can be expensive to calculate, because a group can have many
        members.
        """
        for member in self.members.values():
            yield member.subscribed_topic_names
        for regex, resolved in self.resolved.items():
            if self.subscribed_regexes[regex]:
                yield resolved.topics

    def has_metadata_expired(self, now_ms: int) -> bool:
        """Return whether the metadata of the subscribed topics must be checked again."""
        return now_ms >= self.metadata_refresh_ms or self.group_epoch < self.metadata_refresh_epoch

    def request_metadata_refresh(self) -> None:
        """Schedule a check of the subscribed topics' metadata for the next heartbeat."""
        self.metadata_refresh_ms = self.metadata_refresh_epoch = 0

    # Replay of records that were written or loaded

    def replay(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Apply a record of the group. The tombstone of a group epoch has no effect."""
        if value is None:
            self._replay_tombstone(key)
        else:
            self._replay_value(key, value)

    def _replay_value(self, key: ConsumerGroupKey, value: ConsumerGroupValue) -> None:
        match key, value:
            case _, ConsumerGroupMetadataValue():
                self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case _, ConsumerGroupPartitionMetadataValue():
                self.has_stored_topics = True
            case _, ConsumerGroupTargetAssignmentMetadataValue():
                self.assignment_epoch = value.assignment_epoch
                self.assignment_timestamp_ms = value.assignment_timestamp_ms
            case (
                ConsumerGroupTargetAssignmentMemberKey(),
                ConsumerGroupTargetAssignmentMemberValue(),
            ):
                self.target[key.member_id] = {
                    one.topic_id: frozenset(one.partitions) for one in value.topic_partitions
                }
            case ConsumerGroupRegularExpressionKey(), ConsumerGroupRegularExpressionValue():
                self.resolved[key.regex] = ResolvedRegularExpression(
                    topics=frozenset(value.topics),
                    version=value.version,
                    timestamp_ms=value.timestamp_ms,
                )
            case ConsumerGroupMemberMetadataKey(), ConsumerGroupMemberMetadataValue():
                self._put_subscription(key.member_id, value)
            case (
                ConsumerGroupCurrentMemberAssignmentKey(),
                ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                self._put_assignment(key.member_id, value)

    def _replay_tombstone(self, key: ConsumerGroupKey) -> None:
        match key:
            case ConsumerGroupPartitionMetadataKey():
                self.has_stored_topics = False
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.assignment_epoch, self.assignment_timestamp_ms = NO_ASSIGNMENT_EPOCH, 0
            case ConsumerGroupTargetAssignmentMemberKey():
                self.target.pop(key.member_id, None)
            case ConsumerGroupRegularExpressionKey():
                self.resolved.pop(key.regex, None)
            case ConsumerGroupMemberMetadataKey():
                self._remove(key.member_id)
            case ConsumerGroupCurrentMemberAssignmentKey():
                self._release(key.member_id)

    def _release(self, member_id: str) -> None:
        """Release the partitions of a member that is being removed."""
        member = self.members.get(member_id)
        if member is not None:
            self._put(
                replace(
                    member,
                    member_epoch=LEAVE_EPOCH,
                    previous_member_epoch=LEAVE_EPOCH,
                    assigned={},
                    pending_revocation={},
                )
            )

    def _put_subscription(self, member_id: str, value: ConsumerGroupMemberMetadataValue) -> None:
        self._put(
            replace(
                self._member_or_new(member_id),
                instance_id=value.instance_id,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
                subscribed_topic_regex=value.subscribed_topic_regex,
                rebalance_timeout_ms=value.rebalance_timeout_ms,
                server_assignor=value.server_assignor,
                classic=value.classic_member_metadata,
            )
        )

    def _put_assignment(
        self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue
    ) -> None:
        self._put(
            replace(
                self._member_or_new(member_id),
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                state=MemberState(value.state),
                assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
                pending_revocation=_with_epochs(
                    value.partitions_pending_revocation, value.member_epoch
                ),
            )
        )

    def _member_or_new(self, member_id: str) -> ConsumerGroupMember:
        return self.members.get(member_id) or ConsumerGroupMember(member_id=member_id)

    def _put(self, member: ConsumerGroupMember) -> None:
        self._uncount(self.members.get(member.member_id))
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if member.subscribed_topic_regex:
            self.subscribed_regexes[member.subscribed_topic_regex] += 1
        for owned in (member.assigned, member.pending_revocation):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    current = self._owner_epochs.get((topic_id, partition), member.member_epoch)
                    self._owner_epochs[topic_id, partition] = max(current, member.member_epoch)

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._uncount(member)
        if member is not None and member.instance_id is not None:
            # The records of a new member with the same instance id may follow.
            self.static_members.pop(member.instance_id, None)

    def _uncount(self, member: ConsumerGroupMember | None) -> None:
        if member is None:
            return
        regex = member.subscribed_topic_regex
        if regex:
            self.subscribed_regexes[regex] -= 1
            if not self.subscribed_regexes[regex]:
                del self.subscribed_regexes[regex]
        for owned in (member.assigned, member.pending_revocation):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    # Another member can already own the partition in a higher epoch, because
                    # compaction removes intermediate records.
                    if self._owner_epochs.get((topic_id, partition)) == member.member_epoch:
                        del self._owner_epochs[topic_id, partition]


def _with_epochs(
    assigned: tuple[AssignedPartitions, ...], member_epoch: int
) -> AssignmentWithEpochs:
    """Return the assigned partitions with their assignment epochs.

    Records that were written by Kafka versions before 4.3 do not contain assignment epochs. For
    these records, use the member epoch instead.
    """
    found: dict[Uuid, Mapping[int, int]] = {}
    for one in assigned:
        if len(one.assignment_epochs) == len(one.partitions):
            found[one.topic_id] = dict(zip(one.partitions, one.assignment_epochs, strict=True))
        else:
            # The epoch of a static member that has left is negative.
            found[one.topic_id] = dict.fromkeys(one.partitions, max(member_epoch, 0))
    return found
