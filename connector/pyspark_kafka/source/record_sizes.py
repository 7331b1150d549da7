"""Estimates the size of unread records for `maxBytesPerTrigger`.

Kafka does not report the size of an offset range. The driver therefore reads a sample of the next
records, and assumes that every other unread offset of the topic contains a record of the sample's
average size. Invariant: each estimate requires only a few records from at most `_PARTITIONS_MAX`
partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import replace
from heapq import nlargest
from typing import Final

import pyarrow as pa

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import FetchRange
from pyspark_kafka.options.values import SourceOptions

_PARTITIONS_MAX: Final = 16
_OFFSETS_MAX: Final = 256
_BYTES_MAX: Final = 1024 * 1024
"""The size after which the sample of a partition ends. The last Arrow batch can exceed it."""
_GUESSED_BYTES: Final = 1024
"""The average size that is assumed until a sample contains a record."""


class RecordSizes:
    """Estimates sizes for one query. The caller must close the client."""

    def __init__(self, client: KafkaReadClient, options: SourceOptions) -> None:
        self._client = client
        self._isolation_level = options.isolation_level
        self._columns = ("key", "value", *(("headers",) if options.include_headers else ()))
        self._averages: dict[str, float] = {}

    def total(self, ranges: Iterable[FetchRange]) -> float:
        """Estimate the uncompressed size of the keys, values and headers in the ranges, in bytes.

        Raises `KafkaError` if a sample cannot be read.
        """
        ranges = [each for each in ranges if each.size > 0]
        self._sample(nlargest(_PARTITIONS_MAX, ranges, key=lambda each: each.size))
        known = self._averages.values()
        others = sum(known) / len(known) if known else _GUESSED_BYTES
        return sum(
            each.size * self._averages.get(each.topic_partition.topic, others) for each in ranges
        )

    def _sample(self, ranges: Iterable[FetchRange]) -> None:
        sizes, records = Counter[str](), Counter[str]()
        for each in ranges:
            topic = each.topic_partition.topic
            for batch in self._first_records(each):
                # The average is at least 1 byte. If it were 0, there would be no limit.
                sizes[topic] += max(_payload_bytes(batch), batch.num_rows)
                records[topic] += batch.num_rows
        self._averages |= {topic: size / records[topic] for topic, size in sizes.items()}

    def _first_records(self, fetch_range: FetchRange) -> list[pa.RecordBatch]:
        """Return the first records of a range, or no records if their transactions were aborted."""
        end = min(fetch_range.start_offset + _OFFSETS_MAX, fetch_range.end_offset)
        found = []
        try:
            with closing(self._fetch(replace(fetch_range, end_offset=end))) as batches:
                for batch in batches:
                    found.append(batch)
                    if sum(each.nbytes for each in found) >= _BYTES_MAX:
                        break
        except (OffsetOutOfRangeError, UnknownTopicOrPartitionError):
            pass  # The planner reports data loss when it plans the micro-batch.
        return found

    def _fetch(self, fetch_range: FetchRange) -> Generator[pa.RecordBatch, None, None]:
        yield from self._client.fetch(fetch_range, self._columns, self._isolation_level)


def _payload_bytes(batch: pa.RecordBatch) -> int:
    """Return the size of the keys, values and headers, without Arrow's offsets and validity bits.

    For small records, the offsets and validity bits would account for most of `nbytes`.
    """
    size = 0
    for column in batch.columns:
        # A list of headers is flattened twice: to its structs, and to their keys and values.
        is_list = pa.types.is_list(column.type)
        for array in column.flatten().flatten() if is_list else [column]:
            if len(array) > 0:
                offsets = memoryview(array.buffers()[1]).cast("i")
                size += offsets[array.offset + len(array)] - offsets[array.offset]
    return size
