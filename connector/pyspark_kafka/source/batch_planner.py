"""Planning of a batch read on the driver: from options to the ranges that tasks read.

Invariant: planned ranges exist, and their transactions are complete. Must not know: Spark, and
clients except through `OffsetReader`.
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
from pyspark_kafka.options.values import Limit, SourceOptions, SpecificOffsets
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import Assignment, OffsetReader
from pyspark_kafka.source.pruning import EVERYTHING, Pruning
from pyspark_kafka.source.range_check import readable_ranges
from pyspark_kafka.source.ranges import PlannedRange, split


def plan_batch(
    reader: OffsetReader, options: SourceOptions, pruning: Pruning = EVERYTHING
) -> list[PlannedRange]:
    """Return the tasks of a batch read; raises `OptionError`, `DataLossError`, `KafkaError`.

    Options are checked against all selected partitions. Pruned records are never data loss.
    """
    assignment = reader.complete_assignment()
    if not assignment.partitions:
        return []
    start = reader.resolve(options.starting, assignment.partitions, "starting")
    end = reader.resolve(options.ending, assignment.partitions, "ending")
    partitions = frozenset(filter(pruning.reads, assignment.partitions))
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    # Ends that are not offsets of the user were just read from the log, and so are readable.
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
    """Return the ranges without records before the first one with this timestamp or a later one.

    The ranges are readable: if the cluster finds no such record, they contain none.
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
    """Report data loss if the start is the log start offset, else raise `OptionError`."""
    given = options.starting.offsets if isinstance(options.starting, SpecificOffsets) else {}
    if options.starting is Limit.EARLIEST or given.get(partition) == EARLIEST:
        on_loss.report(
            f"The query has to read {partition} up to offset {end[partition]}, and its log starts "
            f"at offset {start[partition]}.",
            partition,
            offset=end[partition],
        )
    else:
        raise OptionError(
            f"The read of {partition} starts at offset {start[partition]} and ends at offset "
            f"{end[partition]}.",
            advice="Correct 'endingOffsets', or the option that determines the start.",
            option="endingOffsets",
            topic=partition.topic,
            partition=partition.partition,
            offset=end[partition],
        )


def _check_starts(starts: PartitionOffsets, reader: OffsetReader, on_loss: DataLossPolicy) -> None:
    """Report data loss for starts after the log end; up to it there is nothing to read yet."""
    log_end = reader.latest(
        starts, expected=starts, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    for partition in sorted(starts):
        if starts[partition] > log_end[partition]:
            on_loss.report(
                f"The query has to read {partition} from offset {starts[partition]}, and its log "
                f"ends at offset {log_end[partition]}.",
                partition,
                offset=starts[partition],
            )


def plan_tasks(
    ranges: list[FetchRange], assignment: Assignment, options: SourceOptions
) -> list[PlannedRange]:
    """Split ranges into tasks, and add the topic ids of the assignment."""
    return [
        PlannedRange(fetch_range=part, topic_id=assignment.topic_ids[part.topic_partition.topic])
        for part in split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
    ]
