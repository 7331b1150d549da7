"""Plans a batch read on the driver, and returns the ranges that the tasks read.

Invariant: planned ranges exist, and with read_committed they contain no open transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import (
    EARLIEST,
    LATEST,
    FetchRange,
    IsolationLevel,
    PartitionOffsets,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import OffsetLimitName, SourceOptions, SpecificOffsets
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import Assignment, OffsetReader
from pyspark_kafka.source.pruning import EVERYTHING, Pruning
from pyspark_kafka.source.range_check import readable_ranges
from pyspark_kafka.source.ranges import PlannedRange, split


def plan_batch(
    reader: OffsetReader, options: SourceOptions, pruning: Pruning = EVERYTHING
) -> list[PlannedRange]:
    """Return the tasks of a batch read.

    Options are checked against all selected partitions. Pruned records never count as data loss.
    Raises `OptionError`, `OffsetError`, `DataLossError` and `KafkaError`.
    """
    assignment = reader.complete_assignment()
    if not assignment.partitions:
        return []
    start = reader.resolve(options.starting, assignment.partitions, "starting")
    end = reader.resolve(options.ending, assignment.partitions, "ending")
    partitions = frozenset(filter(pruning.reads, assignment.partitions))
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    # End offsets that the user did not set have just been requested from the cluster, so the
    # records before these offsets are readable.
    given_ends = options.ending.offsets if isinstance(options.ending, SpecificOffsets) else {}
    known_latest = {p: offset for p, offset in end.items() if given_ends.get(p, LATEST) < 0}
    backwards = {p: start[p] for p in partitions if start[p] > end[p]}
    for partition in sorted(backwards.keys() - known_latest.keys()):
        _report_end_before_start(partition, start, end, options, on_loss)
    _check_starts({p: start[p] for p in backwards.keys() & known_latest.keys()}, reader, on_loss)
    ranges = [
        part
        for p in sorted(partitions - backwards.keys())
        for part in pruning.parts(p, start[p], end[p])
    ]
    found = readable_ranges(ranges, reader, on_loss, known_latest=known_latest)
    return plan_tasks(_since(pruning.since_ms, found, reader), assignment, options)


def _since(
    since_ms: int | None, ranges: Sequence[FetchRange], reader: OffsetReader
) -> list[FetchRange]:
    """Start each range at its first record with a timestamp of `since_ms` or later.

    Ranges without such a record are omitted. All records of the ranges must be readable, so that
    the cluster finds the record if it exists.
    """
    if since_ms is None or not ranges:
        return list(ranges)
    first = reader.first_since({r.topic_partition for r in ranges}, since_ms)
    return [
        replace(r, start_offset=max(r.start_offset, first[r.topic_partition]))
        for r in ranges
        if first.get(r.topic_partition, r.end_offset) < r.end_offset
    ]


def _report_end_before_start(
    partition: TopicPartition,
    start: PartitionOffsets,
    end: PartitionOffsets,
    options: SourceOptions,
    on_loss: DataLossPolicy,
) -> None:
    """Report data loss if the start is the log start offset. Otherwise, raise `OptionError`."""
    given = options.starting.offsets if isinstance(options.starting, SpecificOffsets) else {}
    if options.starting is OffsetLimitName.EARLIEST or given.get(partition) == EARLIEST:
        on_loss.report(
            f"The query has to read {partition} up to offset {end[partition]}, but the log starts "
            f"at offset {start[partition]}.",
            partition,
            offset=end[partition],
        )
    else:
        raise OptionError(
            f"The start offset {start[partition]} for {partition} is after the end offset "
            f"{end[partition]}.",
            advice="Correct 'endingOffsets' or the option that sets the start offset.",
            option="endingOffsets",
            topic=partition.topic,
            partition=partition.partition,
            offset=end[partition],
        )


def _check_starts(starts: PartitionOffsets, reader: OffsetReader, on_loss: DataLossPolicy) -> None:
    """Report data loss for start offsets after the log end offset.

    A start offset at the log end offset is valid: the partition has nothing to read yet.
    """
    high_watermarks = reader.latest(
        starts, expected=starts, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    for partition in sorted(starts):
        if starts[partition] > high_watermarks[partition]:
            on_loss.report(
                f"The query has to read {partition} from offset {starts[partition]}, but the log "
                f"ends at offset {high_watermarks[partition]}.",
                partition,
                offset=starts[partition],
            )


def plan_tasks(
    ranges: list[FetchRange], assignment: Assignment, options: SourceOptions
) -> list[PlannedRange]:
    """Split ranges into tasks, and add the topic ids from the assignment."""
    return [
        PlannedRange(fetch_range=part, topic_id=assignment.topic_ids[part.topic_partition.topic])
        for part in split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
    ]
