"""Plans a batch read on the driver, and plans a task again if Spark repeats the read.

Spark 4.1 to 4.3 call the planner once for each `load()`, even if several queries read the
DataFrame. The first query reads the planned offsets. In each later query, every task resolves
limits such as `latest` again. The new limits replace the start of the first range and the end of
the last range of each partition. The bounds between the ranges of a partition never change, so
tasks never read the same record twice.

Invariant: the offsets of planned ranges exist. With read_committed, planned ranges contain no open
transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import (
    EARLIEST,
    LATEST,
    FetchRange,
    IsolationLevel,
    PartitionOffsets,
)
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.options.values import (
    GlobalTimestamp,
    OffsetLimitName,
    PartitionTimestamps,
    SourceOptions,
    SpecificOffsets,
)
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import Assignment, OffsetReader, option_name
from pyspark_kafka.source.pruning import EVERYTHING, Pruning
from pyspark_kafka.source.range_check import readable_ranges
from pyspark_kafka.source.ranges import PlannedRange, pack, split


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBounds:
    """The start and end offsets of all partitions of a read, resolved at the same time.

    `latest` contains the end offsets that the cluster returned at that time. All records before
    these offsets are readable.
    """

    assignment: Assignment
    start: PartitionOffsets
    end: PartitionOffsets
    latest: PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """A range of offsets for one task of a batch query.

    `planned` is None if the plan is empty. The other fields are used when Spark repeats the read:
    `is_first` and `is_last` specify whether the range is the first or last range of its partition.
    `planned_partitions` is set only in the last range of a read. The task with this range then also
    reads all partitions that are not in `planned_partitions`.
    """

    planned: PlannedRange | None
    is_first: bool = False
    is_last: bool = False
    planned_partitions: frozenset[TopicPartition] | None = None

    @property
    def size(self) -> int:
        return 0 if self.planned is None else self.planned.fetch_range.size


BatchTask = tuple[BatchRange, ...]
"""The ranges that one Spark task of a batch read must read."""


def has_fixed_bounds(options: SourceOptions) -> bool:
    """Return whether the user specified all start and end offsets of the read."""
    return all(
        isinstance(limit, SpecificOffsets) and all(offset >= 0 for offset in limit.offsets.values())
        for limit in (options.starting, options.ending)
    )


def plan_batch(
    reader: OffsetReader, options: SourceOptions, pruning: Pruning = EVERYTHING
) -> list[BatchTask]:
    """Return the tasks of a batch read.

    Options are checked against all selected partitions. Records that filters skip never count as
    data loss. Raises `OptionError`, `OffsetError`, `DataLossError` and `KafkaError`.
    """
    bounds = resolve_bounds(reader, options, pruning)
    ranges = [part for p in sorted(bounds.start) for part in _parts(p, bounds, pruning)]
    found = _existing(ranges, bounds, reader, options, pruning)
    planned = _batch_ranges(plan_ranges(found, bounds.assignment, options))
    return pack(planned, options.max_partitions, lambda each: each.size)


def plan_again(
    task: BatchTask,
    bounds: BatchBounds,
    reader: OffsetReader,
    options: SourceOptions,
    pruning: Pruning,
) -> list[PlannedRange]:
    """Return the ranges of a task, recalculated with the newly resolved `bounds`.

    Raises the same errors as `plan_batch`.
    """
    ranges = [r for planned in task for r in _ranges_again(planned, bounds, pruning)]
    return [
        PlannedRange(fetch_range=r, topic_id=bounds.assignment.topic_ids[r.topic_partition.topic])
        for r in _existing(ranges, bounds, reader, options, pruning)
    ]


def resolve_bounds(reader: OffsetReader, options: SourceOptions, pruning: Pruning) -> BatchBounds:
    """Resolve the limits of a read. The result omits partitions without a valid range.

    Raises `OptionError`, `OffsetError`, `DataLossError` and `KafkaError`.
    """
    assignment = reader.complete_assignment()
    if not assignment.partitions:
        return BatchBounds(assignment=assignment, start={}, end={}, latest={})
    start = reader.resolve(options.starting, assignment.partitions, "starting")
    ends_at_timestamps = isinstance(options.ending, GlobalTimestamp | PartitionTimestamps)
    # The end of a partition without a matching record is not before this offset.
    latest = reader.latest(assignment.partitions) if ends_at_timestamps else {}
    end = reader.resolve(options.ending, assignment.partitions, "ending")
    partitions = frozenset(filter(pruning.reads, assignment.partitions))
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    # End offsets that the user did not set have just been requested from the cluster, so the
    # records before these offsets are readable.
    given_ends = options.ending.offsets if isinstance(options.ending, SpecificOffsets) else {}
    known_latest = {p: offset for p, offset in end.items() if given_ends.get(p, LATEST) < 0}
    backwards = {p: start[p] for p in partitions if start[p] > end[p]}
    fixed = backwards.keys() - known_latest.keys()
    if ends_at_timestamps:
        fixed = {p for p in backwards if end[p] < latest[p]}
    for partition in sorted(fixed):
        _report_end_before_start(partition, start, end, options, on_loss)
    _check_starts({p: start[p] for p in backwards.keys() - fixed}, reader, on_loss)
    readable = partitions - backwards.keys()
    return BatchBounds(
        assignment=assignment,
        start={p: start[p] for p in readable},
        end={p: end[p] for p in readable},
        latest=known_latest,
    )


def _parts(partition: TopicPartition, bounds: BatchBounds, pruning: Pruning) -> list[FetchRange]:
    return pruning.parts(partition, bounds.start[partition], bounds.end[partition])


def _existing(
    ranges: Sequence[FetchRange],
    bounds: BatchBounds,
    reader: OffsetReader,
    options: SourceOptions,
    pruning: Pruning,
) -> list[FetchRange]:
    on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
    found = readable_ranges(ranges, reader, on_loss, known_latest=bounds.latest)
    return _since(pruning.since_ms, found, reader)


def _batch_ranges(plans: Sequence[PlannedRange]) -> list[BatchRange]:
    """Convert planned ranges to `BatchRange` objects. The ranges must be in order."""
    if not plans:
        return [BatchRange(planned=None, planned_partitions=frozenset())]
    partitions = [plan.fetch_range.topic_partition for plan in plans]
    ranges = [
        BatchRange(planned=plan, is_first=partition != previous, is_last=partition != following)
        for plan, partition, previous, following in zip(
            plans, partitions, [None, *partitions], [*partitions[1:], None], strict=False
        )
    ]
    ranges[-1] = replace(ranges[-1], planned_partitions=frozenset(partitions))
    return ranges


def _ranges_again(part: BatchRange, bounds: BatchBounds, pruning: Pruning) -> list[FetchRange]:
    found = []
    if part.planned is not None and part.planned.fetch_range.topic_partition in bounds.start:
        planned = part.planned.fetch_range
        partition = planned.topic_partition
        start, end = bounds.start[partition], bounds.end[partition]
        start = start if part.is_first else max(planned.start_offset, start)
        end = end if part.is_last else min(planned.end_offset, end)
        found = pruning.parts(partition, start, end)
    if part.planned_partitions is not None:
        for partition in sorted(bounds.start.keys() - part.planned_partitions):
            found += _parts(partition, bounds, pruning)
    return found


def _since(
    since_ms: int | None, ranges: Sequence[FetchRange], reader: OffsetReader
) -> list[FetchRange]:
    """Start each range at its first record with a timestamp of `since_ms` or later.

    Ranges without such a record are omitted. All records in the ranges must be readable, because
    brokers search only readable records.
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
    """Report data loss if the partition starts at `earliest`. Otherwise, raise `OptionError`."""
    given = options.starting.offsets if isinstance(options.starting, SpecificOffsets) else {}
    if options.starting is OffsetLimitName.EARLIEST or given.get(partition) == EARLIEST:
        on_loss.report(
            f"The query has to read {partition} up to offset {end[partition]}, but the log starts "
            f"at offset {start[partition]}.",
            partition,
            offset=end[partition],
        )
    else:
        option = option_name(options.ending, "ending")
        raise OptionError(
            f"The start offset {start[partition]} for {partition} is after the end offset "
            f"{end[partition]}.",
            advice=f"Correct '{option}' or the option that sets the start offset.",
            option=option,
            topic=partition.topic,
            partition=partition.partition,
            offset=end[partition],
        )


def _check_starts(starts: PartitionOffsets, reader: OffsetReader, on_loss: DataLossPolicy) -> None:
    """Report data loss for start offsets after the log end offset.

    A start offset at the log end offset is valid: the partition has no records to read yet.
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


def plan_ranges(
    ranges: list[FetchRange], assignment: Assignment, options: SourceOptions
) -> list[PlannedRange]:
    """Split ranges according to the options, and add the topic ids from the assignment."""
    return [
        PlannedRange(fetch_range=part, topic_id=assignment.topic_ids[part.topic_partition.topic])
        for part in split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
    ]
