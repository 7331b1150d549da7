"""Producer state of a partition: sequences and transactions (KIP-98, `ProducerStateManager`).

| producer | batch of a client                  | result                              |
| -------- | ---------------------------------- | ----------------------------------- |
| any      | same epoch, and (first, last)      | duplicate: success with the offsets |
|          | sequence of a stored batch         | of the original, before other checks|
| any      | transactional, no transaction of   | INVALID_TXN_STATE without the guard |
|          | its epoch is open                  | of a verification (KIP-890)         |
| known    | lower epoch                        | INVALID_PRODUCER_EPOCH              |
| known    | higher epoch, sequence 0           | appended; older batches removed     |
| known    | higher epoch, other sequence       | OUT_OF_ORDER_SEQUENCE_NUMBER        |
| known    | same epoch, next sequence          | appended                            |
| known    | same epoch, other sequence         | OUT_OF_ORDER_SEQUENCE_NUMBER        |
| known    | not transactional, but one is open | INVALID_TXN_STATE                   |
| unknown  | any sequence                       | appended                            |

| producer | marker                             | result                              |
| -------- | ---------------------------------- | ----------------------------------- |
| known    | lower epoch; with transaction      | INVALID_PRODUCER_EPOCH              |
|          | version 2 also the same epoch, if  |                                     |
|          | a transaction is open (KIP-1228)   |                                     |
| known    | of an older coordinator epoch      | TRANSACTION_COORDINATOR_FENCED      |
| any      | any other                          | appended; its transaction is ended  |

transaction:  open ----marker----> decided, not replicated ----high watermark----> removed
              the last stable offset stays below the first offset of both

Purpose: these tables, over the last five batches of each producer. Invariant: checks change
nothing; `update` is called after the append has succeeded, or during recovery; open transactions
are sorted by first offset. Must not know: files (see `producer_snapshots`, `producer_log`), or the
current high watermark. Source: `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from kio.schema.errors import ErrorCode

from broker_ref.log.append import AppendOrigin
from broker_ref.log.batch import NO_SEQUENCE, NO_TIMESTAMP, BatchHeader, increment_sequence
from broker_ref.log.control import EndTransactionMarker, Marker
from broker_ref.log.errors import LogError
from broker_ref.log.transaction_index import AbortedTransaction

BATCHES_REMEMBERED = 5
NO_PRODUCER_EPOCH = -1
NO_TRANSACTION = -1
EPOCH_MAX = 2**15 - 1

EPOCH_FOR_EACH_TRANSACTION = 2
"""From this transaction version on, a marker has a higher epoch than its transaction (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """A stored batch; `timestamp` is its largest, in milliseconds."""

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
    """The state of a producer, batches oldest first. Times in milliseconds, -1: none."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_REMEMBERED))
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
    """The producers of a partition."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}
        self._open: dict[int, int] = {}
        """The producer of each open transaction, by first offset, ascending."""
        self._decided: dict[int, int] = {}
        """The marker offset of decided transactions by first offset; some are not replicated."""

    @property
    def entries(self) -> tuple[ProducerStateEntry, ...]:
        """Return all producers, in the order of their first write."""
        return tuple(self._entries.values())

    # Checks

    def duplicate_of(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the stored batch that this one repeats, or None."""
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
        """Return whether a batch of this epoch continues an open transaction.

        With a higher epoch it may start the next one before the marker of the last one has arrived.
        """
        entry = self._entries.get(producer_id)
        return entry is not None and entry.has_open_transaction and entry.epoch == epoch

    def has_batches(self, producer_id: int) -> bool:
        """Return whether any batch of the producer's epoch is stored."""
        entry = self._entries.get(producer_id)
        return entry is not None and bool(entry.batches)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise LogError(INVALID_PRODUCER_EPOCH) if a later epoch has written."""
        entry = self._entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise LogError(
                ErrorCode.invalid_producer_epoch,
                f"Producer {producer_id} writes with epoch {epoch}, but epoch {entry.epoch} has "
                "written: another producer instance has fenced this one.",
            )

    def check(self, header: BatchHeader, *, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
        """Check a batch at the leader that is neither a duplicate nor unverified.

        Raises: LogError(INVALID_PRODUCER_EPOCH), LogError(OUT_OF_ORDER_SEQUENCE_NUMBER),
        LogError(INVALID_TXN_STATE).
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
                f"Producer {header.producer_id} (epoch {header.producer_epoch}) writes outside of "
                "its transaction, which has been open since offset "
                f"{entry.current_txn_first_offset}.",
            )

    def check_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
    ) -> None:
        """Check a coordinator's marker.

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
            # Without an open transaction the marker is a retry whose response was lost.
            raise LogError(
                ErrorCode.invalid_producer_epoch,
                f"A marker of producer {producer_id} has epoch {producer_epoch}, in which the "
                "producer has started another transaction. The marker is outdated.",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise LogError(
                ErrorCode.transaction_coordinator_fenced,
                f"A marker of producer {producer_id} has coordinator epoch "
                f"{marker.coordinator_epoch}, but coordinator epoch {entry.coordinator_epoch} has "
                "written: another broker has become coordinator.",
            )

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the start of the first transaction that is open or not replicated.

        None if every transaction is decided below the high watermark.
        """
        first = next(iter(self._open), None)
        for first_offset, last_offset in self._decided.items():
            if last_offset >= high_watermark and (first is None or first_offset < first):
                first = first_offset
        return first

    # Updates

    def update(
        self, header: BatchHeader, marker: EndTransactionMarker | None = None
    ) -> AbortedTransaction | None:
        """Update the state with a batch in the log, with its offsets.

        `marker` is the content of a control batch. Returns the transaction that it aborts, if any.
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
            self._open[header.base_offset] = header.producer_id
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
        del self._open[first_offset]
        self._decided[first_offset] = header.last_offset
        if marker.marker is Marker.COMMIT:
            return None
        return AbortedTransaction(
            producer_id=entry.producer_id,
            first_offset=first_offset,
            last_offset=header.last_offset,
            last_stable_offset=next(iter(self._open), header.last_offset + 1),
        )

    def forget_replicated(self, high_watermark: int) -> None:
        """Remove decided transactions whose markers are below the high watermark."""
        if self._decided:
            self._decided = {
                first_offset: last_offset
                for first_offset, last_offset in self._decided.items()
                if last_offset >= high_watermark
            }

    def take_decided(self, known: ProducerStateManager, *, end_offset: int) -> None:
        """Copy the decided but unreplicated transactions with markers below an offset.

        A snapshot does not contain them.
        """
        self._decided |= {
            first_offset: last_offset
            for first_offset, last_offset in known._decided.items()
            if last_offset < end_offset
        }

    def load(self, entries: Iterable[ProducerStateEntry]) -> None:
        """Replace the state by that of a snapshot; `take_decided` adds the decided transactions."""
        self._entries = {entry.producer_id: entry for entry in entries}
        is_open = [entry for entry in self._entries.values() if entry.has_open_transaction]
        self._open = {
            entry.current_txn_first_offset: entry.producer_id
            for entry in sorted(is_open, key=attrgetter("current_txn_first_offset"))
        }
        self._decided = {}

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Remove producers whose last batch is too old, unless they have an open transaction."""
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
            f"Producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
            f"{header.base_sequence}, but {expected} was expected: a batch between them, or the "
            "producer's state, was lost.",
        )
