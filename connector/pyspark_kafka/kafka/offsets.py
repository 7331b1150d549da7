"""Offsets, offset ranges and offset queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyspark_kafka.kafka.topics import TopicPartition

EARLIEST: Final[int] = -2
LATEST: Final[int] = -1
"""The special timestamps of ListOffsets. In Spark's offset JSON, they are used as offsets."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
"""The maximum `int32` (for partitions and timeouts) and `int64` (for offsets and timestamps)."""

PartitionOffsets = Mapping[TopicPartition, int]


def partition_lag(
    position: PartitionOffsets, latest: PartitionOffsets
) -> dict[TopicPartition, int]:
    """Return the number of offsets from the position of each partition to its latest offset.

    The result contains the partitions that are in both arguments. No value is negative, even if a
    new leader briefly reports a latest offset below the position (KAFKA-7703). Kafka's consumer
    calculates its lag in the same way (`SubscriptionState.partitionLag`).
    """
    return {p: max(0, latest[p] - offset) for p, offset in position.items() if p in latest}


class IsolationLevel(Enum):
    """Kafka's `isolation.level`, with the values in ListOffsets and Fetch requests."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimestamp:
    """A query for the earliest offset whose timestamp is at least `timestamp_ms`.

    The timestamp is in milliseconds since the epoch.
    """

    timestamp_ms: int


OffsetQuery = int | AtTimestamp
"""`EARLIEST`, `LATEST` or a timestamp.

With `read_committed`, `LATEST` returns the last stable offset.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRange:
    """The records of a partition with `start_offset <= offset < end_offset`."""

    topic_partition: TopicPartition
    start_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        """The number of offsets in the range. The number of records can be smaller."""
        return self.end_offset - self.start_offset
