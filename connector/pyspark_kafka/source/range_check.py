"""The check of planned ranges against the log, on the driver.

A range that starts before the log start offset or ends after the log end offset is data loss. An
end after the last stable offset is an open transaction, whose end is awaited. Must not know:
Spark, the names of options.
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
    """Return the parts of the ranges that exist and can be read now.

    Up to the offsets `known_latest`, partitions are known to be readable, which saves requests.
    Ranges of one partition must be in order. Raises `DataLossError`, and `OffsetError` for an open
    transaction. Empty ranges, which Spark plans when it restarts a query, are never data loss.
    """
    ranges = [r for r in ranges if r.size > 0]
    if not ranges:
        return []
    partitions = [r.topic_partition for r in ranges]
    log_start = reader.earliest(partitions)
    log_end = _log_end(ranges, reader, known_latest or {})
    found = []
    for requested in ranges:
        partition = requested.topic_partition
        first, last = log_start[partition], log_end.get(partition, requested.end_offset)
        if requested.start_offset < first or requested.end_offset > last:
            on_loss.report_missing(requested, first, max(last, first))
        end = min(requested.end_offset, last)
        start = min(max(requested.start_offset, first), end)
        found.append(replace(requested, start_offset=start, end_offset=end))
    return [r for r in found if r.size > 0]


def _log_end(
    ranges: Sequence[FetchRange], reader: OffsetReader, known_latest: PartitionOffsets
) -> PartitionOffsets:
    """Return log end offsets of the partitions with a range that ends after `known_latest`.

    Waits until the existing parts of these ranges are readable at the query's isolation level.
    """
    unknown = {
        r.topic_partition: r.end_offset
        for r in ranges
        if r.end_offset > known_latest.get(r.topic_partition, -1)
    }
    if not unknown:
        return {}
    log_end = reader.latest(
        unknown, expected=unknown, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    reader.wait_until_stable({p: min(end, log_end[p]) for p, end in unknown.items()})
    return log_end
