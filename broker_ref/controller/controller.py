"""The controller: decides on topics, partitions and producer ids, and writes them down.

Purpose: the admin operations of KRaft's ReplicationControlManager and ProducerIdControlManager.
Invariant: what an operation returns has been made durable by the journal; what it refuses has
changed nothing. What it must not know: requests, versions, and the logs of the partitions, which
follow the records through `on_change`.

Replicas are placed on registered brokers in turn, as Kafka's StripedReplicaPlacer does without
racks, so that nothing here depends on there being one broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.journal import Journal
from broker_ref.controller.metadata import ClusterMetadata, Topic
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
from broker_ref.controller.topic_names import check_collision, check_name
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid, random_uuid
from broker_ref.topic_configs import check_topic_configs

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
PRODUCER_ID_BLOCK_SIZE: Final = 1000
METADATA_TOPIC: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to make. Counts of -1 take the broker's default; assignments by partition."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, tuple[int, ...]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """What was made, or would have been."""

    topic_id: Uuid
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]


class Controller:
    """Owner of the journal and the metadata."""

    def __init__(
        self,
        *,
        journal: Journal,
        random_bytes: Callable[[int], bytes],
        num_partitions: int,
        default_replication_factor: int,
    ) -> None:
        self.metadata = ClusterMetadata()
        self.on_change: Callable[[], None] = lambda: None
        self._journal = journal
        self._random_bytes = random_bytes
        self._num_partitions = num_partitions
        self._default_replication_factor = default_replication_factor
        for batch in journal.batches:
            for record in batch:
                self.metadata.apply(record)
        journal.batches.clear()

    def register_broker(self, *, broker_id: int, host: str, port: int, rack: str | None) -> None:
        """Note where a broker can be reached; its epoch rises with every start."""
        known = self.metadata.brokers.get(broker_id)
        self._commit(
            [
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=known.broker_epoch + 1 if known is not None else 0,
                    host=host,
                    port=port,
                    rack=rack,
                )
            ]
        )

    def elect_leaders(self, broker_id: int) -> None:
        """Make a broker that has started the leader of what it leads, in a new leader epoch.

        The new epoch is what lets clients and followers notice that a crash cost the tail.
        """
        changes: list[MetadataRecord] = [
            PartitionChangeRecord(
                topic_id=partition.topic_id,
                partition_id=partition.partition,
                isr=partition.isr,
                leader=broker_id,
                leader_epoch=partition.leader_epoch + 1,
                partition_epoch=partition.partition_epoch + 1,
            )
            for topic in self.metadata.topics.values()
            for partition in topic.partitions.values()
            if partition.leader == broker_id
        ]
        if changes:
            self._commit(changes)

    def check_partition_total(self, topics: Iterable[NewTopic]) -> None:
        """POLICY_VIOLATION where a request asks for more partitions than one may in all."""
        _check_partition_count(
            sum(
                len(new.assignments)
                or (
                    self._num_partitions
                    if new.partition_count == -1
                    else max(new.partition_count, 0)
                )
                for new in topics
            )
        )

    def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> CreatedTopic:
        """Make a topic; ApiError says why it cannot be."""
        self._check_new_name(new.name)
        configs = check_topic_configs(new.configs)
        assignments = self._assignments(new)
        created = CreatedTopic(
            topic_id=random_uuid(self._random_bytes),
            partition_count=len(assignments),
            replication_factor=len(assignments[0]),
            configs=configs,
        )
        if not validate_only:
            self._commit(
                [
                    TopicRecord(name=new.name, topic_id=created.topic_id),
                    *(
                        ConfigRecord(topic=new.name, name=name, value=value)
                        for name, value in configs.items()
                    ),
                    *(
                        _new_partition(created.topic_id, partition, replicas)
                        for partition, replicas in enumerate(assignments)
                    ),
                ]
            )
        return created

    def delete_topic(self, topic: Topic) -> None:
        """Remove a topic and all that is in it."""
        self._commit([RemoveTopicRecord(topic_id=topic.topic_id)])

    def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Grow a topic to `count` partitions; ApiError says why it cannot be."""
        topic = self.metadata.topics.get(name)
        if topic is None:
            raise ApiError(
                ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r} to grow."
            )
        existing = len(topic.partitions)
        if count == existing:
            raise ApiError(
                ErrorCode.invalid_partitions, f"Topic already has {existing} partition(s)."
            )
        if count < existing:
            raise ApiError(
                ErrorCode.invalid_partitions,
                f"The topic {name} currently has {existing} partition(s); {count} would not be "
                "an increase.",
            )
        added = count - existing
        _check_partition_count(added)
        if assignments is None:
            replication_factor = len(topic.partitions[0].replicas)
            placed = self._place(added, replication_factor, first=existing)
        else:
            if len(assignments) != added:
                raise ApiError(
                    ErrorCode.invalid_replica_assignment,
                    f"Attempted to add {added} additional partition(s), but only "
                    f"{len(assignments)} assignment(s) were specified.",
                )
            placed = [self._check_replicas(replicas) for replicas in assignments]
        if not validate_only:
            self._commit(
                [
                    _new_partition(topic.topic_id, existing + index, replicas)
                    for index, replicas in enumerate(placed)
                ]
            )

    def allocate_producer_ids(self, broker_id: int) -> range:
        """A block of producer ids that is never handed out again, not even after a crash."""
        first = self.metadata.next_producer_id
        block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
        self._commit([ProducerIdsRecord(broker_id=broker_id, next_producer_id=block.stop)])
        return block

    def compact_journal(self, *, undeleted: Iterable[Uuid]) -> None:
        """Let the journal hold what the metadata is, not how it came to be.

        Of removed topics it keeps those whose logs are still there, `undeleted`.
        """
        self.metadata.removed_topics.intersection_update(undeleted)
        try:
            self._journal.rewrite(self.metadata.records())
        except StorageError as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from error

    def close(self) -> None:
        """Release the journal."""
        self._journal.close()

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        """Write records, take them in, and let the logs follow; KAFKA_STORAGE_ERROR if not."""
        try:
            self._journal.append(records)
        except StorageError as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from error
        for record in records:
            self.metadata.apply(record)
        self.on_change()

    def _check_new_name(self, name: str) -> None:
        check_name(name)
        if name == METADATA_TOPIC:
            raise ApiError(
                ErrorCode.invalid_request,
                f"Creation of internal topic {METADATA_TOPIC} is prohibited.",
            )
        if name in self.metadata.topics:
            raise ApiError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        check_collision(name, self.metadata.topics)

    def _assignments(self, new: NewTopic) -> list[tuple[int, ...]]:
        """The replicas of each partition of a new topic, in order of partition."""
        if new.assignments:
            return self._manual_assignments(new)
        if new.partition_count == 0 or new.partition_count < -1:
            raise ApiError(
                ErrorCode.invalid_partitions,
                "Number of partitions was set to an invalid non-positive value.",
            )
        if new.replication_factor == 0 or new.replication_factor < -1:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        count = self._num_partitions if new.partition_count == -1 else new.partition_count
        _check_partition_count(count)
        factor = new.replication_factor
        if factor == -1:
            factor = self._default_replication_factor
        return self._place(count, factor, first=0)

    def _manual_assignments(self, new: NewTopic) -> list[tuple[int, ...]]:
        for what, value in (
            ("replication factor", new.replication_factor),
            ("numPartitions", new.partition_count),
        ):
            if value != -1:
                raise ApiError(
                    ErrorCode.invalid_request,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        _check_partition_count(len(new.assignments))
        by_partition: dict[int, tuple[int, ...]] = {}
        for partition, replicas in new.assignments:
            if partition in by_partition:
                raise ApiError(
                    ErrorCode.invalid_replica_assignment,
                    f"Found multiple manual partition assignments for partition {partition}",
                )
            by_partition[partition] = self._check_replicas(replicas)
        if sorted(by_partition) != list(range(len(by_partition))):
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                "partitions should be a consecutive 0-based integer sequence",
            )
        if len({len(replicas) for replicas in by_partition.values()}) > 1:
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                "The manual partition assignment has partitions of different replication factors.",
            )
        return [by_partition[partition] for partition in range(len(by_partition))]

    def _check_replicas(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        if not replicas:
            reason = "an empty replica list."
        elif repeated := [replica for replica in replicas if replicas.count(replica) > 1]:
            reason = f"the broker {repeated[0]} more than once."
        elif missing := [replica for replica in replicas if replica not in self.metadata.brokers]:
            reason = f"broker {missing[0]}, but no such broker is registered."
        else:
            return replicas
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes {reason}",
        )

    def _place(self, count: int, replication_factor: int, *, first: int) -> list[tuple[int, ...]]:
        brokers = sorted(self.metadata.brokers)
        if replication_factor > len(brokers):
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {replication_factor} time(s): only "
                f"{len(brokers)} broker(s) are registered.",
            )
        return [
            tuple(brokers[(partition + i) % len(brokers)] for i in range(replication_factor))
            for partition in range(first, first + count)
        ]


def _check_partition_count(count: int) -> None:
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.policy_violation, "Excessively large number of partitions per request."
        )


def _new_partition(topic_id: Uuid, partition: int, replicas: tuple[int, ...]) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition_id=partition,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
    )
