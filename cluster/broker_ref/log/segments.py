"""The segments of one log, in offset order (Kafka's `LogSegments`).

`LogSegments` finds the segment that contains an offset, reads batches from this segment, and
searches all segments by timestamp. Invariants: base offsets are in ascending order. There is at
least one segment, except during a truncation. The last segment is active.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from broker_ref.frozen import dataclass
from broker_ref.log.segment import LogSegment, TimestampAndOffset
from broker_ref.log.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """A position in a log: a segment and a byte position in its log file (`LogOffsetMetadata`)."""

    segment_base_offset: int
    position_bytes: int


class LogSegments:
    """The segments of a log, oldest first."""

    def __init__(self, segments: list[LogSegment]) -> None:
        self._segments = segments

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __getitem__(self, index: int) -> LogSegment:
        return self._segments[index]

    @property
    def active(self) -> LogSegment:
        """Return the last segment, to which batches are appended."""
        return self._segments[-1]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(segment.base_offset for segment in self._segments)

    @property
    def size_bytes(self) -> int:
        """Return the size of all log files in bytes, without indexes."""
        return sum(segment.size_bytes for segment in self._segments)

    # Changes

    def add(self, segment: LogSegment) -> None:
        """Add a segment, which becomes the active segment."""
        self._segments.append(segment)

    def take_oldest(self, count: int) -> list[LogSegment]:
        """Remove the oldest `count` segments from the list and return them.

        The files of the segments are not deleted.
        """
        taken, self._segments = self._segments[:count], self._segments[count:]
        return taken

    def delete_newest_to(self, count: int) -> None:
        """Delete all but the oldest `count` segments.

        The newest segment is deleted first, so that a crash leaves no gap.
        """
        while len(self._segments) > count:
            self._segments.pop().delete()

    def replace(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Replace the consecutive segments `old` with `new`."""
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = [new]

    def flush_from(self, offset: int) -> None:
        """Flush the segments that contain offsets at or above `offset`, and their indexes."""
        for segment in self._segments[self.index_of(offset) :]:
            segment.flush()

    # Reading

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that contains `offset`, or 0 if no segment does."""
        position = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return max(position - 1, 0)

    def between(self, start_offset: int, end_offset: int) -> list[LogSegment]:
        """Return the segments that may contain offsets in this range (the end is exclusive)."""
        return [
            segment
            for segment in self._segments[self.index_of(start_offset) :]
            if segment.base_offset < end_offset
        ]

    def read(
        self, start_offset: int, *, end_offset: int, max_bytes: int, at_least_one_batch: bool
    ) -> bytes:
        """Read from the first segment that has batches in the range (see `LogSegment.read`)."""
        for segment in self._segments[self.index_of(start_offset) :]:
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
        """Return the position of the first batch that ends at or after `offset`.

        Return the end of the log if there is no such batch.
        """
        for segment in self._segments[self.index_of(offset) :]:
            position_bytes = segment.position_of(offset)
            if position_bytes is not None:
                return LogPosition(
                    segment_base_offset=segment.base_offset, position_bytes=position_bytes
                )
        return self.end_position()

    def end_position(self) -> LogPosition:
        return LogPosition(
            segment_base_offset=self.active.base_offset, position_bytes=self.active.size_bytes
        )

    def may_have_aborted(self, start_offset: int) -> bool:
        """Return whether a segment at or after `start_offset` has a transaction index."""
        first = self.index_of(start_offset)
        return any(segment.transactions.exists_on_disk for segment in self._segments[first:])

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap a range of offsets."""
        found: list[AbortedTransaction] = []
        for segment in self._segments[self.index_of(start_offset) :]:
            overlapping, is_all = segment.transactions.overlapping(start_offset, end_offset)
            found += overlapping
            if is_all:
                break
        return found

    def find_timestamp(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        """Return the first record in the offset range with a timestamp >= `timestamp_ms`."""
        for segment in self._segments:
            found = segment.find_timestamp(
                timestamp_ms, start_offset=start_offset, end_offset=end_offset
            )
            if found is not None:
                return found
        return None

    def find_max_timestamp(self, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first record with the largest timestamp, if it is below `end_offset`."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        return newest.find_max_timestamp(end_offset=end_offset)
