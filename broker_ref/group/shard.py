"""What this broker coordinates of one partition of `__consumer_offsets`.

Purpose: the groups and offsets of the partition, and the writes to it: what is written is in the
leader's log at once, and done when every in-sync replica has it. Invariant: memory changes after
the append, and only as the log does, the same way in a write and when the log is read again;
writes are done in the order of the log. What it must not know: what the records say about members,
and requests. Source: Kafka's `CoordinatorRuntime`, `OffsetMetadataManager.replay`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.coordination.writes import NOTHING_WRITTEN, Write, Writes
from broker_ref.group.group import Group
from broker_ref.group.offsets import OffsetStore, TopicPartition
from broker_ref.group.pending import PendingOffset, PendingOffsets
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
from broker_ref.log.append import AppendOrigin, AppendResult
from broker_ref.log.batch import HEADER_BYTES, NO_PRODUCER_ID, encode_batch
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.records import Record
from broker_ref.log.verification_guards import VerificationGuard
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import Partition
from broker_ref.schedule import Schedule

_TOMBSTONE_BYTES_BESIDE_KEY_MAX: Final = 32

Change = (
    tuple[OffsetCommitKey, OffsetCommitValue | None]
    | tuple[GroupMetadataKey, GroupMetadataValue | None]
)
"""A record: None deletes."""


_AS_THE_LOG_SAYS: Final = MappingProxyType[ErrorCode, ErrorCode]({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The producer whose transaction a write is in, and what lets the write begin it there."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None


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
        self.pending = PendingOffsets()
        self.writes = Writes(
            partition, schedule=schedule, timeout_ms=write_timeout_ms, mark_changed=mark_changed
        )

    @property
    def high_watermark(self) -> int:
        """Up to where the log counts."""
        return self.partition.high_watermark

    def write(
        self, changes: Sequence[Change], now_ms: int, transaction: Transaction | None = None
    ) -> Write:
        """Append changes as one batch, all or none of them; ApiError says why they are not.

        Offsets are changed in memory at once, or pending where they are in a transaction; what it
        means for groups is the caller's.
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
        return self._append(records, changes, now_ms, transaction)

    def end_transaction(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> Write:
        """Append the marker that decides about a producer's pending offsets.

        ApiError, with the code that the log says, where it does not take the marker.
        """
        settled: list[OffsetCommitKey] = []

        def append() -> AppendResult:
            return self.partition.append_end_marker(
                marker,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_version=transaction_version,
                now_ms=now_ms,
            )

        def appended(required_offset: int) -> None:
            settled.extend(
                self.replay_marker(
                    marker.marker, producer_id=producer_id, required_offset=required_offset
                )
            )

        return self.writes.append_with(
            append,
            now_ms,
            on_append=appended,
            on_replicated=lambda: self.settle(*settled),
            errors=_AS_THE_LOG_SAYS,
        )

    def delete(self, changes: Sequence[Change], now_ms: int) -> Write:
        """Append deletions in batches as large as the log takes them; the last one's write."""
        config = self.partition.log.config
        room_bytes = min(config.max_message_bytes, config.segment_bytes) - HEADER_BYTES
        write = NOTHING_WRITTEN
        for batch in _batches(changes, room_bytes):
            write = self.write(batch, now_ms)
        return write

    def forget(self, group: str, offsets: Iterable[TopicPartition]) -> None:
        """Forget offsets that the log still has, and will not give back when it is read again."""
        for one in offsets:
            self.pending.remove(group, one)
            self.offsets.put(group, one, None, record_offset=0, required_offset=0)
            self.offsets.settle(group, one, self.high_watermark)

    def remove(self, group: Group, now_ms: int) -> None:
        """Forget a group that the log has no more."""
        group.cancel_timers()
        if group.state is not GroupState.DEAD:
            group.transition_to(GroupState.DEAD, now_ms)
        self.groups.pop(group.group_id, None)

    # What the log says, of a write or when it is read again

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        *,
        producer_id: int,
        record_offset: int,
        required_offset: int,
    ) -> None:
        """Take a record in; readers see it from the high watermark `required_offset` on."""
        topic_partition = _topic_partition(key)
        if value is not None and producer_id != NO_PRODUCER_ID:
            pending = PendingOffset(value=value, record_offset=record_offset)
            self.pending.put(producer_id, key.group, topic_partition, pending)
            return
        if value is None:
            self.pending.remove(key.group, topic_partition)
        self.offsets.put(
            key.group,
            topic_partition,
            value,
            record_offset=record_offset,
            required_offset=required_offset,
        )

    def replay_marker(
        self, marker: Marker, *, producer_id: int, required_offset: int
    ) -> list[OffsetCommitKey]:
        """Let what a producer's transaction has pending count, or drop it; of which offsets."""
        keys = []
        for group, offsets in self.pending.end(producer_id).items():
            self.offsets.note_decision(group, required_offset=required_offset)
            for one, pending in offsets.items():
                keys.append(OffsetCommitKey(group=group, topic=one.topic, partition=one.partition))
                if marker is Marker.COMMIT:
                    self.offsets.put_if_later(
                        group,
                        one,
                        pending.value,
                        record_offset=pending.record_offset,
                        required_offset=required_offset,
                    )
        return keys

    def settle(self, *keys: OffsetCommitKey) -> None:
        """Forget what was before the values that every replica has now."""
        for key in keys:
            self.offsets.settle(key.group, _topic_partition(key), self.high_watermark)
            self.offsets.settle_decision(key.group, self.high_watermark)

    def _append(
        self,
        records: list[Record],
        changes: Sequence[Change],
        now_ms: int,
        transaction: Transaction | None,
    ) -> Write:
        producer_id = NO_PRODUCER_ID if transaction is None else transaction.producer_id
        offsets = [
            (index, key, value)
            for index, (key, value) in enumerate(changes)
            if isinstance(key, OffsetCommitKey)
            and (value is None or isinstance(value, OffsetCommitValue))
        ]

        def appended(required_offset: int) -> None:
            base_offset = required_offset - len(changes)
            for index, key, value in offsets:
                self.replay(
                    key,
                    value,
                    producer_id=producer_id,
                    record_offset=base_offset + index,
                    required_offset=required_offset,
                )

        def replicated() -> None:
            self.settle(*(key for _, key, _ in offsets))

        if transaction is None:
            return self.writes.append(records, now_ms, on_append=appended, on_replicated=replicated)
        return self.writes.append_with(
            lambda: self._append_in(transaction, records, now_ms),
            now_ms,
            on_append=appended,
            on_replicated=replicated,
        )

    def _append_in(
        self, transaction: Transaction, records: list[Record], now_ms: int
    ) -> AppendResult:
        batch = encode_batch(
            records,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            base_sequence=0,  # As Kafka's; nothing goes by it in the appends of a coordinator.
            is_transactional=True,
        )
        return self.partition.append(
            batch,
            all_replicas=True,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            guard=transaction.guard,
        )


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
