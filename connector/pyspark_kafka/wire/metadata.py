"""What a cluster says of itself: brokers, topics by name and id, leaders and their epochs.

Purpose: the Metadata request, and one picture of the cluster out of many answers. Invariant:
knowledge never goes back: a leader of an older epoch does not replace a newer one's, unless the
topic was made anew (KIP-320, as `Metadata.updateLatestMetadata` of Kafka's client). RetryLoop creates
no topic, unless it says so. What it must not know: connections, time.
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
"""Before Kafka 2.4 brokers did not pass epochs on accurately while partitions were reassigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    broker_id: int
    address: Address
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.broker_id} at {self.address}"


class LeaderEpoch(NamedTuple):
    """Who leads a partition since which epoch, in the eyes of a broker that does not (KIP-951)."""

    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """`leader_id` is `NO_LEADER` where there is none; `leader_epoch` -1 where it is unknown."""

    partition: int
    leader_id: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """`topic_id` is None where the broker is too old to have topic ids."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """`failed` are topics that were asked for and are not there, or not for us, with the code.

    `controller_id` is the broker to ask for changes of the cluster.
    """

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    controller_id: int = -1
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    failed: Mapping[str, ErrorCode] = field(default_factory=dict)

    def partition(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def merged(self, news: ClusterMetadata) -> ClusterMetadata:
        """This and what was just learnt of some topics; the brokers are those of the news."""
        topics = {name: topic for name, topic in self.topics.items() if name not in news.failed}
        for name, topic in news.topics.items():
            topics[name] = _newer(topics.get(name), topic)
        failed = {name: code for name, code in self.failed.items() if name not in news.topics}
        return replace(news, topics=topics, failed={**failed, **news.failed})

    def with_leader(
        self, topic_partition: TopicPartition, leader_id: int, leader_epoch: int
    ) -> ClusterMetadata:
        """What a broker said of a partition's leader while refusing a request (KIP-951)."""
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
    """`new`, but for partitions of which `old` knows a later epoch."""
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
    """A topic's id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> UUID:
    """The id that Kafka prints so."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def read_endpoint(reader: Reader) -> Broker:
    """One of the brokers that a Fetch or Produce response names with new leaders (KIP-951)."""
    broker_id = reader.int32("node_id")
    host = reader.string("host", flexible=True)
    port = reader.int32("port")
    rack = reader.nullable_string("rack", flexible=True)
    reader.skip_tagged_fields("a node endpoint")
    return Broker(broker_id=broker_id, address=Address(host, port), rack=rack)


def read_leader(reader: Reader) -> LeaderEpoch | None:
    """The new leader of a partition that such a response names, if it names one."""
    leader = LeaderEpoch(reader.int32("leader_id"), reader.int32("leader_epoch"))
    return leader if leader.leader_id >= 0 else None


def metadata_request(
    version: int, topics: Collection[str] | None, *, create: bool = False
) -> Request[Any]:
    """Metadata of these topics; of all there are for None, of the brokers alone for none.

    With `create` a broker may create what does not exist, if its `auto.create.topics.enable` is
    true. Only who writes asks so.
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
    """A Metadata response (kio's entity of any version) as one picture."""
    topics = {}
    failed = {}
    for topic in response.topics:
        if topic.name is None:
            continue
        # Kafka fills in the partitions of a topic whose leaders it does not know.
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
