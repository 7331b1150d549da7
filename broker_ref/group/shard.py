"""What this broker coordinates of one partition of `__consumer_offsets`.

Purpose: the groups and offsets of the partition, and the writes to it: what is written is in the
leader's log at once, and done when every in-sync replica has it. Invariant: memory changes after
the append, and only as the log does; writes are done in the order of the log. What it must not
know: what the records say about members, and requests. Source: Kafka's `CoordinatorRuntime`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.coordination.writes import NOTHING_WRITTEN, Write, Writes
from broker_ref.group.group import Group
from broker_ref.group.offsets import OffsetStore, TopicPartition
from broker_ref.group.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_group_value,
    encode_key,
    encode_value,
)
from broker_ref.group.states import GroupState
from broker_ref.log.batch import HEADER_BYTES
from broker_ref.log.records import Record
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition
from broker_ref.schedule import Schedule

_TOMBSTONE_BYTES_BESIDE_KEY_MAX: Final = 32

Change = (
    tuple[OffsetCommitKey, OffsetCommitValue | None]
    | tuple[GroupMetadataKey, GroupMetadataValue | None]
)
"""A record: None deletes."""


class ShardState(Enum):
    """Whether the partition's groups are known yet."""

    LOADING = 0
    ACTIVE = 1
    FAILED = 2


class Shard:
    """The groups of one partition, empty and LOADING at first."""

    def __init__(
        self,
        partition: Partition,
        *,
        schedule: Schedule,
        write_timeout_ms: int,
        mark_changed: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.state = ShardState.LOADING
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetStore()
        self.writes = Writes(
            partition, schedule=schedule, timeout_ms=write_timeout_ms, mark_changed=mark_changed
        )

    @property
    def high_watermark(self) -> int:
        """Up to where the log counts."""
        return self.partition.high_watermark

    def write(self, changes: Sequence[Change], now_ms: int) -> Write:
        """Append changes as one batch, all or none of them; ApiError says why they are not.

        Offsets are changed in memory at once; what it means for groups is the caller's.
        """
        if not changes:
            return NOTHING_WRITTEN
        try:
            records = [_record(change, now_ms) for change in changes]
        except struct.error as error:
            raise ApiError(
                ErrorCode.unknown_server_error,
                "A name in a record of __consumer_offsets has more than 32767 bytes.",
            ) from error
        return self._append(records, changes, now_ms)

    def delete(self, changes: Sequence[Change], now_ms: int) -> Write:
        """Append deletions in batches as large as the log takes them; the last one's write."""
        config = self.partition.log.config
        room_bytes = min(config.max_message_bytes, config.segment_bytes) - HEADER_BYTES
        write = NOTHING_WRITTEN
        for batch in _batches(changes, room_bytes):
            write = self.write(batch, now_ms)
        return write

    def remove(self, group: Group, now_ms: int) -> None:
        """Forget a group that the log has no more."""
        group.cancel_timers()
        if group.state is not GroupState.DEAD:
            group.transition_to(GroupState.DEAD, now_ms)
        self.groups.pop(group.group_id, None)

    def _append(self, records: list[Record], changes: Sequence[Change], now_ms: int) -> Write:
        keys = [key for key, _ in changes if isinstance(key, OffsetCommitKey)]

        def appended(required_offset: int) -> None:
            for key, value in changes:
                if isinstance(key, OffsetCommitKey):
                    assert value is None or isinstance(value, OffsetCommitValue)
                    self.offsets.put(
                        key.group, _topic_partition(key), value, required_offset=required_offset
                    )

        def replicated() -> None:
            for key in keys:
                self.offsets.settle(key.group, _topic_partition(key), self.high_watermark)

        return self.writes.append(records, now_ms, on_append=appended, on_replicated=replicated)


def offset_tombstones(group: str, offsets: Iterable[TopicPartition]) -> list[Change]:
    """What deletes a group's offsets."""
    return [
        (OffsetCommitKey(group=group, topic=one.topic, partition=one.partition), None)
        for one in offsets
    ]


def _batches(changes: Sequence[Change], room_bytes: int) -> Iterator[list[Change]]:
    batch: list[Change] = []
    batch_bytes = 0
    for change in changes:
        record_bytes = len(encode_key(change[0])) + _TOMBSTONE_BYTES_BESIDE_KEY_MAX
        if batch and batch_bytes + record_bytes > room_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(change)
        batch_bytes += record_bytes
    if batch:
        yield batch


def _record(change: Change, now_ms: int) -> Record:
    key, value = change
    data = None
    if isinstance(value, OffsetCommitValue):
        data = encode_value(value)
    elif value is not None:
        data = encode_group_value(value)
    return Record(timestamp=now_ms, key=encode_key(key), value=data)


def _topic_partition(key: OffsetCommitKey) -> TopicPartition:
    return TopicPartition(topic=key.topic, partition=key.partition)
