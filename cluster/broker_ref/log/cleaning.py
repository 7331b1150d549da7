"""Compacts one log: retains the last record for each key (Kafka's `Cleaner`).

1. Read the dirty part of the log and store the offset of the last record of each key in a map,
   until the map is full.
2. Divide the segments up to the last offset in the map into groups. Copy the retained records of
   each group to <base offset>.log.cleaned, flush this file, and replace the group with the file.

| record at or below the last offset in the map      | retained                                  |
| -------------------------------------------------- | ----------------------------------------- |
| record of an aborted transaction                   | no                                        |
| record of a control batch                          | see `cleaned_transactions`                |
| record with a key that has a later record          | no                                        |
| tombstone after the delete horizon of its batch    | no                                        |
| record without a key, which exists only if the     | no                                        |
| topic was not compacted before                     |                                           |
| any other record                                   | yes                                       |

Invariants: the log is complete and readable between any two steps. The last batch of each producer,
and the last batch before the uncompacted part, keep at least their headers. A marker also keeps its
header if the state of its producer contains no other batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import field
from itertools import chain

from broker_ref.frozen import dataclass
from broker_ref.log.batch import BatchHeader, parse_checked_batches
from broker_ref.log.cleaned_transactions import CleanedTransactionMetadata
from broker_ref.log.config import LONG_MAX
from broker_ref.log.filtering import filter_batch, view_records
from broker_ref.log.indexes import RELATIVE_OFFSET_MAX
from broker_ref.log.log_to_clean import LogToClean
from broker_ref.log.offset_map import OffsetMap
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.records import RecordView
from broker_ref.log.segment import LogSegment

_READ_BYTES = 64 * 1024
# Decoding one record takes as much time as scanning this number of bytes.
_RECORD_WORK_BYTES = 32
# Replacing segments requires several fsyncs, which take as much time as scanning this number of
# bytes.
_REPLACE_WORK_BYTES = 128 * 1024


def clean_log(
    log_to_clean: LogToClean, *, now_ms: int, map_bytes_max: int
) -> Generator[int, None, int]:
    """Compact a log. Yield the cost of each step in bytes.

    Return the offset up to which the log is compacted. If the generator is closed early, segments
    that have already been replaced remain compacted, and the rest of the log remains unchanged.
    Raises: LogError, StorageError.
    """
    offsets = OffsetMap(bytes_max=map_bytes_max)
    end_offset = yield from _fill_map(log_to_clean, offsets)
    cleaning = _Cleaner(
        log=log_to_clean.log,
        offsets=offsets,
        end_offset=end_offset,
        first_uncleanable_offset=log_to_clean.first_uncleanable_offset,
        now_ms=now_ms,
    )
    for group in _groups(log_to_clean.log, end_offset, log_to_clean.first_uncleanable_offset):
        yield from cleaning.clean_group(group)
    return end_offset


def _fill_map(log_to_clean: LogToClean, offsets: OffsetMap) -> Generator[int, None, int]:
    """Add the last offset of each key in the dirty part of the log to `offsets`.

    Return the end offset of the part whose keys were added.
    """
    start_offset, end_offset = (
        log_to_clean.first_dirty_offset,
        log_to_clean.first_uncleanable_offset,
    )
    transactions = CleanedTransactionMetadata()
    transactions.add(log_to_clean.log.aborted_transactions(start_offset, end_offset))
    for segment in log_to_clean.log.segments.between(start_offset, end_offset):
        for header, batch in chain.from_iterable(_windows(segment, start_offset)):
            yield _work_bytes(header)
            if header.is_control:
                transactions.is_discardable(header, batch)
                continue
            if transactions.is_aborted(header):
                continue
            for view in view_records(header, batch):
                offset = header.base_offset + view.offset_delta
                if view.key is None or offset < start_offset:
                    continue
                if not offsets.put(view.key, offset):
                    return offset
    return end_offset


def _work_bytes(header: BatchHeader) -> int:
    return max(header.size_bytes, header.record_count * _RECORD_WORK_BYTES)


def _windows(
    segment: LogSegment, start_offset: int
) -> Iterator[list[tuple[BatchHeader, memoryview]]]:
    """Yield lists of consecutive batches, starting with the batch that contains `start_offset`."""
    offset = max(start_offset, segment.base_offset)
    while data := segment.read(
        offset, end_offset=2**63, max_bytes=_READ_BYTES, at_least_one_batch=True
    ):
        batches = parse_checked_batches(data)
        yield batches
        offset = batches[-1][0].next_offset


def _groups(
    log: PartitionLog, end_offset: int, first_uncleanable_offset: int
) -> list[list[LogSegment]]:
    """Group the segments below `end_offset` for merging (`Cleaner.groupSegmentsBySize`)."""
    segments = [s for s in log.segments.between(0, end_offset) if s is not log.segments.active]
    ends = [segment.base_offset for segment in segments[1:]] + [first_uncleanable_offset]
    groups: list[list[LogSegment]] = []
    size_bytes = index_bytes = 0
    for segment, end in zip(segments, ends, strict=True):
        size_bytes += segment.size_bytes
        index_bytes += segment.index_bytes
        if (
            not groups
            or size_bytes > log.config.segment_bytes
            or index_bytes > log.config.segment_index_bytes
            or end - 1 - groups[-1][0].base_offset > RELATIVE_OFFSET_MAX
        ):
            groups.append([])
            size_bytes, index_bytes = segment.size_bytes, segment.index_bytes
        groups[-1].append(segment)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastBatches:
    """The batches from which producer state is recovered when the log is loaded."""

    offsets: frozenset[tuple[int, int]]
    epochs: frozenset[tuple[int, int]]
    """Producer id and producer epoch of producers whose only batches are markers."""

    @classmethod
    def of(cls, log: PartitionLog) -> _LastBatches:
        entries = log.producer_entries
        return cls(
            offsets=frozenset(
                (e.producer_id, e.batches[-1].last_offset) for e in entries if e.batches
            ),
            epochs=frozenset((e.producer_id, e.epoch) for e in entries if not e.batches),
        )

    def __contains__(self, header: BatchHeader) -> bool:
        return (header.producer_id, header.last_offset) in self.offsets or (
            header.is_control and (header.producer_id, header.producer_epoch) in self.epochs
        )


@dataclass(slots=True, kw_only=True)
class _Cleaner:
    """The second step of a compaction, which copies the retained records.

    The map `offsets` contains the last offset of each key in the dirty part of the log, up to
    `end_offset`.
    """

    log: PartitionLog
    offsets: OffsetMap
    end_offset: int
    first_uncleanable_offset: int
    now_ms: int
    transactions: CleanedTransactionMetadata = field(default_factory=CleanedTransactionMetadata)

    def clean_group(self, group: list[LogSegment]) -> Iterator[int]:
        """Replace consecutive segments with one compacted segment."""
        last = _LastBatches.of(self.log)
        cleaned = self.log.new_cleaned_segment(group)
        try:
            for segment in group:
                self.transactions.add(
                    self.log.aborted_transactions(segment.base_offset, segment.next_offset())
                )
                for batches in _windows(segment, segment.base_offset):
                    left = []
                    for header, batch in batches:
                        yield _work_bytes(header)
                        left.append(self._filter(header, batch, last, cleaned))
                    data = b"".join(left)
                    if data:
                        cleaned.append(data, [header for header, _ in parse_checked_batches(data)])
        except BaseException:
            cleaned.delete()
            raise
        self.log.replace_segments(group, cleaned)
        yield _REPLACE_WORK_BYTES

    def _filter(
        self, header: BatchHeader, batch: memoryview, last: _LastBatches, cleaned: LogSegment
    ) -> bytes:
        """Return the retained part of a batch, which may be empty."""
        if header.is_control:
            may_go = self.transactions.is_discardable(header, batch, index=cleaned.transactions)
            horizon_ms = header.delete_horizon_ms
            goes = may_go and horizon_ms is not None and horizon_ms <= self.now_ms
        else:
            may_go = goes = self.transactions.is_aborted(header)
            if not goes and header.base_offset >= self.end_offset:
                return bytes(batch)
        delete_horizon_ms = self.now_ms + self.log.config.delete_retention_ms
        filtered = filter_batch(
            header,
            batch,
            retain=_retain_none
            if goes
            else _retain_all
            if header.is_control
            else self._retain(header),
            retain_empty=header in last or header.next_offset == self.first_uncleanable_offset,
            is_discardable_marker=may_go and header.is_control,
            # Tombstones are retained if their horizon exceeds int64. In Kafka, the horizon
            # overflows.
            new_delete_horizon_ms=delete_horizon_ms if delete_horizon_ms <= LONG_MAX else None,
        )
        return b"" if filtered is None else filtered

    def _retain(self, header: BatchHeader) -> Callable[[RecordView], bool]:
        horizon_ms = header.delete_horizon_ms
        deletes_tombstones = horizon_ms is not None and self.now_ms >= horizon_ms
        last_offset, base_offset = self.end_offset - 1, header.base_offset
        offset_of = self.offsets.get

        def retain(view: RecordView) -> bool:
            offset = base_offset + view.offset_delta
            if offset > last_offset:
                return True
            if view.key is None or (view.is_tombstone and deletes_tombstones):
                return False
            return offset >= offset_of(view.key)

        return retain


def _retain_none(_: RecordView) -> bool:
    return False


def _retain_all(_: RecordView) -> bool:
    return True
