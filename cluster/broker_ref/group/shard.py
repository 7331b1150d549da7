"""A partition of `__consumer_offsets` on its coordinator.

Stores the groups and offsets of the partition in memory, and writes records to the partition. A
write completes when its records are replicated. Invariants: the state in memory changes only after
the records are appended. A record has the same effect when it is written and when it is loaded.
Writes complete in log order. Source: Kafka's `CoordinatorRuntime` and
`OffsetMetadataManager.replay`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.coordination.partition_writer import (
    NOTHING_WRITTEN,
    CoordinatorPartitionWriter,
    PendingWrite,
)
from broker_ref.frozen import dataclass
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.group import ConsumerGroup, ConsumerGroupState
from broker_ref.group.consumer.records import (
    ConsumerGroupChange,
    ConsumerGroupKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupValue,
    encode_consumer_key,
    encode_consumer_value,
)
from broker_ref.group.offsets import OffsetStore, TopicPartition
from broker_ref.group.pending_offsets import PendingOffset, PendingOffsets
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
    | ConsumerGroupChange
)
"""The key and value of a record. A value of None is a tombstone."""

Group = ClassicGroup | ConsumerGroup
"""A group of either protocol."""


_AS_THE_LOG_SAYS: Final = MappingProxyType[ErrorCode, ErrorCode]({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducer:
    """The producer of a transactional write.

    `guard` is the verification guard for the first append of the transaction.
    """

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None


class ShardState(Enum):
    """The loading state of the partition."""

    LOADING = 0
    ACTIVE = 1
    FAILED = 2


class Shard:
    """The groups and offsets of one partition. A shard is initially empty and in state LOADING."""

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
        self._loaded_end_offset = partition.log.log_end_offset
        self.writes = CoordinatorPartitionWriter(
            partition, schedule=schedule, timeout_ms=write_timeout_ms, mark_changed=mark_changed
        )

    def classic_group(self, group_id: str) -> ClassicGroup | None:
        """Return a group that uses the classic protocol, or None."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer_group(self, group_id: str) -> ConsumerGroup | None:
        """Return a group that uses the consumer protocol, or None."""
        group = self.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    @property
    def high_watermark(self) -> int:
        """The high watermark of the partition."""
        return self.partition.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The log end offset of the partition on this broker."""
        return self.partition.log.log_end_offset

    def await_loaded_records(self, now_ms: int) -> PendingWrite:
        """Return a `PendingWrite` that completes when the loaded records are replicated.

        A new leader could truncate records that are not replicated. Kafka does not wait for the
        replication of loaded records, so a member can receive an assignment that is unknown to the
        next coordinator.
        """
        if self.high_watermark >= self._loaded_end_offset:
            return NOTHING_WRITTEN
        return self.writes.await_replication(self._loaded_end_offset, now_ms)

    def write(
        self,
        changes: Sequence[Change],
        now_ms: int,
        transaction: TransactionalProducer | None = None,
    ) -> PendingWrite:
        """Append all changes as one batch.

        Committed offsets in `changes` are applied in memory immediately. If `transaction` is set,
        they become pending offsets. The caller applies changes to groups.

        Raises: ApiError if the append fails.
        """
        if not changes:
            return NOTHING_WRITTEN
        try:
            records = [_record(change, now_ms) for change in changes]
        except struct.error as error:
            raise ApiError(
                ErrorCode.unknown_server_error,
                "A group id, client id or other name in a __consumer_offsets record exceeds "
                "32767 bytes. Use a shorter name.",
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
    ) -> PendingWrite:
        """Append the marker that ends a transaction, and commit or remove its pending offsets.

        Raises: ApiError if the append fails.
        """
        obsolete: list[OffsetCommitKey] = []

        def append() -> AppendResult:
            return self.partition.append_end_marker(
                marker,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_version=transaction_version,
                now_ms=now_ms,
            )

        def appended(required_offset: int) -> None:
            obsolete.extend(
                self.replay_marker(
                    marker.marker, producer_id=producer_id, required_offset=required_offset
                )
            )

        return self.writes.append_with(
            append,
            now_ms,
            on_append=appended,
            on_replicated=lambda: self.remove_obsolete_offsets(*obsolete),
            errors=_AS_THE_LOG_SAYS,
        )

    def delete(self, changes: Sequence[Change], now_ms: int) -> PendingWrite:
        """Append tombstones in the largest possible batches. Return the write of the last batch."""
        config = self.partition.log.config
        room_bytes = min(config.max_message_bytes, config.segment_bytes) - HEADER_BYTES
        write = NOTHING_WRITTEN
        for batch in _batches(changes, room_bytes):
            write = self.write(batch, now_ms)
        return write

    def remove_offsets(self, group: str, offsets: Iterable[TopicPartition]) -> None:
        """Remove from memory the offsets whose tombstones could not be written."""
        for one in offsets:
            self.pending.remove(group, one)
            self.offsets.put(group, one, None, record_offset=0, required_offset=0)
            self.offsets.remove_obsolete(group, one, self.high_watermark)

    def remove(self, group: Group, now_ms: int) -> None:
        """Remove a group whose tombstone has been written."""
        if isinstance(group, ClassicGroup):
            group.cancel_timers()
            if group.state is not GroupState.DEAD:
                group.transition_to(GroupState.DEAD, now_ms)
        self.groups.pop(group.group_id, None)

    # Replay of records that were written or loaded

    def replay(
        self,
        key: OffsetCommitKey,
        value: OffsetCommitValue | None,
        *,
        producer_id: int,
        record_offset: int,
        required_offset: int,
    ) -> None:
        """Apply a record.

        The record is replicated when the high watermark reaches `required_offset`.
        """
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

    def replay_consumer_group(
        self, key: ConsumerGroupKey, value: ConsumerGroupValue | None
    ) -> None:
        """Apply a record of a consumer group. Create the group if it does not exist.

        A new consumer group replaces a simple group, which consists only of committed offsets.
        """
        group = self.consumer_group(key.group)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group] = ConsumerGroup(key.group)
        group.replay(key, value)
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            del self.groups[key.group]

    def replay_group(self, change: Change, now_ms: int) -> None:
        """Apply a record of a consumer group, or the tombstone of a classic group."""
        key, value = change
        if isinstance(key, GroupMetadataKey):
            group = self.classic_group(key.group)
            if value is None and group is not None:
                self.remove(group, now_ms)
        elif not isinstance(key, OffsetCommitKey):
            self.replay_consumer_group(key, value)  # type: ignore[arg-type]

    def replay_marker(
        self, marker: Marker, *, producer_id: int, required_offset: int
    ) -> list[OffsetCommitKey]:
        """Commit or remove the pending offsets of a producer. Return their keys."""
        keys = []
        for group, offsets in self.pending.end(producer_id).items():
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

    def remove_obsolete_offsets(self, *keys: OffsetCommitKey) -> None:
        """For each key, remove the values that a later, replicated value has replaced."""
        for key in keys:
            self.offsets.remove_obsolete(key.group, _topic_partition(key), self.high_watermark)

    def _append(
        self,
        records: list[Record],
        changes: Sequence[Change],
        now_ms: int,
        transaction: TransactionalProducer | None,
    ) -> PendingWrite:
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
            self.remove_obsolete_offsets(*(key for _, key, _ in offsets))

        if transaction is None:
            return self.writes.append(records, now_ms, on_append=appended, on_replicated=replicated)
        return self.writes.append_with(
            lambda: self._append_in(transaction, records, now_ms),
            now_ms,
            on_append=appended,
            on_replicated=replicated,
        )

    def _append_in(
        self, transaction: TransactionalProducer, records: list[Record], now_ms: int
    ) -> AppendResult:
        batch = encode_batch(
            records,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            base_sequence=0,  # As in Kafka. The log ignores sequences from coordinators.
            is_transactional=True,
        )
        return self.partition.append(
            batch,
            all_replicas=True,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            guard=transaction.guard,
        )


def is_empty(group: Group) -> bool:
    """Return whether a group has no members. Only such a group can be deleted."""
    return group.state in (GroupState.EMPTY, ConsumerGroupState.EMPTY)


def offset_tombstones(group: str, offsets: Iterable[TopicPartition]) -> list[Change]:
    """Return the tombstones of the offsets of a group."""
    return [
        (OffsetCommitKey(group=group, topic=one.topic, partition=one.partition), None)
        for one in offsets
    ]


def _batches(changes: Sequence[Change], room_bytes: int) -> Iterator[list[Change]]:
    batch: list[Change] = []
    batch_bytes = 0
    for change in changes:
        record_bytes = len(_encoded_key(change)) + _TOMBSTONE_BYTES_BESIDE_KEY_MAX
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
    elif isinstance(value, GroupMetadataValue):
        data = encode_group_value(value)
    elif value is not None:
        assert not isinstance(key, (OffsetCommitKey, GroupMetadataKey))
        data = encode_consumer_value(key, value)
    return Record(timestamp=now_ms, key=_encoded_key(change), value=data)


def _encoded_key(change: Change) -> bytes:
    key = change[0]
    if isinstance(key, (OffsetCommitKey, GroupMetadataKey)):
        return encode_key(key)
    return encode_consumer_key(key)


def _topic_partition(key: OffsetCommitKey) -> TopicPartition:
    return TopicPartition(topic=key.topic, partition=key.partition)
