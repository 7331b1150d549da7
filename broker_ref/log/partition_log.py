"""The log of one partition on one broker (UnifiedLog of Apache Kafka).

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex    a sealed segment
        00000000000000001042.log .index .timeindex    the active one: appends go here
        00000000000000001042.snapshot                 producer state at that offset
        leader-epoch-checkpoint

    log start offset <= segments ... <= recovery point <= log end offset
      readers below it      everything below is        the offset the next
      are refused           on disk for certain        record gets

Purpose: append, read, search, retain. Invariant: offsets run without a break from the log start
offset to the log end offset; a refused append changes nothing; after a write that failed the log
takes no more appends until it is opened again, for what is on disk is then unknown; a read that
failed, or a write that never began, leaves it as it was. What it must not know: replicas, high
watermarks (callers pass end offsets), requests, the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from broker_ref.log.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    check_produced_batch,
    decode_records,
    parse_batches,
    rewrite,
    unpack_header,
)
from broker_ref.log.config import LONG_MAX, LogConfig
from broker_ref.log.errors import LogError, RecordError, RecordsRejected
from broker_ref.log.producer_state import PRODUCER_ID_EXPIRATION_MS, ProducerEntry
from broker_ref.log.recovery import LoadedLog, LogLoader
from broker_ref.log.segment import LogSegment, TimestampAndOffset
from broker_ref.log.storage import NotBegunError, Storage, StorageError

_RECORD_ERRORS_MAX = 100

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """Where a batch went. `log_append_time_ms` is -1 under CreateTime.

    For a duplicate these are the offsets of the first time, and the time is that batch's largest
    timestamp whatever the timestamp type, as Apache Kafka answers it.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Where a batch starts: its segment, and bytes from that one's start (LogOffsetMetadata)."""

    segment_base_offset: int
    position_bytes: int


