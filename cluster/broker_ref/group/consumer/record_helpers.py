"""Creates the records of consumer groups.

Invariant: the tombstones of a member are in the order that `ConsumerGroup.replay` and Kafka expect.
Source: Kafka's `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from broker_ref.group.consumer.assignment import (
    Assignment,
    AssignmentWithEpochs,
    without_epochs,
)
from broker_ref.group.consumer.group import ConsumerGroup, ResolvedRegularExpression
from broker_ref.group.consumer.member import ConsumerGroupMember
from broker_ref.group.consumer.records import (
    AssignedPartitions,
    ConsumerGroupChange,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ConsumerGroupChange:
    """Return the record of a group epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return ConsumerGroupMetadataKey(group_id), value


def subscription_record(group_id: str, member: ConsumerGroupMember) -> ConsumerGroupChange:
    """Return the record of a member's subscription and settings."""
    return ConsumerGroupMemberMetadataKey(
        group_id, member.member_id
    ), ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=member.classic,
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> ConsumerGroupChange:
    """Return the record of a member's target assignment."""
    return ConsumerGroupTargetAssignmentMemberKey(
        group_id, member_id
    ), ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(partitions)))
            for topic_id, partitions in target.items()
        )
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> ConsumerGroupChange:
    """Return the record with the epoch and the time of a target assignment."""
    return ConsumerGroupTargetAssignmentMetadataKey(
        group_id
    ), ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp_ms=timestamp_ms
    )


def assignment_record(group_id: str, member: ConsumerGroupMember) -> ConsumerGroupChange:
    """Return the record of a member's epoch, state and partitions."""
    return ConsumerGroupCurrentMemberAssignmentKey(
        group_id, member.member_id
    ), ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_member_epoch,
        state=member.state,
        assigned_partitions=_assigned(member.assigned),
        partitions_pending_revocation=_assigned(member.pending_revocation),
    )


def regex_record(
    group_id: str, regex: str, resolved: ResolvedRegularExpression
) -> ConsumerGroupChange:
    """Return the record of a resolved regular expression."""
    return ConsumerGroupRegularExpressionKey(group_id, regex), ConsumerGroupRegularExpressionValue(
        topics=tuple(sorted(resolved.topics)),
        version=resolved.version,
        timestamp_ms=resolved.timestamp_ms,
    )


def regex_tombstone(group_id: str, regex: str) -> ConsumerGroupChange:
    """Return the tombstone for a regular expression to which no member subscribes."""
    return ConsumerGroupRegularExpressionKey(group_id, regex), None


def stored_topics_tombstone(group_id: str) -> ConsumerGroupChange:
    """Return the tombstone for the topic metadata that Kafka 4.0 stored."""
    return ConsumerGroupPartitionMetadataKey(group_id), None


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerGroupChange]:
    """Return the tombstones of a member."""
    return [
        (ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        (ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        (ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def group_tombstones(
    group: ConsumerGroup, member_ids: Iterable[str] | None = None
) -> list[ConsumerGroupChange]:
    """Return the tombstones for a group and for the given members (all members by default)."""
    group_id = group.group_id
    ids = list(group.members if member_ids is None else member_ids)
    changes: list[ConsumerGroupChange] = []
    changes += [(ConsumerGroupCurrentMemberAssignmentKey(group_id, one), None) for one in ids]
    changes += [(ConsumerGroupTargetAssignmentMemberKey(group_id, one), None) for one in ids]
    changes.append((ConsumerGroupTargetAssignmentMetadataKey(group_id), None))
    changes += [(ConsumerGroupMemberMetadataKey(group_id, one), None) for one in ids]
    changes += [regex_tombstone(group_id, regex) for regex in group.resolved]
    changes.append(stored_topics_tombstone(group_id))
    changes.append((ConsumerGroupMetadataKey(group_id), None))
    return changes


def group_records(
    group_id: str, members: Collection[ConsumerGroupMember], *, epoch: int, metadata_hash: int
) -> list[ConsumerGroupChange]:
    """Return the records of a new group whose members have their target assignments."""
    return [
        *(subscription_record(group_id, member) for member in members),
        epoch_record(group_id, epoch, metadata_hash),
        *(
            target_record(group_id, member.member_id, without_epochs(member.assigned))
            for member in members
        ),
        target_epoch_record(group_id, epoch, 0),
        *(assignment_record(group_id, member) for member in members),
    ]


def _assigned(assignment: AssignmentWithEpochs) -> tuple[AssignedPartitions, ...]:
    return tuple(
        AssignedPartitions(
            topic_id=topic_id,
            partitions=tuple(epochs),
            assignment_epochs=tuple(epochs.values()),
        )
        for topic_id, epochs in assignment.items()
    )
