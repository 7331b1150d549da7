"""The names of the objects that metadata records have changed. Brokers process only these objects.

Invariant: an object that is not in the delta has not changed. The delta contains names but no
values. Deltas can therefore be combined, and changes can be applied later. Source: Kafka's
`MetadataDelta` and `TopicsDelta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Protocol

from broker_ref.controller.records import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    ConfigResourceType,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid


class _Topic(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Mapping[int, object]: ...


@dataclass(slots=True, kw_only=True)
class MetadataDelta:
    """The names of changed partitions, of topics with changed configs, and of removed topics.

    `partitions` contains created, changed and removed partitions. `removed_topics` also contains
    removed topics that have been recreated.
    """

    partitions: dict[tuple[str, int], None] = field(default_factory=dict)
    configs: dict[str, None] = field(default_factory=dict)
    removed_topics: dict[str, None] = field(default_factory=dict)
    has_changed_brokers: bool = False

    def add(self, record: MetadataRecord, topics: Mapping[Uuid, _Topic]) -> None:
        """Add the changes of a record. `topics` contains the topics before these changes."""
        match record:
            case PartitionRecord() | PartitionChangeRecord():
                self.partitions[topics[record.topic_id].name, record.partition_id] = None
            case ClearElrRecord():
                for each in topics.values():
                    if record.topic in ("", each.name):
                        self.add_partitions(each)
            case ConfigRecord(resource_type=ConfigResourceType.TOPIC):
                self.configs[record.resource_name] = None
            case RemoveTopicRecord():
                topic = topics.get(record.topic_id)
                if topic is not None:
                    self.remove_topic(topic)
            case (
                RegisterBrokerRecord() | BrokerRegistrationChangeRecord() | UnregisterBrokerRecord()
            ):
                self.has_changed_brokers = True

    def remove_topic(self, topic: _Topic) -> None:
        """Add a topic that is removed, with all its partitions."""
        self.removed_topics[topic.name] = None
        self.add_partitions(topic)

    def add_partitions(self, topic: _Topic) -> None:
        """Add all partitions of a topic."""
        self.partitions.update(((topic.name, partition), None) for partition in topic.partitions)
