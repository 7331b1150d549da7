"""Determines which committed offsets and groups have expired.

Applies `offsets.retention.minutes`. Invariants: an offset does not expire while a member subscribes
to its topic or an open transaction has a pending offset for its partition. A group expires when it
is Empty and has neither committed nor pending offsets. Source: KIP-211, Kafka's `ClassicGroup`,
`ConsumerGroup`, `OffsetExpirationConditionImpl` and `OffsetMetadataManager.cleanupExpiredOffsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.group_record import tombstones_of
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import NO_EXPIRY, OffsetCommitValue
from broker_ref.group.shard import Change, Group, Shard, is_empty, offset_tombstones
from broker_ref.group.states import GroupState

BaseTimestamp = Callable[[OffsetCommitValue], int]


def expired(shard: Shard, *, retention_ms: int, now_ms: int) -> list[tuple[Group, list[Change]]]:
    """Return the tombstones of expired offsets and groups, by group.

    The tombstone of the group itself comes last.
    """
    due: list[tuple[Group, list[Change]]] = []
    for group in shard.groups.values():
        offsets = shard.offsets.latest(group.group_id)
        pending = shard.pending.of_group(group.group_id)
        old = expired_offsets(group, offsets, retention_ms=retention_ms, now_ms=now_ms)
        gone = [one for one in old if not shard.pending.has(group.group_id, one)]
        changes = offset_tombstones(group.group_id, gone)
        if not pending and len(gone) == len(offsets) and is_empty(group):
            changes += tombstones_of(group)
        if changes:
            due.append((group, changes))
    return due


def expired_offsets(
    group: Group,
    offsets: Mapping[TopicPartition, OffsetCommitValue],
    *,
    retention_ms: int,
    now_ms: int,
) -> list[TopicPartition]:
    """Return the partitions whose committed offset has expired."""
    base_timestamp = _base_timestamp(group)
    if base_timestamp is None:
        return []

    def is_expired(value: OffsetCommitValue) -> bool:
        if value.expire_timestamp_ms != NO_EXPIRY:
            return now_ms >= value.expire_timestamp_ms
        return now_ms - base_timestamp(value) >= retention_ms

    subscribed = group.subscribed_of({topic_partition.topic for topic_partition in offsets})
    return [
        topic_partition
        for topic_partition, value in offsets.items()
        if topic_partition.topic not in subscribed and is_expired(value)
    ]


def _base_timestamp(group: Group) -> BaseTimestamp | None:
    """Return a function that calculates when the retention of an offset starts.

    Return None if no offset of the group can expire.
    """
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return _committed_at
    if group.state is GroupState.EMPTY:
        # Retention starts when the last member leaves. Old records do not contain this time.
        if group.state_timestamp_ms < 0:
            return _committed_at
        return lambda _: group.state_timestamp_ms
    reports_topics = group.uses_consumer_protocol and group.subscribed_topics is not None
    return _committed_at if reports_topics and group.state is GroupState.STABLE else None


def _committed_at(value: OffsetCommitValue) -> int:
    return value.commit_timestamp_ms
