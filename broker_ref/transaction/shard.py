"""What this broker coordinates of one partition of `__transaction_state`.

Purpose: the transactional ids of the partition, and the writes to it. Invariant: memory follows the
log: a value is `pending` when it is in the leader's log, and `current` when every in-sync replica
has it, or when it was read from the log as the shard was made; a write that is refused leaves
nothing behind. What it must not know: why something is written,
and requests. Source: Kafka's `TransactionStateManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final

from broker_ref.coordination.writes import Write, Writes
from broker_ref.log.batch import HEADER_BYTES
from broker_ref.log.records import Record
from broker_ref.replication.partition import Partition
from broker_ref.schedule import Schedule
from broker_ref.transaction.decisions import TransactionalId
from broker_ref.transaction.records import encode_key, encode_value
from broker_ref.transaction.transitions import Transaction, expired

TOMBSTONES_BYTES_MAX: Final = 16384
"""Of a batch of tombstones, as with Kafka."""

_TOMBSTONE_BYTES_BESIDE_KEY_MAX: Final = 32


class ShardState(Enum):
    """Whether the partition's transactional ids are known yet, and are this broker's still."""

    LOADING = 0
    ACTIVE = 1
    FAILED = 2
    RESIGNED = 3


class Shard:
    """The transactional ids of one partition, none and LOADING at first.

    `coordinator_epoch` is the leader epoch in which this broker has taken the partition over:
    markers of an older one are refused.
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
        self.ids: dict[str, TransactionalId] = {}
        self.writes = Writes(
            partition, schedule=schedule, timeout_ms=write_timeout_ms, mark_changed=mark_changed
        )

    @property
    def is_active(self) -> bool:
        """Whether this broker still coordinates, and knows what it is to know."""
        return self.state is ShardState.ACTIVE

    def write(
        self,
        entry: TransactionalId,
        value: Transaction,
        now_ms: int,
        *,
        value_version: int,
        on_replicated: Callable[[], None] | None = None,
    ) -> Write:
        """Append an id's next value; ApiError says why it is not.

        `on_replicated` is called when the value counts.
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

    def forget(self, entries: Sequence[TransactionalId], now_ms: int) -> None:
        """Append tombstones, in batches as large as the log takes them; ApiError where not."""
        config = self.partition.log.config
        room_bytes = min(config.max_message_bytes, config.segment_bytes, TOMBSTONES_BYTES_MAX)
        for batch in _batches(entries, room_bytes - HEADER_BYTES):
            self._forget(batch, now_ms)

    def _forget(self, batch: Sequence[TransactionalId], now_ms: int) -> None:
        def appended(required_offset: int) -> None:
            del required_offset
            for entry in batch:
                entry.pending = expired(entry.current)

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
    entries: Iterable[TransactionalId], room_bytes: int
) -> Iterator[list[TransactionalId]]:
    batch: list[TransactionalId] = []
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
