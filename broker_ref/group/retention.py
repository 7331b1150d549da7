"""Which committed offsets, and which groups, have been kept for long enough.

Purpose: the rules of `offsets.retention.minutes`. Invariant: an offset of a topic that a member of
the group subscribes to never expires, nor does one that an open transaction has committed anew; a
group goes when it is Empty and has no offset left, no pending one either. What it must not know:
how they are deleted. Source: KIP-211, Kafka's `ClassicGroup`, `OffsetExpirationConditionImpl` and
`OffsetMetadataManager.cleanupExpiredOffsets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_ref.group.group import Group
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.shard import Change, Shard, offset_tombstones
from broker_ref.group.states import GroupState
from broker_ref.group.stored_group import group_tombstone

BaseTimestamp = Callable[[OffsetCommitValue], int]


def expired(shard: Shard, *, retention_ms: int, now_ms: int) -> list[tuple[Group, list[Change]]]:
    """The tombstones that are due, by group; a group's own comes last."""
    due = []
    for group in shard.groups.values():
        offsets = shard.offsets.latest(group.group_id)
        pending = shard.pending.of_group(group.group_id)
        old = expired_offsets(group, offsets, retention_ms=retention_ms, now_ms=now_ms)
        gone = [one for one in old if one not in pending]
        changes = offset_tombstones(group.group_id, gone)
        if not pending and len(gone) == len(offsets) and group.state is GroupState.EMPTY:
            changes.append(group_tombstone(group.group_id))
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
    """The offsets that are past their retention."""
    base_timestamp = _base_timestamp(group)
    if base_timestamp is None:
        return []

    def is_expired(value: OffsetCommitValue) -> bool:
        if value.expire_timestamp_ms >= 0:
            return now_ms >= value.expire_timestamp_ms
        return now_ms - base_timestamp(value) >= retention_ms

    return [
        topic_partition
        for topic_partition, value in offsets.items()
        if not group.is_subscribed_to(topic_partition.topic) and is_expired(value)
    ]


def _base_timestamp(group: Group) -> BaseTimestamp | None:
    """From when on retention counts; None where nothing of the group expires now."""
    if group.protocol_type is None:
        return _committed_at
    if group.state is GroupState.EMPTY:
        # Since the last member left; old records do not say when that was.
        if group.state_timestamp_ms < 0:
            return _committed_at
        return lambda _: group.state_timestamp_ms
    tells = group.uses_consumer_protocol and group.subscribed_topics is not None
    return _committed_at if tells and group.state is GroupState.STABLE else None


def _committed_at(value: OffsetCommitValue) -> int:
    return value.commit_timestamp_ms
