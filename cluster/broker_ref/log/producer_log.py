"""The producer state of one log, its snapshots, and the aborted transactions.

Keeps the producer state, the snapshots and the transaction indexes consistent with the batches of
the log. A batch is checked before it is appended, and the state is updated afterwards. After a
startup or a truncation, the state is recovered from the latest snapshot. Invariants: the state
reflects all batches below the log end offset. The transaction index of each segment contains the
aborted transactions whose markers are in the segment. Source:
`UnifiedLog.analyzeAndValidateProducerState`, `ProducerStateManager.truncateAndReload`,
`LogSegment.recover`.

One behavior deliberately differs from Kafka. Kafka assumes that a snapshot contains no batches
above the high watermark. After a startup or a truncation, Kafka therefore treats all markers as
replicated, and consumers can read beyond the last stable offset. This broker determines from the
log which markers are not yet replicated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from kio.schema.errors import ErrorCode

from broker_ref.log.append import AppendOrigin
from broker_ref.log.batch import BatchHeader
from broker_ref.log.control import EndTransactionMarker, decode_marker
from broker_ref.log.errors import CorruptLogError, LogError
from broker_ref.log.producer_snapshots import ProducerSnapshots
from broker_ref.log.producer_state import (
    BatchMetadata,
    ProducerStateEntry,
    ProducerStateManager,
)
from broker_ref.log.segment import LogSegment
from broker_ref.log.verification_guards import VerificationGuard, VerificationGuards

logger = logging.getLogger(__name__)


class ProducerLog:
    """The state of all producers that have written to a log within the last `expiration_ms`."""

    def __init__(self, *, snapshots: ProducerSnapshots, expiration_ms: int) -> None:
        self.snapshots = snapshots
        self.expiration_ms = expiration_ms
        self._state = ProducerStateManager()
        self._guards = VerificationGuards()

    @property
    def entries(self) -> tuple[ProducerStateEntry, ...]:
        """Return the state of all producers, in the order of their first writes."""
        return self._state.entries

    # Before an append

    def maybe_start_transaction_verification(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        """Return a verification guard, or None if the producer has an open transaction in this log.

        Raises: LogError(INVALID_PRODUCER_EPOCH).
        """
        self._state.check_epoch(producer_id, epoch)
        if self._state.has_open_transaction(producer_id, epoch):
            return None
        return self._guards.begin(
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            supports_epoch_bump=supports_epoch_bump,
            now_ms=now_ms,
        )

    def allows(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Return whether `guard` still allows the producer to start a transaction (KIP-890)."""
        return self._guards.allows(producer_id, guard)

    def check(
        self, header: BatchHeader, *, origin: AppendOrigin, guard: VerificationGuard | None
    ) -> BatchMetadata | None:
        """Check a batch before the leader appends it.

        If the batch is a duplicate, return the original batch, otherwise None. Raises: LogError
        (see the tables in `producer_state`).
        """
        if not header.has_producer_id:
            return None
        producer_id = header.producer_id
        if origin is AppendOrigin.CLIENT:
            duplicate = self._state.duplicate_of(header)
            if duplicate is not None:
                return duplicate
        self._state.check_epoch(producer_id, header.producer_epoch)
        if (
            header.is_transactional
            and not self._state.has_open_transaction(producer_id, header.producer_epoch)
            and not self.allows(producer_id, guard)
        ):
            raise LogError(
                ErrorCode.invalid_txn_state,
                f"Producer {producer_id} (epoch {header.producer_epoch}) sent a transactional "
                "batch, but the transaction coordinator has not verified that the producer has an "
                "open transaction.",
            )
        if origin is AppendOrigin.CLIENT:
            self._guards.check_sequence(header, is_first=not self._state.has_batches(producer_id))
        self._state.check(header, origin=origin)
        return None

    def check_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
    ) -> None:
        """Check a marker. See `ProducerStateManager.check_marker`."""
        self._state.check_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=transaction_version,
        )

    # After an append

    def update(
        self, header: BatchHeader, marker: EndTransactionMarker | None, segment: LogSegment
    ) -> None:
        """Update the state with a batch that was appended to a segment. Raises: StorageError."""
        aborted = self._state.update(header, marker)
        if header.is_transactional:
            self._guards.end(header)
        if aborted is not None:
            segment.append_aborted(aborted)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first unstable offset. See `ProducerStateManager.first_unstable_offset`."""
        return self._state.first_unstable_offset(high_watermark)

    def remove_replicated(self, high_watermark: int) -> None:
        """Remove replicated transactions. See `ProducerStateManager.remove_replicated`."""
        self._state.remove_replicated(high_watermark)

    def take_snapshot(self, log_end_offset: int) -> None:
        """Durably store a snapshot at the log end offset. Raises: StorageError."""
        self.snapshots.write(log_end_offset, self.entries)

    def expire(self, now_ms: int) -> None:
        """Remove the state of producers that have been idle for `expiration_ms`."""
        self._state.expire(now_ms, expiration_ms=self.expiration_ms)
        self._guards.expire(now_ms, expiration_ms=self.expiration_ms)

    # Recovery

    def clear(self) -> None:
        """Remove the state of all producers, and all snapshots. Raises: StorageError."""
        self.snapshots.retain_only(())
        self._state = ProducerStateManager()

    def load(
        self,
        segments: Iterable[LogSegment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        now_ms: int,
        high_watermark: int | None = None,
        indexed_to: int | None = None,
    ) -> None:
        """Recover the producer state at the log end offset.

        The state is read from the latest snapshot and the batches after it, or from all batches if
        there is no snapshot. When a log is opened, `high_watermark` is the checkpointed high
        watermark. When a log is truncated, `high_watermark` is None, because the current state
        already contains the markers that are not replicated. If `indexed_to` is set, the
        transaction indexes of all segments with a base offset of at least `indexed_to` are rebuilt.
        Raises: CorruptLogError, StorageError.
        """
        self.snapshots.retain_between(log_start_offset, log_end_offset)
        listed = list(segments)
        if high_watermark is not None:
            self.snapshots.remove_stray([segment.base_offset for segment in listed])
        if indexed_to is not None:
            for segment in listed:
                if segment.base_offset >= indexed_to:
                    segment.transactions.truncate_to(0)
            to_index = min(indexed_to, log_end_offset)
            self._read(listed, self._loaded(to_index, now_ms), log_start_offset, indexed_to)
        latest = self._loaded(log_end_offset, now_ms)
        state = self._read(listed, latest, log_start_offset, None)
        state.copy_completed(self._state, end_offset=log_end_offset)
        if high_watermark is not None and (latest[1] or 0) > high_watermark:
            before = self._loaded(high_watermark, now_ms)
            known = self._unreplicated(listed, before, log_start_offset, high_watermark)
            state.copy_completed(known, end_offset=log_end_offset)
        self._state = state

    def _unreplicated(
        self,
        segments: list[LogSegment],
        loaded: tuple[ProducerStateManager, int | None],
        log_start_offset: int,
        high_watermark: int,
    ) -> ProducerStateManager:
        """Return a producer state with the completed transactions whose markers are not replicated.

        If the batches before the latest snapshot are corrupt, the state is empty, as in Kafka, so
        the log can be opened if its snapshot is valid.
        """
        try:
            state = self._read(segments, loaded, log_start_offset, None)
        except CorruptLogError as error:
            logger.warning(
                "Cannot read the transaction markers above the high watermark. Treating the "
                "markers as replicated: %s",
                error,
            )
            return ProducerStateManager()
        state.remove_replicated(high_watermark)
        return state

    def _loaded(self, end_offset: int, now_ms: int) -> tuple[ProducerStateManager, int | None]:
        """Return the state and the offset of the latest snapshot at or below `end_offset`.

        If there is no such snapshot, return an empty state and None.
        """
        state = ProducerStateManager()
        latest = self.snapshots.latest(end_offset)
        if latest is None:
            return state, None
        state.load(latest[1])
        state.expire(now_ms, expiration_ms=self.expiration_ms)
        return state, latest[0]

    def _read(
        self,
        segments: list[LogSegment],
        loaded: tuple[ProducerStateManager, int | None],
        log_start_offset: int,
        indexed_to: int | None,
    ) -> ProducerStateManager:
        """Apply all batches after the loaded snapshot, and return the resulting state.

        If `indexed_to` is set, aborted transactions are added to the transaction indexes of all
        segments with a base offset of at least `indexed_to`.
        """
        state, snapshot_offset = loaded
        offset = log_start_offset if snapshot_offset is None else snapshot_offset
        for index, segment in enumerate(segments):
            if index + 1 < len(segments) and segments[index + 1].base_offset <= offset:
                continue
            to_index = indexed_to is not None and segment.base_offset >= indexed_to
            for header, marker in segment.batches_from(offset):
                aborted = state.update(header, marker)
                if aborted is not None and to_index:
                    segment.append_aborted(aborted)
            if to_index:
                segment.transactions.flush()
        return state


def markers_of(
    headers: Sequence[BatchHeader], batches: memoryview
) -> dict[int, EndTransactionMarker]:
    """Return the markers in consecutive batches, keyed by base offset.

    Raises: LogError(INVALID_RECORD) if a control batch is malformed.
    """
    found: dict[int, EndTransactionMarker] = {}
    position = 0
    for header in headers:
        end = position + header.size_bytes
        if header.is_control:
            marker = decode_marker(batches[position:end])
            if marker is not None:
                found[header.base_offset] = marker
        position = end
    return found
