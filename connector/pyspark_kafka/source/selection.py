"""Which partitions a query reads: `assign`, `subscribe` or `subscribePattern`.

Purpose: the three ways as values that can say what they select and look it up (ConsumerStrategy
in Spark's connector). What it must not know: offsets, Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka.client.base import KafkaReads, TopicDescription, TopicPartition
from pyspark_kafka.source.offsets import listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    partitions: frozenset[TopicPartition]

    @property
    def topics(self) -> frozenset[str]:
        """The topics named; the query needs each of them."""
        return frozenset(partition.topic for partition in self.partitions)

    def selects(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.partitions

    def describe(self, client: KafkaReads) -> Mapping[str, TopicDescription]:
        return client.describe_topics(self.topics)

    def __str__(self) -> str:
        return f"assign={listing(self.partitions)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    topics: frozenset[str]

    def selects(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic in self.topics

    def describe(self, client: KafkaReads) -> Mapping[str, TopicDescription]:
        return client.describe_topics(self.topics)

    def __str__(self) -> str:
        return f"subscribe={','.join(sorted(self.topics))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """`pattern` is unanchored, as with Spark; `list_topics` leaves internal topics out."""

    pattern: re.Pattern[str]

    @property
    def topics(self) -> frozenset[str]:
        """None is needed: a topic that matches may come and go."""
        return frozenset()

    def selects(self, topic_partition: TopicPartition) -> bool:
        return self.pattern.search(topic_partition.topic) is not None

    def describe(self, client: KafkaReads) -> Mapping[str, TopicDescription]:
        matching = [name for name in client.list_topics() if self.pattern.search(name)]
        return client.describe_topics(matching) if matching else {}

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern.pattern}"


Selection = Assign | Subscribe | SubscribePattern
