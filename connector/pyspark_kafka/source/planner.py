"""Planning of a batch read: from options to the ranges that tasks read.

Purpose: the driver's half of `spark.read`. Invariant: what is planned exists and is decided at the
moment of planning. What it must not know: Spark, clients other than by `OffsetReader`.
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
from pyspark_kafka.source.pushdown import EVERYTHING, Pruning
from pyspark_kafka.source.range_check import readable
from pyspark_kafka.source.ranges import PlannedRange, split


def plan_batch(
    reader: OffsetReader, options: SourceOptions, pruning: Pruning = EVERYTHING
) -> list[PlannedRange]:
    """The tasks of a batch read; raises `OptionError`, `DataLossError`, `KafkaError`.

    Options are checked against all partitions that they select. What is pruned is not wanted, so
    it cannot be lost either.
    """
    assignment = reader.complete_assignment()
    if not assignment.partitions:
        return []
    start = reader.resolve(options.starting, assignment.partitions, "starting")
    end = reader.resolve(options.ending, assignment.partitions, "ending")
    wanted = frozenset(filter(pruning.reads, assignment.partitions))
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    # An end that the user did not write as an offset was read from the log a moment ago.
    written = options.ending.offsets if isinstance(options.ending, SpecificOffsets) else {}
    known_latest = {p: offset for p, offset in end.items() if written.get(p, LATEST) < 0}
    backwards = {p: start[p] for p in wanted if start[p] > end[p]}
    for partition in sorted(backwards.keys() - known_latest.keys()):
        _explain_backwards(partition, start, end, options, on_loss)
    _check_starts({p: start[p] for p in backwards.keys() & known_latest.keys()}, reader, on_loss)
    ranges = [
        part
        for p in sorted(wanted - backwards.keys())
        for part in pruning.parts(p, start[p], end[p])
    ]
    found = readable(ranges, reader, on_loss, known_latest=known_latest)
    return planned(_since(pruning.since_ms, found, reader), assignment, options)


def _since(
    since_ms: int | None, ranges: Sequence[FetchRange], reader: OffsetReader
) -> list[FetchRange]:
    """Leave out what is older. The ranges are readable by now: where the cluster finds no record
    that is recent enough, they have none."""
    if since_ms is None or not ranges:
        return list(ranges)
    first = reader.first_since({r.topic_partition for r in ranges}, since_ms)
    return [
        replace(r, start_offset=max(r.start_offset, first[r.topic_partition]))
        for r in ranges
        if first.get(r.topic_partition, r.end_offset) < r.end_offset
    ]


def _explain_backwards(
    partition: TopicPartition,
    start: PartitionOffsets,
    end: PartitionOffsets,
    options: SourceOptions,
    on_loss: DataLossPolicy,
) -> None:
    """The end is an offset that the user wrote, and the start lies behind it."""
    written = options.starting.offsets if isinstance(options.starting, SpecificOffsets) else {}
    if options.starting is Limit.EARLIEST or written.get(partition) == EARLIEST:
        on_loss.report(
            f"{partition}: the records up to offset {end[partition]} were to be read, and the log "
            f"starts at {start[partition]}"
        )
    else:
        raise OptionError(
            f"{partition} is to be read from offset {start[partition]} back to {end[partition]}: "
            "correct where the options 'starting...' and 'endingOffsets' start and end it"
        )


def _check_starts(starts: PartitionOffsets, reader: OffsetReader, on_loss: DataLossPolicy) -> None:
    """Starts above latest: nothing to read yet, or loss where they lie above the log end too."""
    log_end = reader.latest(
        starts, expected=starts, isolation_level=IsolationLevel.READ_UNCOMMITTED
    )
    for partition in sorted(starts):
        if starts[partition] > log_end[partition]:
            on_loss.report(
                f"{partition}: it was to be read from offset {starts[partition]}, and its log "
                f"ends at {log_end[partition]}"
            )


def planned(
    ranges: list[FetchRange], assignment: Assignment, options: SourceOptions
) -> list[PlannedRange]:
    """Cut ranges into tasks, each with the id of the topic it was planned for."""
    return [
        PlannedRange(fetch_range=part, topic_id=assignment.topic_ids[part.topic_partition.topic])
        for part in split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
    ]
