"""Parsed options as immutable values.

`parse` returns these values, and Spark pickles them and sends them to the executors. The values are
already validated, except where a check requires a connection to the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel, PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition, format_partitions

Role = Literal["consumer", "producer"]
"""The role of a client."""

EngineOption = Literal["auto", "native", "librdkafka"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """A selection of partitions (the `assign` option)."""

    partitions: frozenset[TopicPartition]

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the partitions. Each topic must exist."""
        return frozenset(partition.topic for partition in self.partitions)

    def selects(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.partitions

    def __str__(self) -> str:
        return f"assign={format_partitions(self.partitions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """A selection of all partitions of some topics (the `subscribe` option)."""

    topics: frozenset[str]

    def selects(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic in self.topics

    def __str__(self) -> str:
        return f"subscribe={','.join(sorted(self.topics))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """A selection of all topics whose names match a pattern (option `subscribePattern`)."""

    pattern: re.Pattern[str]

    @property
    def topics(self) -> frozenset[str]:
        """The topics that must exist: always none, because the pattern may match no topic."""
        return frozenset()

    def selects(self, topic_partition: TopicPartition) -> bool:
        return self.pattern.search(topic_partition.topic) is not None

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern.pattern}"


Selection = Assign | Subscribe | SubscribePattern
"""The partitions that a query reads (`ConsumerStrategy` in Spark's connector)."""


class OffsetLimitName(Enum):
    """A start or end position that is resolved to offsets when the query starts."""

    EARLIEST = EARLIEST
    LATEST = LATEST
    COMMITTED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecificOffsets:
    """The offset for each partition. An offset may be `EARLIEST` or `LATEST`."""

    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalTimestamp:
    """One timestamp for all partitions, in milliseconds since the epoch."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimestamps:
    """A timestamp for each partition, in milliseconds since the epoch."""

    timestamps_ms: Mapping[TopicPartition, int]


OffsetLimit = OffsetLimitName | SpecificOffsets | GlobalTimestamp | PartitionTimestamps
"""The start or end of a read (`KafkaOffsetRangeLimit` in Spark's connector)."""


class FilterPushdown(Enum):
    """The values of the `filterPushdown` option.

    `ON` requires a Spark version in which several scans of a DataFrame do not share filters.
    `SINGLE_SCAN` requires that each DataFrame that `load()` returns is scanned only once.
    """

    OFF = "false"
    ON = "true"
    SINGLE_SCAN = "single-scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a Kafka client.

    `kafka` contains all `kafka.*` settings, including `bootstrap.servers`, `group.id` and
    `isolation.level`. The names are in lower case and without the prefix. The values may contain
    secrets, so `kafka` is not part of `repr`. `group_id` is the value of `kafka.group.id`, or a
    generated id with the prefix in `groupIdPrefix`.
    """

    bootstrap_servers: str
    kafka: Mapping[str, str] = field(repr=False)
    group_id: str
    engine: EngineOption = "auto"
    poll_timeout_ms: int = 120_000
    fetch_offset_num_retries: int = 3
    fetch_offset_retry_interval_ms: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a batch or streaming read. None means that an option is not set."""

    client: ClientOptions
    isolation_level: IsolationLevel
    selection: Selection
    starting: OffsetLimit
    ending: OffsetLimit
    latest_without_match: bool
    """Whether a partition without a matching record starts at its latest offset.

    Set by `startingOffsetsByTimestampStrategy=latest`.
    """
    fail_on_data_loss: bool
    include_headers: bool
    filter_pushdown: FilterPushdown
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    commit_offsets: bool
    """Whether offsets are committed to `client.group_id` after each completed micro-batch."""

    @property
    def limiting_option(self) -> str | None:
        """The option that limits the size of micro-batches, or None."""
        if self.max_offsets_per_trigger is not None:
            return "maxOffsetsPerTrigger"
        return None if self.max_bytes_per_trigger is None else "maxBytesPerTrigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """The options of a sink with `transactionalId`.

    `group_id` is the consumer group for which the sink commits the source offsets of a micro-batch,
    or None if `commitOffsets` is not set. `checkpoint` is the value of `checkpointLocation`.
    `batch_id` is the value of `batchId`, which identifies a batch job that can be repeated.
    """

    transactional_id: str
    transaction_timeout_ms: int
    commit_topic: str
    group_id: str | None
    checkpoint: str | None
    batch_id: int | None
    fail_on_replay_mismatch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a batch or streaming write.

    `topic` is None if each row specifies its topic in the `topic` column. If `transactionalId` is
    not set, `exactly_once` is None, and rows are written at least once.
    """

    client: ClientOptions
    topic: str | None
    exactly_once: ExactlyOnce | None = None
