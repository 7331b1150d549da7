"""Parsed options as frozen values.

Purpose: the results of `parse`, which are pickled to the executors. Invariant: values are valid, as
far as that can be checked without the cluster. Must not know: option names, Spark, clients.
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
"""The purpose of a client."""

EngineOption = Literal["auto", "native", "librdkafka"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """`assign`: these partitions."""

    partitions: frozenset[TopicPartition]

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the partitions; each of them must exist."""
        return frozenset(partition.topic for partition in self.partitions)

    def selects(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.partitions

    def __str__(self) -> str:
        return f"assign={format_partitions(self.partitions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """`subscribe`: every partition of these topics."""

    topics: frozenset[str]

    def selects(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic in self.topics

    def __str__(self) -> str:
        return f"subscribe={','.join(sorted(self.topics))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """`subscribePattern`: every topic whose name contains a match, as in Spark's connector."""

    pattern: re.Pattern[str]

    @property
    def topics(self) -> frozenset[str]:
        """Empty, because no topic has to exist."""
        return frozenset()

    def selects(self, topic_partition: TopicPartition) -> bool:
        return self.pattern.search(topic_partition.topic) is not None

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern.pattern}"


Selection = Assign | Subscribe | SubscribePattern
"""The partitions that a query reads (`ConsumerStrategy` in Spark's connector)."""


class Limit(Enum):
    """A limit of a read that is resolved when the query starts."""

    EARLIEST = EARLIEST
    LATEST = LATEST
    COMMITTED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecificOffsets:
    """Offsets by partition, including `EARLIEST` and `LATEST`."""

    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalTimestamp:
    """One timestamp (epoch milliseconds) for all partitions."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimestamps:
    """A timestamp (epoch milliseconds) for each partition."""

    timestamps_ms: Mapping[TopicPartition, int]


OffsetLimit = Limit | SpecificOffsets | GlobalTimestamp | PartitionTimestamps
"""The start or end of a read (`KafkaOffsetRangeLimit` in Spark's connector)."""


class FilterPushdown(Enum):
    """`filterPushdown`: off, on if Spark keeps filters of scans separate, or on for one scan."""

    OFF = "false"
    ON = "true"
    SINGLE_SCAN = "single-scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a Kafka client.

    `kafka` contains every `kafka.*` setting without the prefix, in lower case (the case of Spark's
    options is not significant), including `bootstrap.servers`, `group.id` and `isolation.level`. It
    may contain secrets, and is not part of `repr`. `group_id` is the user's, or a generated one
    with the prefix `groupIdPrefix`.
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
    """A batch or streaming read. None: the option is not set and has no default."""

    client: ClientOptions
    isolation_level: IsolationLevel
    selection: Selection
    starting: OffsetLimit
    ending: OffsetLimit
    latest_without_match: bool
    """`startingOffsetsByTimestampStrategy=latest`: start at latest if no record matches."""
    fail_on_data_loss: bool
    include_headers: bool
    filter_pushdown: FilterPushdown
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    commit_offsets: bool
    """Commit to `client.group_id` after each completed micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactlyOnce:
    """The options of a sink with `transactionalId`.

    `group_id` is the group to which `commitOffsets` commits the source offsets of a micro-batch.
    `checkpoint` is `checkpointLocation`, if it is set as an option. `batch_id` is the id of a
    repeatable batch job.
    """

    transactional_id: str
    transaction_timeout_ms: int
    commit_topic: str
    group_id: str | None
    checkpoint: str | None
    batch_id: int | None
    fail_on_replay_mismatch: bool
    two_phase_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """A batch or streaming write. `topic` is None if the column `topic` contains the topics.

    `exactly_once` is None without `transactionalId`; rows are then written at least once.
    """

    client: ClientOptions
    topic: str | None
    exactly_once: ExactlyOnce | None = None
