"""Calculates the new offsets of a query, and the new content of its checkpoint.

As in Kafka's `kafka-consumer-groups.sh --reset-offsets` (`OffsetsUtils`), an offset outside the log
is replaced with the nearest offset in the log.

The next micro-batch starts at the end of the last committed micro-batch, so the new offsets replace
the end offsets of the committed micro-batch. If a micro-batch is already planned, it gets the same
end offsets and therefore reads nothing from the partitions that are reset. The planned micro-batch
retains its id and its offsets for all other partitions and sources. A sink that has already written
the rows of the planned micro-batch therefore skips only this micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_kafka.checkpoint.offset_log import SourcePartition
from pyspark_kafka.checkpoint.progress import Batch, Progress
from pyspark_kafka.errors import CheckpointError
from pyspark_kafka.kafka.topics import TopicPartition

Target = Callable[[TopicPartition, int], int]
"""Returns the requested offset of a partition, given the partition and its current offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """The log start offset and the log end offset of a partition."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The reset of one partition to the offset `new`.

    If `requested` is outside the log, `new` is the nearest offset in the log.
    """

    partition: SourcePartition
    current: int
    requested: int
    new: int


def plan_reset(
    offsets: Mapping[SourcePartition, int], target: Target, log: Mapping[TopicPartition, LogRange]
) -> list[Reset]:
    """Return a reset for each partition in `offsets`, even if its offset does not change."""
    resets = []
    for partition, current in offsets.items():
        _, topic_partition = partition
        requested, available = target(topic_partition, current), log[topic_partition]
        new = max(available.start, min(requested, available.end))
        resets.append(Reset(partition=partition, current=current, requested=requested, new=new))
    return resets


def check_reset(
    progress: Progress, resets: Sequence[Reset], *, discards_planned: bool, keeps_state: bool
) -> None:
    """Raise `CheckpointError` for an unconfirmed reset that could lose or duplicate rows."""
    planned = progress.planned
    if planned is not None and not discards_planned:
        raise CheckpointError(
            f"Micro-batch {planned.batch_id} is planned, but not committed. Either the query is "
            "running, or it failed and will run this micro-batch again. Some rows of the "
            "micro-batch may already have been written.",
            advice="Start the query, wait until the micro-batch is committed, and stop the query. "
            "If the micro-batch cannot succeed, add --discard-planned-batch. The micro-batch then "
            "reads no records from the partitions whose offsets are reset.",
        )
    if progress.has_state and not keeps_state and any(each.new < each.current for each in resets):
        raise CheckpointError(
            "The query has stateful operators, and their state includes the records before the "
            "current offsets. A reset does not change the state. If you rewind the offsets, "
            "aggregations count these records twice, and records older than the watermark are "
            "dropped.",
            advice="Start the query with a new 'checkpointLocation' and the option "
            "'startingOffsets' or 'startingTimestamp'. To rewind the offsets and keep the current "
            "state, add --keep-state.",
        )


def edited_batches(progress: Progress, resets: Sequence[Reset]) -> list[tuple[Batch, bytes]]:
    """Return the micro-batches whose checkpoint files change, with the new content of each file.

    In the result, the last committed micro-batch precedes the planned micro-batch.
    """
    new = {each.partition: each.new for each in resets}
    edited = []
    for batch in (progress.committed, progress.planned):
        if batch is not None:
            entry = batch.entry.with_offsets(new)
            if entry != batch.entry:
                edited.append((batch, entry.to_bytes()))
    return edited
