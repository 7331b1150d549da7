"""What the metadata records add up to: the cluster as it is now.

Purpose: the one view of brokers, topics, partitions and configs that every handler reads.
Invariant: changed by `apply` alone, so that replaying the journal gives the same view. What it
must not know: how records are kept, or who decided on them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final

from broker_ref.controller.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from broker_ref.protocol.identifiers import Uuid

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where groups keep their committed offsets."""

INTERNAL_TOPICS: Final = (OFFSETS_TOPIC, "__transaction_state")
"""Topics that only brokers write, marked as internal to clients."""

_NO_BROKER: Final = -1
"""Kafka's snapshots do not tell either to which broker the last producer ids went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A registered broker and where clients reach it."""

    broker_id: int
    broker_epoch: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Replicas, in-sync replicas and leader of one partition, as ids of brokers."""

    topic_id: Uuid
    topic: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic, its partitions in order, and the configs that it has of its own."""

    name: str
    topic_id: Uuid
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether clients are to leave it alone."""
        return self.name in INTERNAL_TOPICS


class ClusterMetadata:
    """Brokers, topics and the next producer id.

    `removed_topics` are the ids of topics that are gone, as long as logs of theirs may be left.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[Uuid, Topic] = {}
        self.removed_topics: set[Uuid] = set()
        self.next_producer_id = 0

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """One partition, or None where there is none."""
        found = self.topics.get(topic)
        return found.partitions.get(partition) if found is not None else None

    def apply(self, record: MetadataRecord) -> None:
        """Take one record in."""
        match record:
            case RegisterBrokerRecord():
                self.brokers[record.broker_id] = Broker(
                    broker_id=record.broker_id,
                    broker_epoch=record.broker_epoch,
                    host=record.host,
                    port=record.port,
                    rack=record.rack,
                )
            case TopicRecord():
                topic = Topic(name=record.name, topic_id=record.topic_id)
                self.topics[record.name] = topic
                self.topics_by_id[record.topic_id] = topic
            case PartitionRecord():
                self._apply_partition(record)
            case PartitionChangeRecord():
                self._apply_partition_change(record)
            case ConfigRecord():
                self._apply_config(record)
            case RemoveTopicRecord():
                self.removed_topics.add(record.topic_id)
                # A journal that was rewritten knows of a removed topic by its id alone.
                removed = self.topics_by_id.pop(record.topic_id, None)
                if removed is not None:
                    del self.topics[removed.name]
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id

    def records(self) -> list[MetadataRecord]:
        """The records that add up to this, and no more."""
        records: list[MetadataRecord] = [
            RegisterBrokerRecord(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
            )
            for broker in self.brokers.values()
        ]
        records += [RemoveTopicRecord(topic_id=topic_id) for topic_id in self.removed_topics]
        for topic in self.topics.values():
            records += _topic_records(topic)
        records.append(
            ProducerIdsRecord(broker_id=_NO_BROKER, next_producer_id=self.next_producer_id)
        )
        return records

    def _apply_partition(self, record: PartitionRecord) -> None:
        topic = self.topics_by_id[record.topic_id]
        topic.partitions[record.partition_id] = PartitionMetadata(
            topic_id=record.topic_id,
            topic=topic.name,
            partition=record.partition_id,
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
        )

    def _apply_partition_change(self, record: PartitionChangeRecord) -> None:
        topic = self.topics_by_id[record.topic_id]
        topic.partitions[record.partition_id] = dataclasses.replace(
            topic.partitions[record.partition_id],
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
        )

    def _apply_config(self, record: ConfigRecord) -> None:
        configs = self.topics[record.topic].configs
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value


def _topic_records(topic: Topic) -> list[MetadataRecord]:
    return [
        TopicRecord(name=topic.name, topic_id=topic.topic_id),
        *(
            ConfigRecord(topic=topic.name, name=name, value=value)
            for name, value in topic.configs.items()
        ),
        *(
            PartitionRecord(
                topic_id=partition.topic_id,
                partition_id=partition.partition,
                replicas=partition.replicas,
                isr=partition.isr,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
            )
            for partition in topic.partitions.values()
        ),
    ]
