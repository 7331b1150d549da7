"""The log of one partition on one broker (Kafka's `UnifiedLog`).

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex .txnindex    an inactive segment
        00000000000000001042.log .index .timeindex              the active segment, for appends
        00000000000000001042.snapshot                           producer state at that offset
        leader-epoch-checkpoint

    log start offset <= segments ... <= recovery point <= log end offset
    reads below it      records below it are       the offset of the
    are rejected        flushed to disk            next record

Invariants: offsets increase from the log start offset to the log end offset. Only compaction
creates gaps between them. A rejected append does not change the log. After a failed write, the log
rejects appends until it is reopened, because the state on disk is unknown. A failed read does not
change the log. A write that could not be started does not change it either.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from kio.schema.errors import ErrorCode

from broker_ref.log.append import AppendOrigin, AppendResult
from broker_ref.log.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    rewrite,
    unpack_header,
)
from broker_ref.log.config import LogConfig
from broker_ref.log.control import EndTransactionMarker, encode_marker
from broker_ref.log.errors import LogError
from broker_ref.log.producer_log import markers_of
from broker_ref.log.producer_state import ProducerStateEntry
from broker_ref.log.recompression import recompressed
from broker_ref.log.recovery import LoadedLog, LogLoader
from broker_ref.log.replicated import check_replicated
from broker_ref.log.retention import count_expired
from broker_ref.log.segment import LogSegment, TimestampAndOffset
from broker_ref.log.segments import LogPosition, LogSegments
from broker_ref.log.storage import RetriableStorageError, Storage, StorageError
from broker_ref.log.storage_health import StorageHealth, not_retriable
from broker_ref.log.swapping import CLEANED_SUFFIX, SWAP_SUFFIX, cleaned_names
from broker_ref.log.transaction_index import AbortedTransaction
from broker_ref.log.validation import check_produced
from broker_ref.log.verification_guards import VerificationGuard

__all__ = ["AppendOrigin", "AppendResult", "LogPosition", "PartitionLog"]


class PartitionLog:
    """The log of one partition, created by `open`. Not thread-safe."""

    def __init__(
        self,
        *,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: int,
        loaded: LoadedLog,
        needs_seal: bool,
        on_truncate: Callable[[int], None],
        before_first_write: Callable[[], None],
    ) -> None:
        self.directory = directory
        self.config = config
        self._storage = storage
        self._on_truncate = on_truncate
        self._before_first_write: Callable[[], None] | None = before_first_write
        self._segments = LogSegments(loaded.segments)
        # These are attributes, not properties, because each request reads them several times.
        self.log_start_offset = loaded.log_start_offset
        """The first offset that can be read. Only this class changes it."""
        self.log_end_offset = loaded.log_end_offset
        """The offset of the next record to be appended. Only this class changes it."""
        self._recovery_point = loaded.recovery_point
        self._last_flush_ms = now_ms
        self._needs_seal = needs_seal
        """Whether the log has changed since it was last closed."""
        self._health = StorageHealth(directory)
        self.leader_epochs = loaded.leader_epochs
        self.producers = loaded.producers
        self.removals = 0
        """Counts removals and truncations of segments, which invalidate earlier lookups."""

    @classmethod
    def open(
        cls,
        *,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        on_truncate: Callable[[int], None] = lambda _: None,
        before_first_write: Callable[[], None] = lambda: None,
    ) -> PartitionLog:
        """Open the log in `directory`, or create it if it does not exist.

        If `clean` is True, the last shutdown was clean, so the log does not need to be recovered.
        `recovery_point`, `log_start_offset` and `high_watermark` are the checkpointed offsets (see
        `LogManager`). Before each truncation, the log calls `on_truncate` with the new log end
        offset. `on_truncate` must durably lower the checkpoints. The log calls
        `before_first_write` before the first write. If `before_first_write` raises an exception, it
        is called again before the next write.

        After an unclean shutdown, recovered records are flushed if their number reaches
        `flush.messages`, so that no consumer reads a record that a power failure then removes. In
        contrast, Kafka's `LogLoader.recoverLog` does not flush recovered records.

        Raises: CorruptLogError with the file and the position, StorageError.
        """
        loaded = LogLoader(
            storage=storage,
            directory=directory,
            config=config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
        ).load()
        log = cls(
            storage=storage,
            directory=directory,
            config=config,
            now_ms=now_ms,
            loaded=loaded,
            # An empty log need not be sealed: if it is lost, the broker creates it again.
            needs_seal=not clean and loaded.log_end_offset > 0,
            on_truncate=on_truncate,
            before_first_write=before_first_write,
        )
        if not clean:
            log._flush_if_required(now_ms)
        return log

    def update_config(self, config: LogConfig) -> None:
        """Apply a new config. Changes to index settings apply to the next segment."""
        self.config = config
        self.producers.expiration_ms = config.producer_id_expiration_ms

    @property
    def recovery_point(self) -> int:
        """The offset below which all records are flushed to disk."""
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        """Return the size of all log files in bytes, without indexes."""
        return self._segments.size_bytes

    @property
    def segments(self) -> LogSegments:
        """The segments, which callers must not modify."""
        return self._segments

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """Return the base offsets of all segments, oldest first."""
        return self._segments.base_offsets

    @property
    def producer_entries(self) -> tuple[ProducerStateEntry, ...]:
        """Return the state of all producers (for DescribeProducers)."""
        return self.producers.entries

    @property
    def storage_error(self) -> str | None:
        """Return the reason why the log rejects appends, or None."""
        return self._health.error

    # Appending

    def append(
        self,
        records: bytes,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append a batch from a producer and assign its offsets (`UnifiedLog.appendAsLeader`).

        Records are decoded only in these cases:

        - The topic is compacted, or it limits the age of timestamps.
        - The max timestamp is too far in the future.
        - `compression.type` specifies a codec that differs from the codec of the batch.

        Raises: LogError with one of Kafka's error codes (INVALID_RECORD, CORRUPT_MESSAGE,
        MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_PRODUCER_EPOCH,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR), RecordValidationError
        if some records are invalid.
        """
        self._health.require()
        header = check_produced(
            records, config=self.config, directory=self.directory, now_ms=now_ms, origin=origin
        )
        duplicate = self.producers.check(header, origin=origin, guard=guard)
        if duplicate is not None:
            return AppendResult(
                base_offset=duplicate.first_offset,
                last_offset=duplicate.last_offset,
                log_append_time_ms=duplicate.timestamp,
                log_start_offset=self.log_start_offset,
                is_duplicate=True,
            )
        batch = recompressed(header, memoryview(records)[: header.size_bytes], self.config)
        return self._append_checked(batch, leader_epoch=leader_epoch, now_ms=now_ms)

    def append_end_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendResult:
        """Append a marker that completes a producer's transaction. This broker must be the leader.

        Raises: LogError with INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED,
        KAFKA_STORAGE_ERROR.
        """
        self._health.require()
        self.producers.check_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_version=transaction_version,
        )
        batch = encode_marker(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=now_ms
        )
        return self._append_checked(batch, leader_epoch=leader_epoch, now_ms=now_ms)

    def _append_checked(
        self, batch: bytes | memoryview, *, leader_epoch: int, now_ms: int
    ) -> AppendResult:
        stamped = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        placed = rewrite(
            batch,
            base_offset=self.log_end_offset,
            leader_epoch=leader_epoch,
            log_append_time_ms=now_ms if stamped else None,
        )
        header = unpack_header(placed)
        with self._health.writing():
            self._write([header], memoryview(placed), now_ms)
        return AppendResult(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            log_append_time_ms=now_ms if stamped else NO_TIMESTAMP,
            log_start_offset=self.log_start_offset,
            is_duplicate=False,
        )

    def append_as_follower(self, records: bytes, *, now_ms: int) -> None:
        """Append batches to which the leader has assigned offsets (`UnifiedLog.appendAsFollower`).

        The first batch starts at the log end offset, or at a higher offset if the leader's log was
        compacted. All batches are checked before the first one is written. Raises:
        LogError(OFFSET_OUT_OF_RANGE) if the first batch starts below the log end offset,
        LogError(CORRUPT_MESSAGE), LogError(KAFKA_STORAGE_ERROR).
        """
        self._health.require()
        headers = check_replicated(
            records, log_end_offset=self.log_end_offset, directory=self.directory
        )
        with self._health.writing():
            self._write(headers, memoryview(records), now_ms)

    def _write(self, headers: Sequence[BatchHeader], view: memoryview, now_ms: int) -> None:
        """Write batches at the end of the log, with one write per segment."""
        self._begin_writing()
        markers = markers_of(headers, view)
        for header in headers:
            if header.partition_leader_epoch != self.leader_epochs.latest and (
                header.partition_leader_epoch >= 0
            ):
                self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        self.leader_epochs.flush()
        log_end_offset = self.log_end_offset
        try:
            self._write_runs(headers, view, markers, now_ms)
            self._flush_if_required(now_ms)
        except RetriableStorageError as error:
            if self.log_end_offset == log_end_offset:
                raise
            # Batches were written, but they may not have been flushed. A retry would write them
            # again.
            raise StorageError(str(error)) from error

    def _write_runs(
        self,
        headers: Sequence[BatchHeader],
        view: memoryview,
        markers: Mapping[int, EndTransactionMarker],
        now_ms: int,
    ) -> None:
        # The batches to write next: the index of the first batch, and their bounds in the view.
        first = start = end = 0
        for index, header in enumerate(headers):
            active = self._segments.active
            # The first batch of a segment determines when the segment is rolled, so this batch is
            # written separately.
            if end > start and (
                active.size_bytes == 0 or self._should_roll(header, now_ms, end - start)
            ):
                self._write_run(headers[first:index], view[start:end], markers)
                first, start = index, end
            if end == start and self._should_roll(header, now_ms, 0):
                self._roll(now_ms, header.base_offset)
            end += header.size_bytes
        if end > start:
            self._write_run(headers[first:], view[start:end], markers)

    def _begin_writing(self) -> None:
        self._needs_seal = True
        if self._before_first_write is not None:
            self._before_first_write()
            self._before_first_write = None

    def _should_roll(self, header: BatchHeader, now_ms: int, pending_bytes: int) -> bool:
        return self._segments.active.should_roll(
            self.config,
            batch_bytes=pending_bytes + header.size_bytes,
            max_timestamp=header.max_timestamp,
            last_offset=header.last_offset,
            now_ms=now_ms,
        )

    def _write_run(
        self,
        headers: Sequence[BatchHeader],
        batches: memoryview,
        markers: Mapping[int, EndTransactionMarker],
    ) -> None:
        self._segments.active.append(batches, headers)
        self.log_end_offset = headers[-1].next_offset
        for header in headers:
            self.producers.update(header, markers.get(header.base_offset), self._segments.active)

    def _roll(self, now_ms: int, base_offset: int) -> None:
        """Flush the active segment, store a producer snapshot, and create a new active segment."""
        self._seal(now_ms, next_offset=base_offset)
        self._needs_seal = True
        with not_retriable():  # Some of the segment's files may already exist.
            self._segments.add(self._new_segment(base_offset, now_ms))
        self.log_end_offset = base_offset

    def _new_segment(self, base_offset: int, now_ms: int, *, name_end: str = "") -> LogSegment:
        return LogSegment(
            storage=self._storage,
            directory=self.directory,
            base_offset=base_offset,
            config=self.config,
            now_ms=now_ms,
            name_end=name_end,
        )

    # Truncation

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Durably remove all batches that end at or after `offset` (`UnifiedLog.truncateTo`).

        A batch that contains `offset` is removed entirely. The new log end offset is lower than
        `offset` if `offset` is in the middle of a batch, or if there is a gap before `offset`.
        `on_truncate` is called before any data is removed. Raises: LogError.
        """
        self._health.require()
        with self._health.writing():
            if offset >= self.log_end_offset:
                # A leader epoch can start at the log end offset before its first record.
                self.leader_epochs.truncate_from_end(offset)
            elif offset < self._segments[0].base_offset:
                self.truncate_fully_and_start_at(offset, now_ms=now_ms)
            else:
                with not_retriable():
                    self._truncate(offset, now_ms)

    def _truncate(self, offset: int, now_ms: int) -> None:
        # The last segment after the truncation. All earlier segments are complete and flushed.
        index = self._segments.index_of(offset)
        kept_offset = self._segments[index].end_offset_after_truncation(offset)
        self._lower_checkpoints(
            kept_offset, log_start_offset=min(self.log_start_offset, kept_offset)
        )
        self._segments.delete_newest_to(index + 1)
        self._segments.active.truncate_to(offset)
        self.log_end_offset = kept_offset
        self.leader_epochs.truncate_from_end(kept_offset)
        self.producers.load(
            self._segments,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            now_ms=now_ms,
        )

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove all records and start the empty log at `offset`. Raises: LogError."""
        self._health.require()
        with self._health.writing(), not_retriable():
            self._restart_at(offset, now_ms)

    def _restart_at(self, offset: int, now_ms: int) -> None:
        self._begin_writing()
        # After a crash, the next startup either recovers the remaining segments or creates an empty
        # log at `offset`.
        self._lower_checkpoints(min(self._segments[0].base_offset, offset), log_start_offset=offset)
        self._segments.delete_newest_to(0)
        self._segments.add(self._new_segment(offset, now_ms))
        self._segments.active.flush()
        self.log_end_offset = offset
        self.leader_epochs.clear()
        self.producers.clear()

    def _lower_checkpoints(self, recovery_point: int, *, log_start_offset: int) -> None:
        """Durably lower the checkpoints, before data is removed."""
        self._needs_seal = True
        self.removals += 1
        self._recovery_point = min(self._recovery_point, recovery_point)
        self.log_start_offset = log_start_offset
        self._on_truncate(recovery_point)

    # Reading

    def read(
        self, start_offset: int, *, end_offset: int, max_bytes: int, at_least_one_batch: bool
    ) -> bytes:
        """Return complete batches up to `end_offset`, from the batch that contains `start_offset`.

        Return no batches if `start_offset` is at or above `end_offset`, or if the first batch
        exceeds `max_bytes` and `at_least_one_batch` is False. Each call reads from a single
        segment.

        Raises: LogError(OFFSET_OUT_OF_RANGE) if `start_offset` is below the log start offset or
        above the log end offset, CorruptLogError if a batch on disk is corrupt.
        """
        self._require_in_range(start_offset)
        end_offset = min(end_offset, self.log_end_offset)
        if start_offset >= end_offset or (max_bytes <= 0 and not at_least_one_batch):
            return b""
        with self._health.reading():
            return self._segments.read(
                start_offset,
                end_offset=end_offset,
                max_bytes=max_bytes,
                at_least_one_batch=at_least_one_batch,
            )

    def position_of(self, offset: int) -> LogPosition:
        """Return the position of the batch that contains `offset`.

        If `offset` is the log end offset, return the end position of the log. Only batch headers
        are read. Raises: see `read`.
        """
        self._require_in_range(offset)
        if offset == self.log_end_offset:
            return self._segments.end_position()
        with self._health.reading():
            return self._segments.position_of(offset)

    def _require_in_range(self, offset: int) -> None:
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise LogError(
                ErrorCode.offset_out_of_range,
                f"Offset {offset} of {self.directory} is out of range. The log start offset is "
                f"{self.log_start_offset}, and the log end offset is {self.log_end_offset}.",
            )

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset. All transactions below it are complete and replicated."""
        first = self.producers.first_unstable_offset(high_watermark)
        if first is None:
            return high_watermark
        return min(max(first, self.log_start_offset), high_watermark)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap a range of offsets. Raises: LogError."""
        with self._health.reading():
            return self._segments.aborted_transactions(start_offset, end_offset)

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> TimestampAndOffset | None:
        """Return the first record below `end_offset` whose timestamp is at least `timestamp_ms`."""
        with self._health.reading():
            return self._segments.find_timestamp(
                timestamp_ms, start_offset=self.log_start_offset, end_offset=end_offset
            )

    def offset_of_max_timestamp(self, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first of the records with the largest timestamp in the log.

        Return None if this record is at or above `end_offset`. As in Kafka, the record can be
        below the log start offset if its segment still exists.
        """
        with self._health.reading():
            found = self._segments.find_max_timestamp(end_offset=end_offset)
        return found if found is not None and found.offset < end_offset else None

    # Retention

    def delete_records_before(self, offset: int) -> int:
        """Increase the log start offset to `offset`, and return the new log start offset.

        The next `apply_retention` removes the segments below the log start offset. Raises:
        LogError(OFFSET_OUT_OF_RANGE) if `offset` is negative or above the log end offset.
        """
        if not 0 <= offset <= self.log_end_offset:
            raise LogError(
                ErrorCode.offset_out_of_range,
                f"Cannot delete records from {self.directory} up to offset {offset}. The log start "
                f"offset is {self.log_start_offset}, and the log end offset is "
                f"{self.log_end_offset}.",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            with self._health.writing():
                self.leader_epochs.truncate_from_start(offset)
        return self.log_start_offset

    def apply_retention(
        self, now_ms: int, *, high_watermark: int | None = None, segments_max: int = sys.maxsize
    ) -> int:
        """Delete at most `segments_max` old segments according to `cleanup.policy`.

        Return the number of deleted segments. Only segments below `high_watermark` (default: the
        log end offset) are deleted. Before the active segment is deleted, a new active segment is
        created.
        """
        self._health.require()
        with self._health.writing():
            count = count_expired(
                self._segments,
                config=self.config,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                high_watermark=self.log_end_offset if high_watermark is None else high_watermark,
                now_ms=now_ms,
            )
            count = min(count, segments_max)
            if count:
                self._delete_oldest(count, now_ms)
        return count

    def _delete_oldest(self, count: int, now_ms: int) -> None:
        if count == len(self._segments):
            self._roll(now_ms, self.log_end_offset)
        # The directory must always contain a segment, because the name of the segment determines
        # the next offset.
        self._segments[count].flush()
        self.removals += 1
        deleted = self._segments.take_oldest(count)
        first_offset = self._segments[0].base_offset
        self.delete_records_before(max(self.log_start_offset, first_offset))
        for segment in deleted:
            segment.delete()
        snapshots = self.producers.snapshots
        snapshots.retain_only(offset for offset in snapshots.offsets if offset >= first_offset)

    def expire_producers(self, now_ms: int) -> None:
        """Remove the state of producers that have not written for `producer.id.expiration.ms`."""
        self.producers.expire(now_ms)

    # Compaction

    def new_cleaned_segment(self, old: Sequence[LogSegment]) -> LogSegment:
        """Create an empty segment for the retained records of consecutive segments.

        The new segment is not yet part of the log. It receives the creation time of the newest
        segment in `old`, so that retention does not delete records too early. Raises: StorageError.
        """
        base_offset = old[0].base_offset
        for name in cleaned_names(base_offset):
            self._storage.remove(f"{self.directory}/{name}")
        created_ms = max(segment.created_ms for segment in old)
        return self._new_segment(base_offset, created_ms, name_end=CLEANED_SUFFIX)

    def replace_segments(self, old: Sequence[LogSegment], cleaned: LogSegment) -> None:
        """Replace the segments in `old` with the compacted segment, and delete them.

        If the broker crashes during this call, either the old segments remain, or the next startup
        completes the replacement (see `recovery`). Raises: LogError.
        """
        self._health.require()
        with self._health.writing():
            if any(segment.transactions.exists_on_disk for segment in old):
                cleaned.transactions.create()  # The new index replaces the old one.
            cleaned.seal()
            cleaned.flush()
            with not_retriable():
                self._swap(old, cleaned)

    def _swap(self, old: Sequence[LogSegment], cleaned: LogSegment) -> None:
        cleaned.rename(CLEANED_SUFFIX, SWAP_SUFFIX)
        for segment in reversed(old[1:]):
            segment.delete_replaced()
            self.producers.snapshots.remove(segment.base_offset)
        old[0].close()
        cleaned.rename(SWAP_SUFFIX, "")
        new = self._new_segment(cleaned.base_offset, cleaned.created_ms)
        new.end_offset = cleaned.end_offset
        self._segments.replace(old, new)

    # Durability

    def flush(self, now_ms: int | None = None) -> None:
        """Flush all appended records. The log end offset becomes the recovery point."""
        self._health.require()
        with self._health.writing():
            self._flush(self._last_flush_ms if now_ms is None else now_ms)

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if the last flush was at least `flush.ms` ago."""
        if now_ms - self._last_flush_ms >= self.config.flush_ms:
            self.flush(now_ms)

    def _flush_if_required(self, now_ms: int) -> None:
        """Flush if at least `flush.messages` records are not flushed."""
        if self.log_end_offset - self._recovery_point >= self.config.flush_messages:
            self._flush(now_ms)

    def _flush(self, now_ms: int) -> None:
        if self._recovery_point < self.log_end_offset:
            # Several segments need a flush only after recovery, which rebuilds their indexes.
            self._segments.flush_from(self._recovery_point)
            self._recovery_point = self.log_end_offset
        self._last_flush_ms = now_ms

    def _seal(self, now_ms: int, *, next_offset: int) -> None:
        """Complete the active segment, flush it, and store a producer snapshot at `next_offset`."""
        self._segments.active.seal()
        # The time index may have changed since the last flush, even without new records.
        self._segments.flush_from(self._recovery_point)
        self._recovery_point = self.log_end_offset
        self._last_flush_ms = now_ms
        self.producers.take_snapshot(next_offset)

    def close(self) -> None:
        """Flush the log, store a producer snapshot, and close the files.

        The next `open` needs no recovery.
        """
        try:
            if self._health.error is None and self._needs_seal:
                with self._health.writing():
                    self._seal(self._last_flush_ms, next_offset=self.log_end_offset)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the files without flushing them, before the log is removed."""
        self.removals += 1
        for segment in self._segments:
            segment.close()