class PartitionLog:
    """One partition's log. Not thread-safe; made by `open`."""

    def __init__(
        self,
        *,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: int,
        loaded: LoadedLog,
    ) -> None:
        self.directory = directory
        self.config = config
        self._storage = storage
        self._segments = loaded.segments
        self._producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._recovery_point = loaded.recovery_point
        self._last_flush_ms = now_ms
        self._storage_error: str | None = None
        self.leader_epochs = loaded.leader_epochs

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
    ) -> PartitionLog:
        """Open the log in `directory`, made where missing, after recovery where not `clean`.

        `clean` says that the broker was stopped in order, `recovery_point` and
        `log_start_offset` are what was last checkpointed (see `LogDirectory`, which passes all
        three). Raises: CorruptLog naming file and position, StorageError.
        """
        loaded = LogLoader(
            storage=storage,
            directory=directory,
            config=config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
        ).load()
        return cls(
            storage=storage, directory=directory, config=config, now_ms=now_ms, loaded=loaded
        )

    @property
    def log_start_offset(self) -> int:
        """The first offset a reader may ask for."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below has been flushed."""
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files, indexes not counted."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_base_offsets(self) -> tuple[int, ...]:
        """The first offset of every segment, oldest first."""
        return tuple(segment.base_offset for segment in self._segments)

    @property
    def producer_entries(self) -> tuple[ProducerEntry, ...]:
        """What is remembered of idempotent producers (for DescribeProducers)."""
        return self._producers.entries

    @property
    def storage_error(self) -> str | None:
        """Why the log takes no more appends, None while it does."""
        return self._storage_error

    # Appending

    def append(self, records: bytes, *, leader_epoch: int, now_ms: int) -> AppendResult:
        """Append one produced batch as the leader, giving it the next offsets.

        Raises: LogError with the code Apache Kafka answers: INVALID_RECORD, CORRUPT_MESSAGE,
        MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, INVALID_PRODUCER_EPOCH,
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR. RecordsRejected
        names the single records. The record bytes are not decoded, unless the topic is compacted
        or limits how old a timestamp may be.
        """
        self._require_storage()
        header = self._check(records, now_ms)
        duplicate = self._producers.duplicate_of(header)
        if duplicate is not None:
            return AppendResult(
                base_offset=duplicate.first_offset,
                last_offset=duplicate.last_offset,
                log_append_time_ms=duplicate.timestamp,
                log_start_offset=self._log_start_offset,
                is_duplicate=True,
            )
        if header.is_transactional:
            raise LogError(
                ErrorCode.invalid_txn_state,
                f"Producer {header.producer_id} writes to {self.directory} outside of any "
                "transaction that the coordinator knows of.",
            )
        if header.has_producer_id:
            self._producers.check(header)
        stamped = self.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        batch = rewrite(
            memoryview(records)[: header.size_bytes],
            base_offset=self._log_end_offset,
            leader_epoch=leader_epoch,
            log_append_time_ms=now_ms if stamped else None,
        )
        header = unpack_header(batch)
        with self._write_errors():
            self._write(header, batch, now_ms)
        return AppendResult(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            log_append_time_ms=now_ms if stamped else NO_TIMESTAMP,
            log_start_offset=self._log_start_offset,
            is_duplicate=False,
        )

    def _check(self, records: bytes, now_ms: int) -> BatchHeader:
        """The only batch in `records`, checked as far as its header goes."""
        headers = parse_batches(records)
        if len(headers) != 1:
            raise LogError(
                ErrorCode.invalid_record,
                f"There must be exactly one record batch per partition, not {len(headers)}.",
            )
        header = headers[0]
        if header.size_bytes > self.config.max_message_bytes:
            raise LogError(
                ErrorCode.message_too_large,
                f"A record batch of {header.size_bytes} bytes for {self.directory} is larger than "
                f"max.message.bytes={self.config.max_message_bytes} allows.",
            )
        check_produced_batch(header)
        self._check_records(header, records, now_ms)
        if header.size_bytes > self.config.segment_bytes:
            raise LogError(
                ErrorCode.record_list_too_large,
                f"A record batch of {header.size_bytes} bytes for {self.directory} is larger than "
                f"a segment (segment.bytes={self.config.segment_bytes}).",
            )
        return header

    def _check_records(self, header: BatchHeader, records: bytes, now_ms: int) -> None:
        """Keys and timestamps (LogValidator.validateRecord), decoding only where it must be."""
        config = self.config
        create_time = config.message_timestamp_type is TimestampType.CREATE_TIME
        sent_log_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        if sent_log_append_time and not (create_time and header.max_timestamp != NO_TIMESTAMP):
            raise LogError(
                ErrorCode.invalid_timestamp,
                "Producers must not set the timestamp type LogAppendTime.",
            )
        newest_ms = now_ms + config.message_timestamp_after_max_ms
        oldest_ms = now_ms - config.message_timestamp_before_max_ms
        limits_age = create_time and config.message_timestamp_before_max_ms != LONG_MAX
        too_new = create_time and header.max_timestamp > newest_ms
        if not (config.compact or limits_age or too_new):
            return
        errors: list[RecordError] = []
        bad_timestamp = False
        for index, record in enumerate(decode_records(records)):
            if config.compact and record.key is None:
                message = "Compacted topic cannot accept message without key."
            elif (
                create_time
                and record.timestamp != NO_TIMESTAMP
                and not oldest_ms <= record.timestamp <= newest_ms
            ):
                bad_timestamp = True
                message = (
                    f"Timestamp {record.timestamp} of the message is out of range. It should be "
                    f"within [{oldest_ms}, {newest_ms}]."
                )
            else:
                continue
            if len(errors) < _RECORD_ERRORS_MAX:
                errors.append(RecordError(batch_index=index, message=message))
        if errors:
            raise RecordsRejected(
                ErrorCode.invalid_timestamp if bad_timestamp else ErrorCode.invalid_record,
                f"{len(errors)} records for {self.directory} are refused; the first: "
                f"{errors[0].message}",
                record_errors=tuple(errors),
            )
        if too_new:
            raise LogError(
                ErrorCode.invalid_timestamp,
                f"The batch's max timestamp {header.max_timestamp} is later than {newest_ms} and "
                "not that of any of its records.",
            )

    def _write(self, header: BatchHeader, batch: bytearray, now_ms: int) -> None:
        if header.partition_leader_epoch >= 0:
            self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        if self._segments[-1].should_roll(
            self.config,
            batch_bytes=header.size_bytes,
            max_timestamp=header.max_timestamp,
            last_offset=header.last_offset,
            now_ms=now_ms,
        ):
            self._roll(now_ms)
        self._segments[-1].append(
            batch, last_offset=header.last_offset, max_timestamp=header.max_timestamp
        )
        self._log_end_offset = header.next_offset
        self._producers.update(header)
        if self._log_end_offset - self._recovery_point >= self.config.flush_messages:
            self._flush(now_ms)

    def _roll(self, now_ms: int) -> None:
        """Seal and flush the active segment, keep the producer state, begin a new segment."""
        self._seal(now_ms)
        self._segments.append(
            LogSegment(
                storage=self._storage,
                directory=self.directory,
                base_offset=self._log_end_offset,
                config=self.config,
                now_ms=now_ms,
            )
        )

    # Reading

    def read(
        self, start_offset: int, *, end_offset: int, max_bytes: int, at_least_one_batch: bool
    ) -> bytes:
        """Whole batches as they are on disk, the first holding `start_offset`, all below the end.

        Empty where `start_offset` is at or above `end_offset`, or where `max_bytes` is less than
        the first batch and `at_least_one_batch` is not set. One call reads from one segment.

        Raises: LogError(OFFSET_OUT_OF_RANGE) below the log start or above the log end offset,
        CorruptLog where a batch on disk is damaged.
        """
        self._require_in_range(start_offset)
        end_offset = min(end_offset, self._log_end_offset)
        if start_offset >= end_offset or (max_bytes <= 0 and not at_least_one_batch):
            return b""
        with self._storage_errors():
            for segment in self._segments[self._segment_index(start_offset) :]:
                data = segment.read(
                    start_offset,
                    end_offset=end_offset,
                    max_bytes=max_bytes,
                    at_least_one_batch=at_least_one_batch,
                )
                if data is not None:
                    return data
        return b""

    def position_of(self, offset: int) -> LogPosition:
        """Where the batch starts that holds `offset`; the end of the log for the log end offset.

        Reads some headers, no records. Raises: as `read`.
        """
        self._require_in_range(offset)
        if offset < self._log_end_offset:
            with self._storage_errors():
                for segment in self._segments[self._segment_index(offset) :]:
                    position_bytes = segment.position_of(offset)
                    if position_bytes is not None:
                        return LogPosition(
                            segment_base_offset=segment.base_offset, position_bytes=position_bytes
                        )
        active = self._segments[-1]
        return LogPosition(segment_base_offset=active.base_offset, position_bytes=active.size_bytes)

    def _require_in_range(self, offset: int) -> None:
        if not self._log_start_offset <= offset <= self._log_end_offset:
            raise LogError(
                ErrorCode.offset_out_of_range,
                f"Offset {offset} of {self.directory} is out of range: it holds offsets "
                f"{self._log_start_offset} to {self._log_end_offset}.",
            )

    def _segment_index(self, offset: int) -> int:
        """Which segment holds `offset`."""
        low, high = 0, len(self._segments)
        while high - low > 1:
            middle = (low + high) // 2
            if self._segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    def offset_for_timestamp(
        self, timestamp_ms: int, *, end_offset: int
    ) -> TimestampAndOffset | None:
        """The first record below `end_offset` with at least that timestamp."""
        with self._storage_errors():
            for segment in self._segments:
                found = segment.find_timestamp(
                    timestamp_ms, start_offset=self._log_start_offset, end_offset=end_offset
                )
                if found is not None:
                    return found
        return None

    def offset_of_max_timestamp(self, *, end_offset: int) -> TimestampAndOffset | None:
        """The first record with the log's largest timestamp, None if it is at or above the end.

        As in Apache Kafka it may lie below the log start offset while its segment still exists.
        """
        with self._storage_errors():
            newest = max(self._segments, key=lambda segment: segment.max_timestamp)
            found = newest.find_max_timestamp()
        return found if found is not None and found.offset < end_offset else None

    # Retention

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset`; the new log start offset.

        Segments that lie wholly below go with the next `apply_retention`. Raises:
        LogError(OFFSET_OUT_OF_RANGE) where `offset` is negative or above the log end offset.
        """
        if not 0 <= offset <= self._log_end_offset:
            raise LogError(
                ErrorCode.offset_out_of_range,
                f"Records of {self.directory} cannot be deleted up to offset {offset}: it holds "
                f"offsets {self._log_start_offset} to {self._log_end_offset}.",
            )
        if offset > self._log_start_offset:
            self._log_start_offset = offset
            with self._write_errors():
                self.leader_epochs.truncate_from_start(offset)
        return self._log_start_offset

    def apply_retention(self, now_ms: int, *, high_watermark: int | None = None) -> int:
        """Delete old segments as `cleanup.policy` says; how many.

        Only segments wholly below `high_watermark` (default: the log end offset) go. Where the
        active one has to go too, an empty one takes its place first.
        """
        end_offset = self._log_end_offset if high_watermark is None else high_watermark
        self._require_storage()
        with self._write_errors():
            deleted = self._delete_while(
                lambda _, upper: upper <= self._log_start_offset, end_offset, now_ms
            )
            if not self.config.delete:
                return deleted
            deleted += self._apply_retention_bytes(end_offset, now_ms)
            if self.config.retention_ms >= 0:
                deleted += self._delete_while(
                    lambda segment, _: now_ms - _age_from(segment) > self.config.retention_ms,
                    end_offset,
                    now_ms,
                )
        return deleted

    def _apply_retention_bytes(self, end_offset: int, now_ms: int) -> int:
        excess_bytes = self.size_bytes - self.config.retention_bytes
        if self.config.retention_bytes < 0 or excess_bytes < 0:
            return 0

        def exceeds(segment: LogSegment, _: int) -> bool:
            nonlocal excess_bytes
            if excess_bytes < segment.size_bytes:
                return False
            excess_bytes -= segment.size_bytes
            return True

        return self._delete_while(exceeds, end_offset, now_ms)

    def _delete_while(
        self, condition: Callable[[LogSegment, int], bool], end_offset: int, now_ms: int
    ) -> int:
        """Delete segments from the oldest on while `condition(segment, its end offset)` holds."""
        count = 0
        for index, segment in enumerate(self._segments):
            is_last = index + 1 == len(self._segments)
            upper = self._log_end_offset if is_last else self._segments[index + 1].base_offset
            empty_active = is_last and segment.size_bytes == 0
            if empty_active or upper > end_offset or not condition(segment, upper):
                break
            count += 1
        if count == 0:
            return 0
        if count == len(self._segments):
            self._roll(now_ms)
        # The directory must not be left without a segment that says where offsets go on.
        self._segments[count].flush()
        deleted, self._segments = self._segments[:count], self._segments[count:]
        self.delete_records_before(max(self._log_start_offset, self._segments[0].base_offset))
        for segment in deleted:
            segment.delete()
            self._snapshots.remove(segment.base_offset)
        return count

    def expire_producers(
        self, now_ms: int, *, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    ) -> None:
        """Forget producers that have not written for `producer.id.expiration.ms`."""
        self._producers.expire(now_ms, expiration_ms=expiration_ms)

    # Durability

    def flush(self, now_ms: int | None = None) -> None:
        """Make everything appended so far durable; it becomes the recovery point."""
        self._require_storage()
        with self._write_errors():
            self._flush(self._last_flush_ms if now_ms is None else now_ms)

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if something unflushed is older than `flush.ms`."""
        if now_ms - self._last_flush_ms >= self.config.flush_ms:
            self.flush(now_ms)

    def _flush(self, now_ms: int) -> None:
        # Sealed segments were flushed when they were sealed.
        if self._recovery_point < self._log_end_offset:
            self._segments[-1].flush()
            self._recovery_point = self._log_end_offset
        self._last_flush_ms = now_ms

    def _seal(self, now_ms: int) -> None:
        """Finish the active segment's time index, flush it, keep the producer state."""
        self._segments[-1].seal()
        # The time index may have changed though no record was written since the last flush.
        self._segments[-1].flush()
        self._recovery_point = self._log_end_offset
        self._last_flush_ms = now_ms
        self._snapshots.write(self._log_end_offset, self._producers.entries)

    def close(self) -> None:
        """Flush, keep the producer state, close the files. After that, `open` needs no recovery."""
        try:
            if self._storage_error is None:
                with self._write_errors():
                    self._seal(self._last_flush_ms)
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the files and nothing else, as before the log's removal."""
        for segment in self._segments:
            segment.close()

    def _require_storage(self) -> None:
        if self._storage_error is not None:
            raise LogError(ErrorCode.kafka_storage_error, self._storage_error)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """An error of the storage is the client's to hear; in reading it does the log no harm."""
        try:
            yield
        except StorageError as error:
            raise LogError(
                ErrorCode.kafka_storage_error,
                f"An error of the storage of {self.directory}: {error}",
            ) from error

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """A write that fails takes the log offline, as it does a log directory of Kafka's."""
        try:
            yield
        except NotBegunError as error:
            raise LogError(
                ErrorCode.kafka_storage_error, f"{self.directory} cannot be written now: {error}"
            ) from error
        except StorageError as error:
            self._storage_error = (
                f"{self.directory} takes no more writes since an error of its storage: {error} "
                "Mend that, then restart the broker."
            )
            logger.error("%s", self._storage_error)
            raise LogError(ErrorCode.kafka_storage_error, self._storage_error) from error


def _age_from(segment: LogSegment) -> int:
    """The time from which a segment's age counts: its newest record's, else when it was opened."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
