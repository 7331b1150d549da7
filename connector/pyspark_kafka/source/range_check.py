"""Does the cluster still have what a plan wants to read, and may it be read already?

Purpose: the check of a planned range against the log, on the driver. Loss is a range that starts
below the log start offset or ends above the log end; an end above the last stable offset is not
loss but an open transaction, and is waited for. What it must not know: Spark, options' names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, PartitionOffsets
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import OffsetReader


def readable(
    ranges: Sequence[FetchRange],
    reader: OffsetReader,
    on_loss: DataLossPolicy,
    *,
    known_latest: PartitionOffsets | None = None,
) -> list[FetchRange]:
    """The parts of the ranges that exist, ready to be read.

    `known_latest` are offsets up to which the partitions are known to be readable, which spares
    the question. Ranges of one partition must be in order. Raises `DataLossError` and `OffsetError`
    (an open transaction). Nothing can be lost from an empty range, wherever it stands: Spark plans
    some when it restarts a query.
    """
    ranges = [r for r in ranges if r.size > 0]
    if not ranges:
        return []
    partitions = [r.topic_partition for r in ranges]
    log_start = reader.earliest(partitions)
    log_end = _log_end(ranges, reader, known_latest or {})
    found = []
    for wanted in ranges:
        partition = wanted.topic_partition
        first, last = log_start[partition], log_end.get(partition, wanted.end_offset)
        if wanted.start_offset < first or wanted.end_offset > last:
            on_loss.report(
                f"{partition}: offsets {wanted.start_offset} to {wanted.end_offset} were to be "
                f"read, and {first} to {max(last, first)} exist"
            )
        end = min(wanted.end_offset, last)
        found.append(
            replace(wanted, start_offset=min(max(wanted.start_offset, first), end), end_offset=end)
        )
    return [r for r in found if r.size > 0]


def _log_end(
    ranges: Sequence[FetchRange], reader: OffsetReader, known_latest: PartitionOffsets
) -> PartitionOffsets:
    """Log ends of the partitions whose range ends above what is known to be readable.

    Returns when the parts of these ranges that exist are readable at the query's isolation level.
    """
    beyond = {
        r.topic_partition: r.end_offset
        for r in ranges
        if r.end_offset > known_latest.get(r.topic_partition, -1)
    }
    if not beyond:
        return {}
    log_end = reader.latest(
        beyond, expected=beyond, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    reader.wait_until_stable({p: min(end, log_end[p]) for p, end in beyond.items()})
    return log_end
