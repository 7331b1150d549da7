"""Producer state of a partition: sequences and transactions (KIP-98, `ProducerStateManager`).

| producer | batch from a client                | result                              |
| -------- | ---------------------------------- | ----------------------------------- |
| any      | same producer epoch, first and     | duplicate: success with the offsets |
|          | last sequence as a stored batch    | of the stored batch                 |
| any      | transactional, but no transaction  | INVALID_TXN_STATE without a         |
|          | with its producer epoch is open    | verification guard (KIP-890)        |
| known    | lower producer epoch               | INVALID_PRODUCER_EPOCH              |
| known    | higher producer epoch, sequence 0  | appended; stored batches removed    |
| known    | higher producer epoch, other       | OUT_OF_ORDER_SEQUENCE_NUMBER        |
|          | sequence                           |                                     |
| known    | same producer epoch, next sequence | appended                            |
| known    | same producer epoch, other         | OUT_OF_ORDER_SEQUENCE_NUMBER        |
|          | sequence                           |                                     |
| known    | not transactional, but a           | INVALID_TXN_STATE                   |
|          | transaction is open                |                                     |
| unknown  | any sequence                       | appended                            |

| producer | marker                             | result                              |
| -------- | ---------------------------------- | ----------------------------------- |
| known    | lower producer epoch               | INVALID_PRODUCER_EPOCH              |
| known    | same producer epoch, if a          | INVALID_PRODUCER_EPOCH              |
|          | transaction is open (transaction   |                                     |
|          | version 2, KIP-1228)               |                                     |
| known    | lower coordinator epoch            | TRANSACTION_COORDINATOR_FENCED      |
| any      | any other marker                   | appended; the transaction ends      |

    open ----marker----> completed, not replicated ----high watermark----> removed

The last stable offset is at most the first offset of any transaction that is open or not
replicated.

The state contains the last five batches of each producer. Invariants: checks do not change the
state. `update` is called after a successful append, or during recovery. Open transactions are
sorted by first offset. Source: `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import field
from operator import attrgetter

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.append import AppendOrigin
from broker_ref.log.batch import NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, increment_sequence
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.errors import LogError
from broker_ref.log.transaction_index import AbortedTransaction

BATCHES_RETAINED = 5
NO_PRODUCER_EPOCH = -1
NO_TRANSACTION = -1
EPOCH_MAX = 2**15 - 1

EPOCH_FOR_EACH_TRANSACTION = 2
"""From this version on, a marker has a higher producer epoch than its transaction (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """A stored batch. `timestamp` is the max timestamp of the batch in milliseconds."""

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
class ProducerStateEntry:
    """The state of a producer.

    The batches are sorted from oldest to newest. Timestamps are in milliseconds. -1 means that a
    value is not set.
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_RETAINED))
    last_timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = -1
    current_txn_first_offset: int = NO_TRANSACTION

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def has_open_transaction(self) -> bool:
        return self.current_txn_first_offset != NO_TRANSACTION


class ProducerStateManager:
    """The state of all producers of a partition."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}
        self._ongoing: dict[int, int] = {}
        """Maps the first offset of each open transaction to its producer id, in ascending order."""
        self._completed: dict[int, int] = {}
        """The marker offset of each completed, unreplicated transaction, by its first offset."""

    @property
    def entries(self) -> tuple[ProducerStateEntry, ...]:
        """Return the state of all producers, in the order of their first writes."""
        return tuple(self._entries.values())

    # Checks

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the stored batch that `header` duplicates, or None if there is none."""
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

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction with this producer epoch.

        If the open transaction has a lower producer epoch, return False, because its marker has not
        been written yet.
        """
        entry = self._entries.get(producer_id)
        return entry is not None and entry.has_open_transaction and entry.epoch == epoch

    def has_batches(self, producer_id: int) -> bool:
        """Return whether a batch with the current epoch of the producer is stored."""
        entry = self._entries.get(producer_id)
        return entry is not None and bool(entry.batches)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise LogError(INVALID_PRODUCER_EPOCH) if the producer has used a higher epoch."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise LogError(
                ErrorCode.invalid_producer_epoch,
                f"Producer {producer_id} uses epoch {epoch}, but its current epoch is "
                f"{entry.epoch}. Another instance has fenced this producer.",
            )

    def check(self, header: BatchHeader, *, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        """Check a batch on the leader.

        Before this check, the caller must check that the batch is not a duplicate, and verify the
        transaction if KIP-890 requires verification. Raises: LogError(INVALID_PRODUCER_EPOCH),
        LogError(OUT_OF_ORDER_SEQUENCE_NUMBER), LogError(INVALID_TXN_STATE).
        """
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
            return
        self.check_epoch(header.producer_id, header.producer_epoch)
        if origin is AppendOrigin.CLIENT:
            _check_sequence(header, entry)
        if entry.has_open_transaction and not header.is_transactional:
            raise LogError(
                ErrorCode.invalid_txn_state,
                f"Producer {header.producer_id} (epoch {header.producer_epoch}) sent a "
                "non-transactional batch, but the producer has an open transaction that starts at "
                f"offset {entry.current_txn_first_offset}.",
            )

    def check_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
    ) -> None:
        """Check a marker from a transaction coordinator.

        Raises: LogError(INVALID_PRODUCER_EPOCH), LogError(TRANSACTION_COORDINATOR_FENCED).
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        self.check_epoch(producer_id, producer_epoch)
        if (
            transaction_version >= EPOCH_FOR_EACH_TRANSACTION
            and producer_epoch == entry.epoch
            and entry.has_open_transaction
            and producer_epoch != EPOCH_MAX
        ):
            # If no transaction is open, the marker is a retry of a marker that has been written.
            raise LogError(
                ErrorCode.invalid_producer_epoch,
                f"A transaction marker for producer {producer_id} has epoch {producer_epoch}, but "
                "the producer has already started another transaction with this epoch. The marker "
                "is stale.",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise LogError(
                ErrorCode.transaction_coordinator_fenced,
                f"A transaction marker for producer {producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, but the current coordinator epoch is "
                f"{entry.coordinator_epoch}. Another broker has become the transaction "
                "coordinator.",
            )

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is open or not replicated.

        If the markers of all transactions are below the high watermark, return None.
        """
        first = next(iter(self._ongoing), None)
        for first_offset, last_offset in self._completed.items():
            if last_offset >= high_watermark and (first is None or first_offset < first):
                first = first_offset
        return first

    # Updates

    def update(
        self, header: BatchHeader, marker: EndTransactionMarker | None = None
    ) -> AbortedTransaction | None:
        """Update the state with a batch that has been written to the log.

        If the batch is a control batch, `marker` is its transaction marker. If the marker aborts a
        transaction, return this transaction, otherwise None.
        """
        if not header.has_producer_id:
            return None
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = ProducerStateEntry(producer_id=header.producer_id)
            self._entries[header.producer_id] = entry
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        # A marker has no sequence, but it updates the timestamp.
        entry.last_timestamp = header.max_timestamp
        if header.is_control:
            return None if marker is None else self._end(entry, header, marker)
        entry.batches.append(
            BatchMetadata(
                last_sequence=header.last_sequence,
                last_offset=header.last_offset,
                offset_delta=header.last_offset_delta,
                timestamp=header.max_timestamp,
            )
        )
        if header.is_transactional and not entry.has_open_transaction:
            entry.current_txn_first_offset = header.base_offset
            self._ongoing[header.base_offset] = header.producer_id
        return None

    def _end(
        self, entry: ProducerStateEntry, header: BatchHeader, marker: EndTransactionMarker
    ) -> AbortedTransaction | None:
        entry.coordinator_epoch = marker.coordinator_epoch
        if not entry.has_open_transaction:
            return None
        first_offset, entry.current_txn_first_offset = (
            entry.current_txn_first_offset,
            NO_TRANSACTION,
        )
        del self._ongoing[first_offset]
        self._completed[first_offset] = header.last_offset
        if marker.marker is Marker.COMMIT:
            return None
        return AbortedTransaction(
            producer_id=entry.producer_id,
            first_offset=first_offset,
            last_offset=header.last_offset,
            last_stable_offset=next(iter(self._ongoing), header.last_offset + 1),
        )

    def remove_replicated(self, high_watermark: int) -> None:
        """Remove completed transactions whose markers are below the high watermark."""
        if self._completed:
            self._completed = {
                first_offset: last_offset
                for first_offset, last_offset in self._completed.items()
                if last_offset >= high_watermark
            }

    def copy_completed(self, known: ProducerStateManager, *, end_offset: int) -> None:
        """Copy the completed transactions from `known` if their markers are below `end_offset`.

        Snapshots do not contain completed transactions.
        """
        self._completed |= {
            first_offset: last_offset
            for first_offset, last_offset in known._completed.items()
            if last_offset < end_offset
        }

    def load(self, entries: Iterable[ProducerStateEntry]) -> None:
        """Replace the state with the entries of a snapshot.

        Call `copy_completed` afterwards to add the completed transactions.
        """
        self._entries = {entry.producer_id: entry for entry in entries}
        is_open = [entry for entry in self._entries.values() if entry.has_open_transaction]
        self._ongoing = {
            entry.current_txn_first_offset: entry.producer_id
            for entry in sorted(is_open, key=attrgetter("current_txn_first_offset"))
        }
        self._completed = {}

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Remove producers that have no open transaction and whose last write is too old."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.has_open_transaction or now_ms - entry.last_timestamp < expiration_ms
        }


def _check_sequence(header: BatchHeader, entry: ProducerStateEntry) -> None:
    if header.producer_epoch > entry.epoch:
        expected = 0
    else:
        expected = increment_sequence(entry.last_sequence, 1)
    if header.base_sequence != expected:
        raise LogError(
            ErrorCode.out_of_order_sequence_number,
            f"Producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence number "
            f"{header.base_sequence}, but {expected} was expected. A previous batch or the "
            "producer state was lost.",
        )
