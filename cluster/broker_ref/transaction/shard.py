"""A partition of `__transaction_state` on its coordinator.

A shard stores the transactional ids of its partition, and writes records to the partition.
Invariants: a value is `pending` when it is in the leader's log, and `current` when it has been
replicated or loaded. A failed write changes nothing. Source: Kafka's `TransactionStateManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from broker_ref.coordination.partition_writer import CoordinatorPartitionWriter, PendingWrite
from broker_ref.log.batch import HEADER_BYTES
from broker_ref.log.records import Record
from broker_ref.replication.partition import Partition
from broker_ref.schedule import Schedule
from broker_ref.transaction.records import encode_key, encode_value
from broker_ref.transaction.request_validation import TransactionMetadata
from broker_ref.transaction.transitions import Transaction, prepare_dead

TOMBSTONES_BYTES_MAX: Final = 16384
"""The maximum size of a batch of tombstones, as in Kafka."""

_TOMBSTONE_BYTES_BESIDE_KEY_MAX: Final = 32


class ShardState(Enum):
    """The state of a shard: whether its partition is loaded and this broker still leads it."""

    LOADING = 0
    ACTIVE = 1
    FAILED = 2
    RESIGNED = 3


class Shard:
    """The transactional ids of one partition. A new shard is empty and in the LOADING state.

    `coordinator_epoch` is the leader epoch in which this broker loaded the partition. Partition
    leaders reject markers with an older coordinator epoch.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        schedule: Schedule,
        write_timeout_ms: int,
        mark_changed: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = partition.leader_epoch
        self.state = ShardState.LOADING
        self.ids: dict[str, TransactionMetadata] = {}
        self.writes = CoordinatorPartitionWriter(
            partition, schedule=schedule, timeout_ms=write_timeout_ms, mark_changed=mark_changed
        )

    @property
    def is_active(self) -> bool:
        """Return whether this broker has loaded the partition and still leads it."""
        return self.state is ShardState.ACTIVE

    def write(
        self,
        entry: TransactionMetadata,
        value: Transaction,
        now_ms: int,
        *,
        value_version: int,
        on_replicated: Callable[[], None] | None = None,
    ) -> PendingWrite:
        """Append the next state of a transactional id. Raises: ApiError if the append fails.

        `on_replicated` is called when the state has been replicated.
        """

        def appended(required_offset: int) -> None:
            del required_offset
            entry.pending = value

        def replicated() -> None:
            entry.current = value
            entry.pending = None
            entry.unmarked = set(value.partitions)
            if on_replicated is not None:
                on_replicated()

        record = Record(
            timestamp=now_ms,
            key=encode_key(entry.name),
            value=encode_value(value, version=value_version),
        )
        return self.writes.append(
            [record],
            now_ms,
            on_append=appended,
            on_replicated=replicated,
            timeout_ms=value.timeout_ms,
        )

    def write_tombstones(self, entries: Sequence[TransactionMetadata], now_ms: int) -> None:
        """Append tombstones in batches of the largest possible size. Raises: ApiError."""
        config = self.partition.log.config
        room_bytes = min(config.max_message_bytes, config.segment_bytes, TOMBSTONES_BYTES_MAX)
        for batch in _batches(entries, room_bytes - HEADER_BYTES):
            self._write_tombstone_batch(batch, now_ms)

    def _write_tombstone_batch(self, batch: Sequence[TransactionMetadata], now_ms: int) -> None:
        def appended(required_offset: int) -> None:
            del required_offset
            for entry in batch:
                entry.pending = prepare_dead(entry.current)

        def replicated() -> None:
            for entry in batch:
                self.ids.pop(entry.name, None)

        self.writes.append(
            [Record(timestamp=now_ms, key=encode_key(entry.name), value=None) for entry in batch],
            now_ms,
            on_append=appended,
            on_replicated=replicated,
        )


def _batches(
    entries: Iterable[TransactionMetadata], room_bytes: int
) -> Iterator[list[TransactionMetadata]]:
    batch: list[TransactionMetadata] = []
    batch_bytes = 0
    for entry in entries:
        record_bytes = len(encode_key(entry.name)) + _TOMBSTONE_BYTES_BESIDE_KEY_MAX
        if batch and batch_bytes + record_bytes > room_bytes:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(entry)
        batch_bytes += record_bytes
    if batch:
        yield batch
