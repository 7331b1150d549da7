"""What the metadata records add up to: the cluster as it is now.

Purpose: the one view of brokers, topics, partitions and configs that every handler reads; the
controller's own, and on each broker one that trails it. Invariant: changed by `apply_commit` and
`replace` alone, so that taking in the same records gives the same view; every record has an
offset, its place in the history of the cluster. What it must not know: how records are kept, or
who decided on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from broker_ref.controller.features import TRANSACTION_VERSION
from broker_ref.controller.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from broker_ref.controller.topic_names import metric_name
from broker_ref.protocol.identifiers import Uuid

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Where groups keep their committed offsets."""

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
"""Where transaction coordinators keep what they know of each transactional id."""

INTERNAL_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
"""Topics that only brokers write, marked as internal to clients."""

NO_LEADER: Final = -1

RECOVERED: Final = 0
RECOVERING: Final = 1
"""Leader recovery states (KIP-704): RECOVERING after an election of a replica not in sync."""

REMOVED_TOPICS_MAX: Final = 10_000

_NO_BROKER: Final = -1
"""Kafka's snapshots do not tell either to which broker the last producer ids went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A registered broker and where clients reach it.

    A fenced broker leads nothing and is in no ISR but one that would be empty without it.
    """

    broker_id: int
    incarnation_id: Uuid
    broker_epoch: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = True
    in_controlled_shutdown: bool = False

    @property
    def is_active(self) -> bool:
        """Whether it may lead and join an ISR."""
        return not self.is_fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """Replicas, in-sync replicas and leader of one partition, as ids of brokers; -1 is no leader.

    `replicas` has the adding and the removing ones as well while a reassignment is under way.
    """

    topic_id: Uuid
    topic: str
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment of replicas is under way."""
        return bool(self.adding_replicas or self.removing_replicas)

    def merge(self, change: PartitionChangeRecord) -> PartitionMetadata:
        """The partition after a change (Kafka's PartitionRegistration.merge)."""
        values = {
            name: value for name in _CHANGEABLE if (value := getattr(change, name)) is not None
        }
        return dataclasses.replace(
            self,
            leader_epoch=self.leader_epoch + ("leader" in values),
            partition_epoch=self.partition_epoch + 1,
            **values,
        )


_CHANGEABLE: Final = (
    "isr",
    "leader",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "leader_recovery_state",
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Records that take effect together, the first of them at `base_offset`."""

    base_offset: int
    records: tuple[MetadataRecord, ...]

    @property
    def end_offset(self) -> int:
        """One past the last record's offset."""
        return self.base_offset + len(self.records)


class ClusterMetadata:
    """Brokers, topics, finalized features and the next producer id.

    `end_offset` is one past the offset of the last record taken in. `removed_topics` are the ids
    of the last `REMOVED_TOPICS_MAX` topics that are gone, of which logs may be left.
    `finalized_features` has the version of each feature that is finalized, and no 0.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[Uuid, Topic] = {}
        self._by_metric_name: dict[str, str] = {}
        self.removed_topics: dict[Uuid, None] = {}
        self.next_producer_id = 0
        self.end_offset = 0
        self._features: dict[str, int] = {}
        self.finalized_features: Mapping[str, int] = MappingProxyType(self._features)

    @property
    def transaction_version(self) -> int:
        """The version of `transaction.version` that is finalized, 0 where none is (KIP-890)."""
        return self.finalized_features.get(TRANSACTION_VERSION, 0)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """One partition, or None where there is none."""
        found = self.topics.get(topic)
        return found.partitions.get(partition) if found is not None else None

    def partitions(self) -> Iterator[PartitionMetadata]:
        """Every partition of every topic."""
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def colliding_topic(self, name: str) -> str | None:
        """The topic that metrics could not tell from one of this name, if there is one."""
        return self._by_metric_name.get(metric_name(name))

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker is registered, unfenced and not shutting down."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def apply_commit(self, commit: Commit) -> None:
        """Take the next records in; ValueError where others are missing before them."""
        if commit.base_offset != self.end_offset:
            raise ValueError(
                f"metadata records from offset {commit.base_offset} cannot follow those up to "
                f"{self.end_offset}"
            )
        self._apply(commit.records)
        self.end_offset = commit.end_offset

    def replace(self, records: Iterable[MetadataRecord], end_offset: int) -> None:
        """Be what a snapshot says instead, which adds up the records below `end_offset`."""
        self.brokers.clear()
        self.topics.clear()
        self.topics_by_id.clear()
        self._by_metric_name.clear()
        self.removed_topics.clear()
        self.next_producer_id = 0
        self._features.clear()
        self._apply(records)
        self.end_offset = end_offset

    def records(self) -> list[MetadataRecord]:
        """The records that add up to this, and no more."""
        records: list[MetadataRecord] = [
            FeatureLevelRecord(name=name, feature_level=version)
            for name, version in self._features.items()
        ]
        records += [
            RegisterBrokerRecord(
                broker_id=broker.broker_id,
                incarnation_id=broker.incarnation_id,
                broker_epoch=broker.broker_epoch,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                fenced=broker.is_fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown,
            )
            for broker in self.brokers.values()
        ]
        records += [RemoveTopicRecord(topic_id=topic_id) for topic_id in self.removed_topics]
        for topic in self.topics.values():
            records += _topic_records(topic)
        records.append(
            ProducerIdsRecord(
                broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=self.next_producer_id
            )
        )
        return records

    def _apply(self, records: Iterable[MetadataRecord]) -> None:
        for record in records:
            match record:
                case RegisterBrokerRecord():
                    self._apply_registration(record)
                case BrokerRegistrationChangeRecord():
                    self._apply_registration_change(record)
                case UnregisterBrokerRecord():
                    del self.brokers[record.broker_id]
                case TopicRecord():
                    topic = Topic(name=record.name, topic_id=record.topic_id)
                    self.topics[record.name] = topic
                    self.topics_by_id[record.topic_id] = topic
                    self._by_metric_name[metric_name(record.name)] = record.name
                case PartitionRecord():
                    self._apply_partition(record)
                case PartitionChangeRecord():
                    partitions = self.topics_by_id[record.topic_id].partitions
                    partition = partitions[record.partition_id]
                    partitions[record.partition_id] = partition.merge(record)
                case ConfigRecord():
                    self._apply_config(record)
                case RemoveTopicRecord():
                    self._apply_removal(record)
                case ProducerIdsRecord():
                    self.next_producer_id = record.next_producer_id
                case FeatureLevelRecord():
                    self._apply_feature(record)

    def _apply_registration(self, record: RegisterBrokerRecord) -> None:
        self.brokers[record.broker_id] = Broker(
            broker_id=record.broker_id,
            incarnation_id=record.incarnation_id,
            broker_epoch=record.broker_epoch,
            host=record.host,
            port=record.port,
            rack=record.rack,
            is_fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
        )

    def _apply_registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self.brokers[record.broker_id]
        if record.fenced is not None:
            broker = dataclasses.replace(broker, is_fenced=record.fenced)
        if record.in_controlled_shutdown is not None:
            broker = dataclasses.replace(
                broker, in_controlled_shutdown=record.in_controlled_shutdown
            )
        self.brokers[record.broker_id] = broker

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
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            leader_recovery_state=record.leader_recovery_state,
        )

    def _apply_config(self, record: ConfigRecord) -> None:
        configs = self.topics[record.topic].configs
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _apply_feature(self, record: FeatureLevelRecord) -> None:
        if record.feature_level:
            self._features[record.name] = record.feature_level
        else:
            self._features.pop(record.name, None)

    def _apply_removal(self, record: RemoveTopicRecord) -> None:
        self.removed_topics[record.topic_id] = None
        if len(self.removed_topics) > REMOVED_TOPICS_MAX:
            del self.removed_topics[next(iter(self.removed_topics))]
        # A snapshot knows of a removed topic by its id alone.
        removed = self.topics_by_id.pop(record.topic_id, None)
        if removed is not None:
            del self.topics[removed.name]
            self._by_metric_name.pop(metric_name(removed.name), None)


def _topic_records(topic: Topic) -> Sequence[MetadataRecord]:
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
                adding_replicas=partition.adding_replicas,
                removing_replicas=partition.removing_replicas,
                leader_recovery_state=partition.leader_recovery_state,
            )
            for partition in topic.partitions.values()
        ),
    ]
