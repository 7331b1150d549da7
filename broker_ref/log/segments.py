"""The segments of one log in order, and how they are read (LogSegments of Apache Kafka).

Purpose: find the segment that holds an offset, read on from there, search all of them by time.
Invariant: base offsets ascend, and there is at least one segment, but within a truncation; the
last is active. What it must not know: log start and end offsets (callers pass bounds), producers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker_ref.log.segment import LogSegment, TimestampAndOffset
from broker_ref.log.transaction_index import AbortedTransaction


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """Where a batch starts: its segment, and bytes from that one's start (LogOffsetMetadata)."""

    segment_base_offset: int
    position_bytes: int


class LogSegments:
    """A log's segments, oldest first."""

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
        """The one that is appended to."""
        return self._segments[-1]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return tuple(segment.base_offset for segment in self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files, indexes not counted."""
        return sum(segment.size_bytes for segment in self._segments)

    # Changing

    def add(self, segment: LogSegment) -> None:
        """Make a new segment the active one."""
        self._segments.append(segment)

    def take_oldest(self, count: int) -> list[LogSegment]:
        """Drop the first `count` segments from the log and return them; their files stay."""
        taken, self._segments = self._segments[:count], self._segments[count:]
        return taken

    def delete_newest_to(self, count: int) -> None:
        """Delete all but the first `count`, newest first, so that a crash leaves no gap."""
        while len(self._segments) > count:
            self._segments.pop().delete()

    def replace(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Put `new` in the place of `old`, which follow each other in the log."""
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = [new]

    # Reading

    def index_of(self, offset: int) -> int:
        """Which segment holds `offset`; the first where it lies below all."""
        position = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return max(position - 1, 0)

    def between(self, start_offset: int, end_offset: int) -> list[LogSegment]:
        """The segments that may hold offsets from `start_offset` on, below `end_offset`."""
        return [
            segment
            for segment in self._segments[self.index_of(start_offset) :]
            if segment.base_offset < end_offset
        ]

    def read(
        self, start_offset: int, *, end_offset: int, max_bytes: int, at_least_one_batch: bool
    ) -> bytes:
        """As `LogSegment.read`, from the first segment that has something there."""
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
        """Where the batch starts that holds `offset`, or the next one; else the end of the log."""
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
        """Whether there is any transaction index from the segment on that holds `start_offset`."""
        first = self.index_of(start_offset)
        return any(segment.transactions.is_there for segment in self._segments[first:])

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted ones with an offset from `start_offset` on, below `end_offset`."""
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
        """The first record from `start_offset` on, below `end_offset`, with that timestamp."""
        for segment in self._segments:
            found = segment.find_timestamp(
                timestamp_ms, start_offset=start_offset, end_offset=end_offset
            )
            if found is not None:
                return found
        return None

    def find_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record that has the largest timestamp of all."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp)
        return newest.find_max_timestamp()
