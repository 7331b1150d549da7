"""What a partition remembers of idempotent producers (KIP-98).

| producer | batch                              | answer                              |
| -------- | ---------------------------------- | ----------------------------------- |
| any      | same epoch, and (first, last)      | duplicate: success with the offsets |
|          | sequence of a remembered batch     | it got then, before any other check |
| known    | lower epoch                        | INVALID_PRODUCER_EPOCH              |
| known    | higher epoch, sequence 0           | appended; older batches forgotten   |
| known    | higher epoch, other sequence       | OUT_OF_ORDER_SEQUENCE_NUMBER        |
| known    | same epoch, next sequence          | appended                            |
| known    | same epoch, other sequence         | OUT_OF_ORDER_SEQUENCE_NUMBER        |
| unknown  | any sequence                       | appended                            |

Purpose: that table, over the last five batches of every producer. Invariant: `check` changes
nothing; `update` is called only after the append has succeeded, or while the log is read again.
What it must not know: files (see `producer_snapshots`), transactions: `coordinator_epoch` and
`current_txn_first_offset` are carried for the snapshot format and nothing sets them yet. Source:
ProducerStateManager, ProducerAppendInfo, ProducerStateEntry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, increment_sequence
from broker_ref.log.errors import LogError

BATCHES_REMEMBERED = 5
PRODUCER_ID_EXPIRATION_MS = 24 * 60 * 60 * 1000
NO_PRODUCER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """One remembered batch; `timestamp` is its largest, in milliseconds."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return increment_sequence(self.last_sequence, -self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True, kw_only=True)
class ProducerEntry:
    """One producer's state, batches oldest first. Times in milliseconds, -1: none."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class ProducerState:
    """The producers of one partition."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    @property
    def entries(self) -> tuple[ProducerEntry, ...]:
        """All producers, in the order in which they first wrote."""
        return tuple(self._entries.values())

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """The remembered batch that this one repeats, None where it is new."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch:
            return None
        for batch in entry.batches:
            if (
                batch.first_sequence == header.base_sequence
                and batch.last_sequence == header.last_sequence
            ):
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Whether a batch of a client may be appended; it is no duplicate.

        Raises: LogError(INVALID_PRODUCER_EPOCH), LogError(OUT_OF_ORDER_SEQUENCE_NUMBER).
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
            return
        if header.producer_epoch < entry.epoch:
            raise LogError(
                ErrorCode.invalid_producer_epoch,
                f"Producer {header.producer_id} writes with epoch {header.producer_epoch}, but "
                f"epoch {entry.epoch} has written already: another instance has taken over.",
            )
        if header.producer_epoch > entry.epoch:
            expected = 0
        else:
            expected = increment_sequence(entry.last_sequence, 1)
        if header.base_sequence != expected:
            raise LogError(
                ErrorCode.out_of_order_sequence_number,
                f"Producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
                f"{header.base_sequence}, but {expected} comes next: a batch between them was "
                "lost, or the producer's state was.",
            )

    def update(self, header: BatchHeader) -> None:
        """Remember a batch that is in the log, with the offsets it has there."""
        if not header.has_producer_id:
            return
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerEntry(producer_id=header.producer_id)
            self._entries[header.producer_id] = entry
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        # A marker has no sequence, but it is a sign of life.
        if not header.is_control:
            entry.batches.append(
                BatchMetadata(
                    last_sequence=header.last_sequence,
                    last_offset=header.last_offset,
                    offset_delta=header.last_offset_delta,
                    timestamp=header.max_timestamp,
                )
            )
        entry.last_timestamp = header.max_timestamp

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Replace everything by what a snapshot holds."""
        self._entries = {entry.producer_id: entry for entry in entries}

    def expire(self, now_ms: int, *, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> None:
        """Forget producers whose last batch is that old, unless a transaction of theirs is open."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.current_txn_first_offset >= 0 or now_ms - entry.last_timestamp < expiration_ms
        }
