"""Calculates the lag of a query: the number of offsets that it has not read yet.

The lag of a partition is its latest offset minus the end offset of the last micro-batch. As in
Kafka's consumer, the latest offset is the last stable offset, or the high watermark with
`read_uncommitted`. Offsets of control records and of aborted transactions are included, so the
number of unread records can be smaller than the lag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_kafka.client.factory import open_client
from pyspark_kafka.kafka.offsets import LATEST, PartitionOffsets, partition_lag
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.monitoring.progress import Progress, SourceProgress, parse_progress
from pyspark_kafka.options.parse import parse_connection_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The lag of a query, as a number of offsets per partition. `partitions` is not empty.

    `min`, `max` and `avg` correspond to `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and
    `avgOffsetsBehindLatest` in the progress of Spark's own connector.
    """

    partitions: Mapping[TopicPartition, int]

    @property
    def min(self) -> int:
        return min(self.partitions.values())

    @property
    def max(self) -> int:
        return max(self.partitions.values())

    @property
    def avg(self) -> float:
        return sum(self.partitions.values()) / len(self.partitions)


class LatestOffsets:
    """Requests the latest offsets from the cluster.

    `options` are the options of a read, and must contain `kafka.bootstrap.servers`. The constructor
    raises `OptionError` if an option is invalid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._client, self._isolation_level = parse_connection_options(options)

    def of(self, partitions: Collection[TopicPartition]) -> PartitionOffsets:
        """Return the latest offsets of the partitions. Raises subclasses of `KafkaError`."""
        with open_client(self._client) as client:
            queries = dict.fromkeys(partitions, LATEST)
            found = client.list_offsets(queries, self._isolation_level)
        return {partition: offset for partition, offset in found.items() if offset is not None}


def lag(progress: Progress | None, options: Mapping[str, str] | None = None) -> Lag | None:
    """Return the lag of a query, or None if it is unknown.

    `progress` is `query.lastProgress`, `event.progress`, or the JSON of one of them. `options` are
    the options of the read. With `options`, the latest offsets are requested from the cluster.
    Without `options`, no request is sent, and the latest offsets are those at the time when Spark
    planned the micro-batch.

    Returns None if there is no progress yet, or if the query has no Kafka source. Without
    `options`, also returns None after Spark has replayed a micro-batch from an earlier run. Raises
    `TypeError` if `progress` is not a progress report. With `options`, also raises `OptionError`
    and subclasses of `KafkaError`.
    """
    if progress is None:
        return None
    latest = None if options is None else LatestOffsets(options)
    return lag_of(parse_progress(progress).sources, latest)


def lag_of(sources: Iterable[SourceProgress], latest: LatestOffsets | None) -> Lag | None:
    """Return the lag of a query. If two sources read the same partition, the larger lag is used."""
    known = None
    if latest is not None:
        partitions = {partition for source in sources for partition in source.end}
        known = latest.of(partitions) if partitions else {}
    behind: dict[TopicPartition, int] = {}
    for source in sources:
        found = partition_lag(source.end, source.latest if known is None else known)
        for partition in found.keys() & behind.keys():
            found[partition] = max(found[partition], behind[partition])
        behind |= found
    return Lag(partitions=behind) if behind else None
