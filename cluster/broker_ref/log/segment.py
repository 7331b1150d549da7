"""A segment of a log: a file of record batches and its indexes (Kafka's `LogSegment`).

    <base offset, 20 digits>.log  .index  .timeindex  .txnindex

A segment appends, reads and searches complete batches, and can rebuild its offset index and its
time index from the log file. Rebuilding the transaction index requires the producer state of the
entire log. Invariants: a segment with records has an offset index and a time index. `read` returns
only batches that have valid CRCs and are in offset order. If a file is corrupt, the methods raise
`CorruptLogError` with the path of the file and the position.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    TimestampType,
    crc_matches,
    decode_records,
    unpack_header,
)
from broker_ref.log.config import LogConfig
from broker_ref.log.control import EndTransactionMarker, decode_marker
from broker_ref.log.errors import CorruptLogError, LogError
from broker_ref.log.indexes import RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex
from broker_ref.log.lazy_file import LazyFile
from broker_ref.log.records import NO_TIMESTAMP
from broker_ref.log.storage import File, RetriableStorageError, Storage, StorageError
from broker_ref.log.transaction_index import AbortedTransaction, TransactionIndex

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
# Headers are read in small windows, because a search starts at an index entry that is at most one
# index interval and one batch before its target.
_HEADER_WINDOW_BYTES = 8 * 1024
_SCAN_WINDOW_BYTES = 1024 * 1024
# base offset, length, (leader epoch), magic, (crc, attributes), last offset delta
_EXTENT = struct.Struct("!qi4xb6xi")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampAndOffset:
    """The timestamp in milliseconds, the offset and the leader epoch of a record.

    The record is the last of `records_decoded` records that were decoded to find it.
    """

    timestamp_ms: int
    offset: int
    leader_epoch: int
    records_decoded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBatch:
    """A position in a log file at which there is no valid batch, and the reason.

    `next_offset` is the offset after the last valid batch.
    """

    position: int
    next_offset: int
    reason: str


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name that Kafka uses for a file with this base offset."""
    return f"{base_offset:020d}{suffix}"


def has_records(storage: Storage, directory: str) -> bool:
    """Return whether `directory` contains a non-empty log file.

    Temporary log files are also checked. Raises: StorageError.
    """
    for name in storage.list(directory):
        if LOG_SUFFIX in name:
            file = storage.open(f"{directory}/{name}")
            size = file.size()
            file.close()
            if size:
                return True
    return False


