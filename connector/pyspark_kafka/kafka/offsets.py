"""Offsets, ranges of offsets, and queries for offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyspark_kafka.kafka.topics import TopicPartition

EARLIEST: Final[int] = -2
LATEST: Final[int] = -1
"""The special timestamps of ListOffsets, which Spark's JSON uses as offsets, too."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
"""Bounds of Kafka's `int32` (partitions, milliseconds) and `int64` (offsets, timestamps)."""

PartitionOffsets = Mapping[TopicPartition, int]


class IsolationLevel(Enum):
    """Kafka's `isolation.level`; the values are those in ListOffsets and Fetch requests."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """A query for the first offset with this timestamp or a later one (epoch milliseconds)."""

    timestamp_ms: int


OffsetQuery = int | AtTimestamp
"""`EARLIEST`, `LATEST` or a timestamp. With read_committed `LATEST` is the last stable offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRange:
    """The records of a partition with `start_offset <= offset < end_offset`."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """The number of offsets, which is at least the number of records."""
        return self.end_offset - self.start_offset
