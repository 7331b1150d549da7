"""Manages cluster metadata: brokers, topics, leaders and leader epochs.

This module builds Metadata requests and merges their responses. A leader with an older leader epoch
does not replace a newer leader, unless the topic was recreated (KIP-320;
`Metadata.updateLatestMetadata` in Kafka's client). Brokers create missing topics only if a request
sets `create`.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.wire.connection import Request, entity_request
from pyspark_kafka.wire.reader import Reader
from pyspark_kafka.wire.transport import Address
from pyspark_kafka.wire.versions import Api

NO_LEADER: Final = -1
_FIRST_RELIABLE_EPOCHS: Final = 9
"""Before Kafka 2.4, leader epochs could be wrong during a partition reassignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    broker_id: int
    address: Address
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.broker_id} at {self.address}"


class LeaderEpoch(NamedTuple):
    """A leader and its leader epoch, reported by a broker that is not the leader (KIP-951)."""

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """The leader of a partition.

    `leader_id` is `NO_LEADER` if there is no leader. `leader_epoch` is -1 if it is unknown.
    """

    partition: int
    leader_id: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic and its partitions. `topic_id` is None if the broker is older than Kafka 2.8."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The brokers and topics of a cluster.

    `failed` contains the error codes of requested topics that are unknown or not authorized.
    `controller_id` is the id of the broker that handles administrative requests such as
    CreateTopics.
    """

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controller_id: int = -1
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    failed: Mapping[str, ErrorCode] = field(default_factory=dict)

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def merged(self, update: ClusterMetadata) -> ClusterMetadata:
        """Return this metadata, updated with the topics and brokers from a newer response."""
        topics = {name: topic for name, topic in self.topics.items() if name not in update.failed}
        for name, topic in update.topics.items():
            topics[name] = _newer(topics.get(name), topic)
        failed = {name: code for name, code in self.failed.items() if name not in update.topics}
        return replace(update, topics=topics, failed={**failed, **update.failed})

    def with_leader(
        self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int
    ) -> ClusterMetadata:
        """Return this metadata with the leader from an error response (KIP-951).

        The leader is ignored if its leader epoch is not newer than the known leader epoch.
        """
        known = self.partition(topic_partition)
        if known is None or leader_epoch <= known.leader_epoch or leader_id not in self.brokers:
            return self
        topic = self.topics[topic_partition.topic]
        moved = replace(known, leader_id=leader_id, leader_epoch=leader_epoch)
        partitions = {**topic.partitions, topic_partition.partition: moved}
        return replace(
            self, topics={**self.topics, topic.name: replace(topic, partitions=partitions)}
        )


def _newer(old: TopicMetadata | None, new: TopicMetadata) -> TopicMetadata:
    """Return `new`, but keep the partitions of `old` that have a newer leader epoch."""
    if old is None or (new.topic_id is not None and new.topic_id != old.topic_id):
        return new
    partitions = {
        index: known
        if (known := old.partitions.get(index)) is not None
        and 0 <= partition.leader_epoch < known.leader_epoch
        else partition
        for index, partition in new.partitions.items()
    }
    return replace(new, partitions=partitions)


def topic_id_text(topic_id: UUID) -> str:
    """Return a topic id in Kafka's base64 encoding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> UUID:
    """Parse a topic id in Kafka's base64 encoding."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def read_endpoint(reader: Reader) -> Broker:
    """Read an element of `node_endpoints` in a Fetch or Produce response (KIP-951)."""
    broker_id = reader.int32("node_id")
    host = reader.string("host", flexible=True)
    port = reader.int32("port")
    rack = reader.nullable_string("rack", flexible=True)
    reader.skip_tagged_fields("a node endpoint")
    return Broker(broker_id=broker_id, address=Address(host, port), rack=rack)


def read_leader(reader: Reader) -> LeaderEpoch | None:
    """Read `current_leader` in a Fetch or Produce response. Return None if there is no leader."""
    leader = LeaderEpoch(reader.int32("leader_id"), reader.int32("leader_epoch"))
    return leader if leader.leader_id >= 0 else None


def metadata_request(
    version: int, topics: Collection[str] | None, *, create: bool = False
) -> Request[Any]:
    """Build a Metadata request for these topics, or for all topics if `topics` is None.

    If `topics` is empty, the response contains only the brokers. With `create`, which only
    producers set, the broker creates missing topics if its config `auto.create.topics.enable` is
    true.
    """
    named = None if topics is None else [{"name": name, "topic_id": None} for name in topics]
    return entity_request(
        Api.METADATA,
        version,
        topics=named,
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def cluster_metadata(response: Any) -> ClusterMetadata:
    """Convert a Metadata response of any version, which is an instance of a kio class."""
    topics = {}
    failed = {}
    for topic in response.topics:
        if topic.name is None:
            continue
        # Kafka returns the partitions of a topic even with LEADER_NOT_AVAILABLE.
        if topic.error_code in (ErrorCode.none, ErrorCode.leader_not_available):
            topics[topic.name] = _topic(topic)
        else:
            failed[topic.name] = topic.error_code
    return ClusterMetadata(
        brokers={
            broker.node_id: Broker(
                broker_id=broker.node_id,
                address=Address(broker.host, broker.port),
                rack=broker.rack,
            )
            for broker in response.brokers
        },
        controller_id=response.controller_id,
        topics=topics,
        failed=failed,
    )


def _topic(topic: Any) -> TopicMetadata:
    has_epochs = topic.__version__ >= _FIRST_RELIABLE_EPOCHS
    return TopicMetadata(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None),
        is_internal=topic.is_internal,
        partitions={
            partition.partition_index: PartitionMetadata(
                partition=partition.partition_index,
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch if has_epochs else -1,
            )
            for partition in topic.partitions
        },
    )
