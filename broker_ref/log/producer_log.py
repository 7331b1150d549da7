"""The producers of one log: their state, its snapshots and the aborted transactions.

Purpose: keep these three consistent with the batches of the log: checked before an append, updated
after it, and recovered from the latest snapshot after a start or a truncation. Invariant: the state
equals the batches up to the log end; the transaction index of each segment contains the aborted
transactions whose markers it contains. Must not know: the current high watermark, or why the log is
truncated. Source: `UnifiedLog.analyzeAndValidateProducerState`,
`ProducerStateManager.truncateAndReload`, `LogSegment.recover`.

It deliberately differs from Kafka in one point: Kafka assumes that a snapshot contains nothing
above the high watermark, so that it forgets which markers are not replicated, and lets readers read
beyond the last stable offset after a start or a truncation. Here they are recovered from the log.
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
    """The producers of a log that have written within `expiration_ms`."""

    def __init__(self, *, snapshots: ProducerSnapshots, expiration_ms: int) -> None:
        self.snapshots = snapshots
        self._expiration_ms = expiration_ms
        self._state = ProducerStateManager()
        self._guards = VerificationGuards()

    @property
    def entries(self) -> tuple[ProducerStateEntry, ...]:
        """Return all producers, in the order of their first write."""
        return self._state.entries

    # Before an append

    def maybe_start_transaction_verification(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        """Return a guard for a transaction that is not open here, or None if it is open.

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
        """Return whether the guard still allows the start of a transaction of the producer."""
        return self._guards.allows(producer_id, guard)

    def check(
        self, header: BatchHeader, *, origin: AppendOrigin, guard: VerificationGuard | None
    ) -> BatchMetadata | None:
        """Check a batch before an append by the leader; returns the original if it is a duplicate.

        Raises: LogError as in the table of `producer_state`.
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
                f"Producer {producer_id} (epoch {header.producer_epoch}) writes without an open "
                "transaction that the coordinator has verified.",
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
        """Do the same as `ProducerStateManager.check_marker`."""
        self._state.check_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=transaction_version,
        )

    # After an append

    def note(
        self, header: BatchHeader, marker: EndTransactionMarker | None, segment: LogSegment
    ) -> None:
        """Update the state with a batch that was appended to a segment. Raises: StorageError."""
        aborted = self._state.update(header, marker)
        if header.is_transactional:
            self._guards.end(header)
        if aborted is not None:
            segment.append_aborted(aborted)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Do the same as `ProducerStateManager.first_unstable_offset`."""
        return self._state.first_unstable_offset(high_watermark)

    def forget_replicated(self, high_watermark: int) -> None:
        """Do the same as `ProducerStateManager.forget_replicated`."""
        self._state.forget_replicated(high_watermark)

    def keep_snapshot(self, log_end_offset: int) -> None:
        """Durably store the state at the log end offset. Raises: StorageError."""
        self.snapshots.write(log_end_offset, self.entries)

    def expire(self, now_ms: int) -> None:
        """Remove producers whose last write is older than the expiration."""
        self._state.expire(now_ms, expiration_ms=self._expiration_ms)
        self._guards.expire(now_ms, expiration_ms=self._expiration_ms)

    # Recovery

    def clear(self) -> None:
        """Remove all state, as in an empty log. Raises: StorageError."""
        self.snapshots.keep(())
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
        """Recover the state at the log end, from the latest snapshot or from the log start.

        `high_watermark` is the checkpointed one, for a log that is opened; an open log already
        knows which markers are not replicated. The transaction indexes are correct, except from the
        segment on that starts at `indexed_to`, if given, from which they are rebuilt. Raises:
        CorruptLogError, StorageError.
        """
        self.snapshots.keep_between(log_start_offset, log_end_offset)
        listed = list(segments)
        if indexed_to is not None:
            for segment in listed:
                if segment.base_offset >= indexed_to:
                    segment.transactions.truncate_to(0)
            to_index = min(indexed_to, log_end_offset)
            self._read(listed, self._loaded(to_index, now_ms), log_start_offset, indexed_to)
        latest = self._loaded(log_end_offset, now_ms)
        state = self._read(listed, latest, log_start_offset, None)
        state.take_decided(self._state, end_offset=log_end_offset)
        if high_watermark is not None and (latest[1] or 0) > high_watermark:
            before = self._loaded(high_watermark, now_ms)
            known = self._unreplicated(listed, before, log_start_offset, high_watermark)
            state.take_decided(known, end_offset=log_end_offset)
        self._state = state

    def _unreplicated(
        self,
        segments: list[LogSegment],
        loaded: tuple[ProducerStateManager, int | None],
        log_start_offset: int,
        high_watermark: int,
    ) -> ProducerStateManager:
        """Return a state with the markers at or above the high watermark.

        As in Kafka it has none if the batches before the snapshot are damaged, so that a log with a
        sound snapshot can be opened.
        """
        try:
            state = self._read(segments, loaded, log_start_offset, None)
        except CorruptLogError as error:
            logger.warning("Unreplicated markers are treated as replicated: %s", error)
            return ProducerStateManager()
        state.forget_replicated(high_watermark)
        return state

    def _loaded(self, end_offset: int, now_ms: int) -> tuple[ProducerStateManager, int | None]:
        """Return the state of the latest snapshot at or below an offset, and its offset."""
        state = ProducerStateManager()
        latest = self.snapshots.latest(end_offset)
        if latest is None:
            return state, None
        state.load(latest[1])
        state.expire(now_ms, expiration_ms=self._expiration_ms)
        return state, latest[0]

    def _read(
        self,
        segments: list[LogSegment],
        loaded: tuple[ProducerStateManager, int | None],
        log_start_offset: int,
        indexed_to: int | None,
    ) -> ProducerStateManager:
        """Return the state after all batches, and add aborted transactions to the indexes."""
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
    """Return the markers in consecutive batches by offset.

    Raises: LogError(INVALID_RECORD) if a control batch is damaged.
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
