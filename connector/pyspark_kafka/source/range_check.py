"""Checks on the driver that the offsets of planned ranges exist.

A range that starts before the log start offset or ends after the log end offset counts as data
loss. If a range ends after the last stable offset, a transaction is open. In this case, the check
waits until the transaction ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, PartitionOffsets
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import OffsetReader


def readable_ranges(
    ranges: Sequence[FetchRange],
    reader: OffsetReader,
    on_loss: DataLossPolicy,
    *,
    known_latest: PartitionOffsets | None = None,
) -> list[FetchRange]:
    """Return the parts of the ranges that exist and can be read immediately.

    All records before the offsets in `known_latest` are readable, so no further requests are sent
    for them. Ranges of one partition must be in order. Raises `DataLossError`, and `OffsetError` if
    a transaction stays open. Empty ranges, which Spark plans when it restarts a query, never count
    as data loss.
    """
    ranges = [r for r in ranges if r.size > 0]
    if not ranges:
        return []
    partitions = [r.topic_partition for r in ranges]
    log_start = reader.earliest(partitions)
    high_watermarks = _high_watermarks(ranges, reader, known_latest or {})
    found = []
    for requested in ranges:
        partition = requested.topic_partition
        first, last = log_start[partition], high_watermarks.get(partition, requested.end_offset)
        if requested.start_offset < first or requested.end_offset > last:
            on_loss.report_missing_offsets(requested, first, max(last, first))
        end = min(requested.end_offset, last)
        start = min(max(requested.start_offset, first), end)
        found.append(replace(requested, start_offset=start, end_offset=end))
    return [r for r in found if r.size > 0]


def _high_watermarks(
    ranges: Sequence[FetchRange], reader: OffsetReader, known_latest: PartitionOffsets
) -> PartitionOffsets:
    """Return the log end offsets of partitions with a range that ends after `known_latest`.

    Wait until the records of these ranges that are below the high watermarks can be read at the
    query's isolation level.
    """
    unknown = {
        r.topic_partition: r.end_offset
        for r in ranges
        if r.end_offset > known_latest.get(r.topic_partition, -1)
    }
    if not unknown:
        return {}
    high_watermarks = reader.latest(
        unknown, expected=unknown, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    reader.wait_until_stable({p: min(end, high_watermarks[p]) for p, end in unknown.items()})
    return high_watermarks
