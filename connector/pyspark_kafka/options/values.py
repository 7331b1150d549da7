"""Parsed options as frozen values: what a query reads or writes, and how.

Purpose: the results of `parse`, pickled to the executors. Invariant: a value that exists is valid;
only the cluster can refuse it. What it must not know: option names, Spark, clients.
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
"""What a client is for."""

EngineOption = Literal["auto", "native", "librdkafka"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """`assign`: exactly these partitions."""

    partitions: frozenset[TopicPartition]

    @property
    def topics(self) -> frozenset[str]:
        """The named topics; each of them must exist."""
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
        """Empty: no topic has to exist."""
        return frozenset()

    def selects(self, topic_partition: TopicPartition) -> bool:
        return self.pattern.search(topic_partition.topic) is not None

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern.pattern}"


Selection = Assign | Subscribe | SubscribePattern
"""The partitions that a query reads (`ConsumerStrategy` in Spark's connector)."""


class Limit(Enum):
    """Limits of a read that are resolved when the query starts."""

    EARLIEST = EARLIEST
    LATEST = LATEST
    COMMITTED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecificOffsets:
    """Offsets by partition; `EARLIEST` and `LATEST` may be among them."""

    offsets: PartitionOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalTimestamp:
    """One timestamp for all partitions (epoch milliseconds)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimestamps:
    """A timestamp for each partition (epoch milliseconds)."""

    timestamps_ms: Mapping[TopicPartition, int]


OffsetLimit = Limit | SpecificOffsets | GlobalTimestamp | PartitionTimestamps
"""Where a read starts or ends (`KafkaOffsetRangeLimit` in Spark's connector)."""


class FilterPushdown(Enum):
    """Which reads filters may narrow: none, those that Spark separates, or those of one scan."""

    OFF = "false"
    ON = "true"
    SINGLE_SCAN = "single-scan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a Kafka client.

    `kafka` holds every `kafka.*` setting without the prefix, in lower case (Spark's options ignore
    case), `bootstrap.servers`, `group.id` and `isolation.level` included. It may hold secrets and
    is not in `repr`. `group_id` is the user's, or a new one that begins with `groupIdPrefix`.
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
    """A batch or streaming read. None means that the option is not set and has no default."""

    client: ClientOptions
    isolation_level: IsolationLevel
    selection: Selection
    starting: OffsetLimit
    ending: OffsetLimit
    latest_without_match: bool
    """`startingOffsetsByTimestampStrategy=latest`: start at latest where no record matches."""
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
    `checkpoint` is `checkpointLocation`, if it is set as an option. `batch_id` is that of a
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
    """A batch or streaming write. `topic` is None where the column `topic` names the topics.

    `exactly_once` is None without `transactionalId`: rows are then written at least once.
    """

    client: ClientOptions
    topic: str | None
    exactly_once: ExactlyOnce | None = None