class LogSegment:
    """The batches from `base_offset` up to the base offset of the next segment."""

    def __init__(
        self,
        *,
        storage: Storage,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        name_end: str = "",
    ) -> None:
        """Open the files. Create the log file if it does not exist.

        `name_end` is appended to the file names.
        """
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.end_offset: int | None = None
        """The offset after the last batch, or None if it is unknown."""
        self._storage = storage
        self._paths = [
            f"{directory}/{file_name(base_offset, suffix)}{name_end}" for suffix in SUFFIXES
        ]
        self._index_interval_bytes = config.index_interval_bytes
        self._log: File = storage.open(self._paths[0])
        self._index_files = LazyFile(storage, self._paths[1]), LazyFile(storage, self._paths[2])
        self._offset_index = OffsetIndex(
            self._index_files[0],
            base_offset=base_offset,
            bytes_max=config.segment_index_bytes,
        )
        self._time_index = TimeIndex(
            self._index_files[1],
            base_offset=base_offset,
            bytes_max=config.segment_index_bytes,
        )
        self.transactions = TransactionIndex(storage=storage, path=self._paths[3])
        self._bytes_since_index_entry = 0
        self._first_batch_timestamp: int | None = None
        self._max_timestamp: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        return self._log.path

    @property
    def size_bytes(self) -> int:
        return self._log.size()

    @property
    def index_bytes(self) -> int:
        """Return the size in bytes of the offset index or the time index, whichever is larger."""
        return max(file.size() for file in self._index_files)

    @property
    def first_timestamp(self) -> int:
        """Return the max timestamp of the first batch in milliseconds, or -1."""
        if self._first_batch_timestamp is None:
            first = next(self._headers(0, self.base_offset), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_batch_timestamp = first[1].max_timestamp
        return self._first_batch_timestamp

    @property
    def max_timestamp(self) -> int:
        """Return the largest timestamp in milliseconds, or -1 if there is none."""
        return self._max_timestamp_and_offset()[0]

    def _max_timestamp_and_offset(self) -> tuple[int, int]:
        if self._max_timestamp is None:
            self._max_timestamp = self._time_index.last()
        return self._max_timestamp

    # Writing

    def append(
        self, batches: bytes | bytearray | memoryview, headers: Sequence[BatchHeader]
    ) -> None:
        """Append complete batches with one write. `headers` are the headers of these batches."""
        position = self._log.size()
        if position == 0:
            self._create_indexes()
            self._first_batch_timestamp = headers[0].max_timestamp
        self._log.append(batches)
        try:
            for header in headers:
                self._update_indexes(position, header)
                position += header.size_bytes
        except RetriableStorageError as error:
            raise StorageError(
                str(error)
            ) from error  # The batches were already written, so a retry is not safe.
        self.end_offset = headers[-1].next_offset

    def _create_indexes(self) -> None:
        for file in self._index_files:
            file.create()

    def append_aborted(self, transaction: AbortedTransaction) -> None:
        """Add a transaction to the transaction index.

        The abort marker of the transaction must be in this segment.
        """
        try:
            self.transactions.append(transaction)
        except RetriableStorageError as error:
            raise StorageError(
                str(error)
            ) from error  # The marker was already written, so a retry is not safe.

    def _update_indexes(self, position: int, header: BatchHeader) -> None:
        """Update the largest timestamp. Add index entries every `index.interval.bytes` bytes."""
        # A batch whose records were removed by compaction still has a max timestamp.
        if header.record_count and header.max_timestamp > self._max_timestamp_and_offset()[0]:
            self._max_timestamp = (header.max_timestamp, header.last_offset)
        if self._bytes_since_index_entry > self._index_interval_bytes and not self.indexes_full:
            self._offset_index.append(header.last_offset, position)
            self._time_index.append_if_larger(*self._max_timestamp_and_offset())
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.size_bytes

    @property
    def indexes_full(self) -> bool:
        return self._offset_index.is_full or self._time_index.is_full

    def should_roll(
        self,
        config: LogConfig,
        *,
        batch_bytes: int,
        max_timestamp: int,
        last_offset: int,
        now_ms: int,
    ) -> bool:
        """Return whether a new segment must be created for a batch (`LogSegment.shouldRoll`)."""
        if last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True  # Roll even an empty segment, because compaction can leave gaps.
        if self.size_bytes == 0:
            return False
        return (
            self.size_bytes > config.segment_bytes - batch_bytes
            or self._waited_ms(now_ms, max_timestamp) > config.segment_ms_max
            or self.indexes_full
        )

    def _waited_ms(self, now_ms: int, max_timestamp: int) -> int:
        """Return the age of the first batch, based on record timestamps if they are available."""
        if self.first_timestamp >= 0:
            return max_timestamp - self.first_timestamp
        return now_ms - self.created_ms

    def seal(self) -> None:
        """Add the largest timestamp to the time index when the segment is complete."""
        self._time_index.append_if_larger(*self._max_timestamp_and_offset())

    def flush(self) -> None:
        for file in self._files():
            file.flush()

    def close(self) -> None:
        for file in self._files():
            file.close()

    def _files(self) -> tuple[File | TransactionIndex, ...]:
        return self._log, *self._index_files, self.transactions

    def delete(self) -> None:
        """Close and delete the files, starting with the log file.

        After a crash, the next startup removes index files without a log file.
        """
        self.close()
        for path in self._paths:
            self._storage.remove(path)

    def delete_replaced(self) -> None:
        """Close and delete the files. The log file is deleted last.

        If the log file were deleted first, a crash could leave index files without a log file
        between two segments. The next startup would treat such index files as corruption.
        """
        self.close()
        for path in reversed(self._paths):
            self._storage.remove(path)

    def rename(self, old_end: str, new_end: str) -> None:
        """Close the files and replace the suffix of their names. The log file is renamed last."""
        self.close()
        for path in reversed(self._paths if self.transactions.exists_on_disk else self._paths[:3]):
            self._storage.rename(path, path.removesuffix(old_end) + new_end)
        self._paths = [path.removesuffix(old_end) + new_end for path in self._paths]

    # Reading

    def read(
        self, start_offset: int, *, end_offset: int, max_bytes: int, at_least_one_batch: bool
    ) -> bytes | None:
        """Return complete batches from `start_offset` up to `end_offset`.

        The first batch may start before `start_offset`. If the segment ends before `start_offset`,
        return None. Raises: CorruptLogError.
        """
        found = self._find(start_offset)
        if found is None:
            return None
        position, header = found
        if at_least_one_batch:
            max_bytes = max(max_bytes, header.size_bytes)
        data = self._log.read(position, max_bytes)
        return data[: self._whole_batches(data, position, header.base_offset, end_offset)]

    def position_of(self, offset: int) -> int | None:
        """Return the position of the batch that contains `offset`.

        Return None if the segment ends before `offset`.
        """
        found = self._find(offset)
        return None if found is None else found[0]

    def _find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return the position and the header of the first batch that ends at or after `offset`."""
        for found in self._headers(*self._start_for(offset)):
            if found[1].last_offset >= offset:
                return found
        return None

    def _start_for(self, offset: int) -> tuple[int, int]:
        """Return the position and the base offset of a batch at or before `offset`."""
        entry = self._offset_index.lookup(offset)
        if entry is None:
            return 0, self.base_offset
        data = self._log.read(entry[1], HEADER_BYTES)
        if len(data) == HEADER_BYTES:
            header = unpack_header(data)
            if header.magic == MAGIC and header.last_offset == entry[0]:
                return entry[1], header.base_offset
        # The index or the log file is corrupt. The rebuild fails if the log file is corrupt.
        self.rebuild_indexes()
        return self._start_for(offset)

    def _whole_batches(self, data: bytes, position: int, next_offset: int, end_offset: int) -> int:
        """Return how many bytes of `data` form complete and valid batches below `end_offset`."""
        view = memoryview(data)
        length = len(data)
        start = 0
        while start + HEADER_BYTES <= length:
            base_offset, batch_length, magic, delta = _EXTENT.unpack_from(data, start)
            end = start + batch_length + LOG_OVERHEAD_BYTES
            if end - start < HEADER_BYTES or magic != MAGIC or base_offset < next_offset:
                raise CorruptLogError(
                    self.path,
                    position + start,
                    f"there is no valid batch at or after offset {next_offset}",
                )
            if end > length:
                break
            if not crc_matches(view[start:end]):
                raise CorruptLogError(self.path, position + start, _bad_crc(base_offset))
            if base_offset > next_offset:
                reason = self._misplaced(position + start, unpack_header(data, start))
                if reason is not None:
                    raise CorruptLogError(self.path, position + start, reason)
            if base_offset + delta >= end_offset:
                break
            start, next_offset = end, base_offset + delta + 1
        return start

    def batches_from(
        self, offset: int
    ) -> Iterator[tuple[BatchHeader, EndTransactionMarker | None]]:
        """Yield the header and the marker of each batch that ends at or after `offset`.

        The marker is None if the batch does not contain a marker. Raises: CorruptLogError.
        """
        found = self._find(offset)
        if found is not None:
            for position, header in self._headers(found[0], found[1].base_offset):
                yield header, self._marker(position, header) if header.is_control else None

    def _marker(self, position: int, header: BatchHeader) -> EndTransactionMarker | None:
        batch = self._log.read(position, header.size_bytes)
        if not crc_matches(batch):
            raise CorruptLogError(self.path, position, _bad_crc(header.base_offset))
        try:
            return decode_marker(batch)
        except LogError as error:
            raise CorruptLogError(self.path, position, str(error)) from error

    def _headers(self, position: int, next_offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and the header of each batch at or after `position`.

        This method does not read records. Raises during iteration: CorruptLogError if a header is
        invalid.
        """
        for item in self._scan(position, next_offset, whole=False):
            if isinstance(item, BadBatch):
                raise CorruptLogError(self.path, item.position, item.reason)
            yield item

    def _scan(
        self, position: int, next_offset: int, *, whole: bool
    ) -> Iterator[tuple[int, BatchHeader] | BadBatch]:
        """Yield the valid batches starting at `position`, and then the first invalid batch, if any.

        If `whole` is True, the CRCs are checked.
        """
        size = self.size_bytes
        window, window_start = memoryview(b""), position
        previous: tuple[int, BatchHeader] | None = None
        while position < size:
            relative = position - window_start
            if relative + HEADER_BYTES > len(window):
                window = self._window(position, whole)
                window_start, relative = position, 0
            reason, header = "a batch header is incomplete", None
            if relative + HEADER_BYTES <= len(window):
                header = unpack_header(window, relative)
                reason = _chain_break(header, next_offset, size - position) or ""
            if header is not None and not reason and whole:
                if relative + header.size_bytes > len(window):
                    window = self._window(position, whole, bytes_min=header.size_bytes)
                    window_start, relative = position, 0
                if not crc_matches(window[relative : relative + header.size_bytes]):
                    reason = _bad_crc(header.base_offset)
            if header is not None and not reason and header.base_offset > next_offset:
                reason = self._gap_damage(previous, position, header) or ""
            if header is None or reason:
                yield BadBatch(position=position, next_offset=next_offset, reason=reason)
                return
            yield position, header
            previous = position, header
            position += header.size_bytes
            next_offset = header.next_offset

    def _gap_damage(
        self, previous: tuple[int, BatchHeader] | None, position: int, header: BatchHeader
    ) -> str | None:
        """Return the reason why compaction cannot have caused the gap before a batch, or None."""
        if previous is not None:
            batch = self._log.read(previous[0], previous[1].size_bytes)
            if not crc_matches(batch):
                return _bad_crc(previous[1].base_offset)
        return self._misplaced(position, header)

    def _misplaced(self, position: int, header: BatchHeader) -> str | None:
        """Return the reason why the base offset of a batch after an offset gap is invalid, or None.

        The CRC does not cover the base offset, so a CRC check cannot detect an invalid base offset.
        If the base offset is too large, the batch overlaps the next batch.
        """
        next_position = position + header.size_bytes
        following = self._log.read(next_position, HEADER_BYTES)
        limit = self.end_offset
        if len(following) == HEADER_BYTES:
            limit = unpack_header(following).base_offset
        if limit is not None and header.next_offset > limit:
            return f"the batch at offset {header.base_offset} does not end before offset {limit}"
        return None

    def _window(self, position: int, whole: bool, *, bytes_min: int = 0) -> memoryview:
        size_bytes = _SCAN_WINDOW_BYTES if whole else _HEADER_WINDOW_BYTES
        return memoryview(self._log.read(position, max(size_bytes, bytes_min)))

    def end_offset_after_truncation(self, offset: int) -> int:
        """Return the end offset that would result from `truncate_to(offset)`.

        Raises: CorruptLogError.
        """
        # The batch before `offset` determines the result, because there can be a gap between them.
        position, next_offset = self._start_for(offset - 1)
        for _, header in self._headers(position, next_offset):
            if header.last_offset >= offset:
                break
            next_offset = header.next_offset
        return next_offset

    def next_offset(self) -> int:
        """Return the offset after the last batch. Raises: CorruptLogError."""
        position, next_offset = self._start_for(self.base_offset + RELATIVE_OFFSET_MAX)
        for _, header in self._headers(position, next_offset):
            next_offset = header.next_offset
        self.end_offset = next_offset
        return next_offset

    # Searching by time

    def find_timestamp(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        """Find a record by timestamp.

        Return the first record at or after `start_offset` whose timestamp is at least
        `timestamp_ms`. Raises: LogError(INVALID_RECORD) if all records of a batch are older than
        the maximum timestamp in its header. The search does not continue after such a batch,
        because it could then decode an unlimited number of batches.
        """
        if self.max_timestamp < timestamp_ms:
            return None
        offset = max(self._time_index.lookup(timestamp_ms), start_offset)
        found = self._find(offset)
        if found is None:
            return None
        for position, header in self._headers(found[0], found[1].base_offset):
            if header.base_offset >= end_offset:
                return None
            if (
                header.record_count == 0  # Compaction has removed all records.
                or header.max_timestamp < timestamp_ms
                or header.last_offset < start_offset
            ):
                continue
            hit = self._first_record(position, header, timestamp_ms, start_offset)
            if hit is not None:
                return hit if hit.offset < end_offset else None
            if header.base_offset >= start_offset:
                raise self._wrong_max_timestamp(header, timestamp_ms)
        return None

    def find_max_timestamp(self, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first record with the segment's largest timestamp.

        Return None if the batch with this record is at or above `end_offset`. Raises:
        LogError(INVALID_RECORD) if the maximum timestamp in the header of this batch is wrong.
        """
        timestamp_ms, offset = self._max_timestamp_and_offset()
        found = self._find(offset) if timestamp_ms >= 0 else None
        if found is None:
            return None
        position, header = found
        # The batch is empty if compaction has removed all its records.
        if header.record_count == 0 or header.base_offset >= end_offset:
            return None
        hit = self._first_record(position, header, timestamp_ms, self.base_offset)
        if hit is None:
            raise self._wrong_max_timestamp(header, timestamp_ms)
        return hit

    def _wrong_max_timestamp(self, header: BatchHeader, timestamp_ms: int) -> LogError:
        return LogError(
            ErrorCode.invalid_record,
            f"The header of the batch at offset {header.base_offset} in {self.path} contains the "
            f"maximum timestamp {header.max_timestamp}, but no record in the batch has a timestamp "
            f"of at least {timestamp_ms}.",
        )

    def _first_record(
        self, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
    ) -> TimestampAndOffset | None:
        """Return the first record in a batch that satisfies both limits, or None.

        The timestamp must be at least `timestamp_ms`, and the offset must be at least
        `start_offset`.
        """
        has_one_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        batch = self._log.read(position, header.size_bytes)
        self._whole_batches(batch, position, header.base_offset, header.next_offset)
        for count, record in enumerate(decode_records(batch), start=1):
            found_ms = header.max_timestamp if has_one_time else record.timestamp
            if found_ms >= timestamp_ms and record.offset >= start_offset:
                return TimestampAndOffset(
                    timestamp_ms=found_ms,
                    offset=record.offset,
                    leader_epoch=header.partition_leader_epoch,
                    records_decoded=count,
                )
        return None

    # Recovery

    def index_damage(self) -> str | None:
        """Return the reason why an index is invalid, or None."""
        damage = self._offset_index.damage(self.size_bytes)
        if damage is not None:
            return f"{self._paths[1]}: {damage}"
        damage = self._time_index.damage()
        return None if damage is None else f"{self._paths[2]}: {damage}"

    def recover(self) -> Iterator[BatchHeader | BadBatch]:
        """Read the log file, check all CRCs, and rebuild the offset index and the time index.

        Yield the headers of valid batches. If a batch is invalid, yield a `BadBatch` and stop. This
        method does not change the log file. To remove the invalid batch, call `truncate`.
        """
        self._create_indexes()
        self._offset_index.clear()
        self._time_index.clear()
        self._max_timestamp = None
        self._first_batch_timestamp = None
        self._bytes_since_index_entry = 0
        next_offset = self.base_offset
        for item in self._scan(0, self.base_offset, whole=True):
            if isinstance(item, BadBatch):
                yield item
                return
            position, header = item
            self._update_indexes(position, header)
            next_offset = header.next_offset
            yield header
        self.end_offset = next_offset
        self.seal()

    def rebuild_indexes(self) -> None:
        """Durably rebuild the offset index and the time index.

        Raises: CorruptLogError if the log file is corrupt.
        """
        for item in self.recover():
            if isinstance(item, BadBatch):
                raise CorruptLogError(self.path, item.position, item.reason)
        self.flush()

    def truncate_to(self, offset: int) -> None:
        """Durably remove the batches that end at or after `offset`, and their index entries.

        The caller must first lower the recovery point, so that the next startup after a crash
        rebuilds the indexes. This method reads only the part of the log file between two index
        entries. Raises: CorruptLogError, before any batch is removed.
        """
        kept = []
        for position, header in self._headers(*self._start_for(offset - 1)):
            if header.last_offset >= offset:
                break
            kept.append((position, header))
        else:
            return
        # Indexes are truncated first. They may lack entries, but must not refer to removed batches.
        self._offset_index.truncate_to(offset)
        self._time_index.truncate_to(offset)
        self.transactions.truncate_to(offset)
        self._log.truncate(position)
        self.end_offset = kept[-1][1].next_offset if kept else self.base_offset
        self._first_batch_timestamp = self._max_timestamp = None
        self._bytes_since_index_entry = 0
        # These batches may have no entry in the time index.
        for kept_position, kept_header in kept:
            self._update_indexes(kept_position, kept_header)
        self.flush()

    def truncate(self, position: int) -> None:
        """Durably truncate the log file at an invalid batch that `recover` has found."""
        self._log.truncate(position)
        self.end_offset = None
        self.seal()
        self.flush()


def _chain_break(header: BatchHeader, next_offset: int, bytes_left: int) -> str | None:
    """Return the reason why a batch with this header cannot follow the previous batch, or None."""
    if header.size_bytes < HEADER_BYTES or header.magic != MAGIC:
        return "there is no record batch in message format v2 at this position"
    # The CRC does not cover base offsets, so they are checked here. After compaction, there can be
    # gaps between base offsets.
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        return f"a batch has offset {header.base_offset}, but offset {next_offset} was expected"
    if header.size_bytes > bytes_left:
        return f"a batch is {header.size_bytes} bytes long, but only {bytes_left} bytes are left"
    return None


def _bad_crc(base_offset: int) -> str:
    return f"the CRC of the batch at offset {base_offset} does not match its contents"
