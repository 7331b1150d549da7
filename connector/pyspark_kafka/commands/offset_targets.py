"""Queries the cluster for the target offsets of an offset reset.

As in Kafka's `kafka-consumer-groups.sh --reset-offsets` (`OffsetsUtils`), a partition without a
record at or after the requested time is reset to its latest offset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.commands.offset_arguments import Change, FromGroup, ShiftBy, ToOffset
from pyspark_kafka.commands.offset_reset import LogRange, Target
from pyspark_kafka.errors import OffsetError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, AtTimestamp, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicPartition, format_partitions
from pyspark_kafka.options.values import OffsetLimitName


def missing_partitions(
    client: KafkaReadClient, partitions: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Return the partitions that do not exist or for which the principal lacks DESCRIBE."""
    described = client.describe_topics({partition.topic for partition in partitions})
    return set(partitions) - {
        TopicPartition(topic.name, number)
        for topic in described.values()
        for number in topic.partitions
    }


def require_partitions(client: KafkaReadClient, partitions: Collection[TopicPartition]) -> None:
    """Raise `UnknownTopicOrPartitionError` if partitions are missing."""
    missing = missing_partitions(client, partitions)
    if missing:
        raise UnknownTopicOrPartitionError(
            f"The checkpoint contains offsets of {format_partitions(missing)}, but the cluster "
            "does not have these partitions, or the principal lacks the DESCRIBE ACL.",
            advice="Check --bootstrap-servers, or select the other partitions with --topic.",
            topic=min(missing).topic,
            partition=min(missing).partition,
        )


def log_ranges(
    client: KafkaReadClient, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, LogRange]:
    """Return the log start offsets and log end offsets of `partitions`, which must exist."""
    level = IsolationLevel.READ_UNCOMMITTED
    starts, ends = (_offsets(client, query, partitions, level) for query in (EARLIEST, LATEST))
    return {p: LogRange(start=starts[p], end=ends[p]) for p in partitions}


def target_of(
    change: Change,
    client: KafkaReadClient,
    partitions: Collection[TopicPartition],
    isolation_level: IsolationLevel,
    *,
    warn: Callable[[str], None],
) -> Target:
    """Return the requested offsets.

    For `read_committed`, the latest offset is the last stable offset. Raises `OffsetError` if the
    group has no committed offset for a partition.
    """
    match change:
        case ToOffset(offset):
            return lambda _, __: offset
        case ShiftBy(offsets):
            return lambda _, current: current + offsets
        case FromGroup(group_id):
            found = _committed(client, group_id, partitions)
        case AtTimestamp():
            found = _at_timestamp(client, change, partitions, isolation_level, warn)
        case OffsetLimitName.EARLIEST:
            found = _offsets(client, EARLIEST, partitions, isolation_level)
        case _:
            found = _offsets(client, LATEST, partitions, isolation_level)
    return lambda partition, _: found[partition]


def _offsets(
    client: KafkaReadClient,
    query: OffsetQuery,
    partitions: Collection[TopicPartition],
    isolation_level: IsolationLevel,
) -> dict[TopicPartition, int]:
    """Return the results of an offset query. Omits partitions without a result."""
    found = client.list_offsets(dict.fromkeys(partitions, query), isolation_level)
    return {partition: offset for partition, offset in found.items() if offset is not None}


def _at_timestamp(
    client: KafkaReadClient,
    time: AtTimestamp,
    partitions: Collection[TopicPartition],
    isolation_level: IsolationLevel,
    warn: Callable[[str], None],
) -> dict[TopicPartition, int]:
    found = _offsets(client, time, partitions, isolation_level)
    unmatched = set(partitions) - found.keys()
    if unmatched:
        warn(f"no record of {format_partitions(unmatched)} is recent enough: latest is used")
        found |= _offsets(client, LATEST, unmatched, isolation_level)
    return found


def _committed(
    client: KafkaReadClient, group_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    found = client.committed_offsets(group_id, partitions)
    missing = {partition for partition in partitions if found[partition] is None}
    if missing:
        raise OffsetError(
            f"Group '{group_id}' has no committed offset for {format_partitions(missing)}.",
            advice="Correct the group id, or select the other partitions with --topic.",
            topic=min(missing).topic,
            partition=min(missing).partition,
            group_id=group_id,
        )
    return {partition: offset for partition, offset in found.items() if offset is not None}
