"""What this broker coordinates of one partition of `__consumer_offsets`.

Purpose: the groups and offsets of the partition, and the writes to it: what is written is in the
leader's log at once, and done when every in-sync replica has it. Invariant: memory changes after
the append, and only as the log does; writes are done in the order of the log. What it must not
know: what the records say about members, and requests. Source: Kafka's `CoordinatorRuntime`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

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
from broker_ref.log.batch import HEADER_BYTES, encode_batch
from broker_ref.log.errors import LogError
from broker_ref.log.records import Record
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Appended, Partition
from broker_ref.schedule import Schedule, Timer

_TOMBSTONE_BYTES_BESIDE_KEY_MAX: Final = 32

_APPEND_ERRORS: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
"""What a client is told in place of what the log says."""

Change = (
    tuple[OffsetCommitKey, OffsetCommitValue | None]
    | tuple[GroupMetadataKey, GroupMetadataValue | None]
)
"""A record: None deletes."""

Done = Callable[[ErrorCode, int], None]
"""Told of a write's outcome: its error code, and the time."""


class ShardState(Enum):
    """Whether the partition's groups are known yet."""

    LOADING = 0
    ACTIVE = 1
    FAILED = 2


class Write:
    """A batch in the leader's log, until every in-sync replica has it."""

    def __init__(self, appended: Appended | None, offsets: Sequence[OffsetCommitKey]) -> None:
        self.appended = appended
        self.offsets = offsets
        self.timer: Timer | None = None
        self._outcome: ErrorCode | None = ErrorCode.none if appended is None else None
        self._done: list[Done] = []

    def when_done(self, done: Done, now_ms: int) -> None:
        """Have `done` called with the outcome, now where there is one."""
        if self._outcome is not None:
            done(self._outcome, now_ms)
        else:
            self._done.append(done)

    def finish(self, outcome: ErrorCode, now_ms: int) -> None:
        """Tell the outcome; the first one counts."""
        if self._outcome is not None:
            return
        self._outcome = outcome
        if self.timer is not None:
            self.timer.cancel()
        for done in self._done:
            done(outcome, now_ms)
        self._done.clear()


NOTHING_WRITTEN: Final = Write(None, ())
"""The write of nothing: done."""


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
        self._schedule = schedule
        self._write_timeout_ms = write_timeout_ms
        self._mark_changed = mark_changed
        self._pending: deque[Write] = deque()

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

    def replicated(self, now_ms: int) -> None:
        """Finish the writes that every in-sync replica has."""
        while self._pending:
            write = self._pending[0]
            if write.appended is None or not write.appended.is_replicated:
                return
            self._pending.popleft()
            self._settle(write)
            write.finish(ErrorCode.none, now_ms)

    def abandon_writes(self, now_ms: int) -> None:
        """Fail the writes that are not done: another broker is to say what came of them."""
        while self._pending:
            self._pending.popleft().finish(ErrorCode.not_coordinator, now_ms)

    def _append(self, records: list[Record], changes: Iterable[Change], now_ms: int) -> Write:
        try:
            result = self.partition.append(encode_batch(records), all_replicas=True, now_ms=now_ms)
        except (ApiError, LogError) as error:
            code = _APPEND_ERRORS.get(error.error_code, error.error_code)
            raise ApiError(code, str(error)) from error
        self._mark_changed()
        required_offset = result.last_offset + 1
        keys = []
        for key, value in changes:
            if isinstance(key, OffsetCommitKey):
                assert value is None or isinstance(value, OffsetCommitValue)
                keys.append(key)
                self.offsets.put(
                    key.group, _topic_partition(key), value, required_offset=required_offset
                )
        appended = Appended(partition=self.partition, required_offset=required_offset)
        write = Write(appended, keys)
        if appended.is_replicated and not self._pending:
            self._settle(write)
            write.finish(ErrorCode.none, now_ms)
        else:
            self._pending.append(write)
            write.timer = self._schedule.at(
                now_ms + self._write_timeout_ms,
                lambda time_ms: write.finish(ErrorCode.coordinator_not_available, time_ms),
            )
        return write

    def _settle(self, write: Write) -> None:
        for key in write.offsets:
            self.offsets.settle(key.group, _topic_partition(key), self.high_watermark)


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
