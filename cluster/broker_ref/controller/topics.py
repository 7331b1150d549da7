"""Validates new topics and partitions, and creates their records.

This module corresponds to the part of Kafka's `ReplicationControlManager` that handles
CreateTopics, CreatePartitions and DeleteTopics. Invariants: an invalid request raises ApiError and
changes nothing. The ISR of a new partition consists of its active replicas, and the first of them
is the leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata, Topic
from broker_ref.controller.metadata_batches import METADATA_TOPIC
from broker_ref.controller.records import (
    ConfigRecord,
    ConfigResourceType,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from broker_ref.controller.replica_placement import place, random_below
from broker_ref.controller.topic_names import check_name, metric_name
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid, random_uuid
from broker_ref.topic_configs import check_topic_configs

PARTITIONS_PER_REQUEST_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create.

    A partition count or replication factor of -1 selects the controller's default. `assignments`
    contains pairs of partition index and replicas.
    """

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, tuple[int, ...]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A created topic, or a topic that passed the checks of a `validate_only` request."""

    topic_id: Uuid
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]


class TopicPlanner:
    """Creates the records of new topics and partitions, based on `metadata`."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        *,
        config: BrokerConfig,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._topic_defaults = config.topic_config_defaults()
        self._random_bytes = random_bytes
        self._draw = random_below(random_bytes)

    def check_partition_total(self, topics: Iterable[NewTopic]) -> None:
        """Raise POLICY_VIOLATION if the topics of a request have too many partitions in total."""
        default = self._config.num_partitions
        _check_partition_count(
            sum(
                len(new.assignments)
                or (default if new.partition_count == -1 else max(new.partition_count, 0))
                for new in topics
            )
        )

    def create(
        self, new: NewTopic, planned: dict[str, str]
    ) -> tuple[CreatedTopic, list[MetadataRecord]]:
        """Return the new topic and its records, or raise ApiError if the request is invalid.

        `planned` contains the names of the topics that are created in the same commit, keyed by the
        result of `metric_name`. The new topic is added to `planned`.
        """
        self._check_new_name(new.name, planned)
        configs = check_topic_configs(new.configs, defaults=self._topic_defaults)
        assignments = self._assignments(new)
        # Kafka uses different error codes for manual assignments and for its own placement.
        error_code = (
            ErrorCode.invalid_replica_assignment
            if new.assignments
            else ErrorCode.invalid_replication_factor
        )
        created = CreatedTopic(
            topic_id=random_uuid(self._random_bytes),
            partition_count=len(assignments),
            replication_factor=len(assignments[0]),
            configs=configs,
        )
        records: list[MetadataRecord] = [
            TopicRecord(name=new.name, topic_id=created.topic_id),
            *(
                ConfigRecord(
                    resource_type=ConfigResourceType.TOPIC,
                    resource_name=new.name,
                    name=name,
                    value=value,
                )
                for name, value in configs.items()
            ),
            *(
                self._new_partition(created.topic_id, partition, replicas, error_code)
                for partition, replicas in enumerate(assignments)
            ),
        ]
        planned[metric_name(new.name)] = new.name
        return created, records

    def create_partitions(
        self, name: str, count: int, assignments: Sequence[tuple[int, ...]] | None
    ) -> list[MetadataRecord]:
        """Return the records that increase the number of partitions of a topic to `count`.

        Raises: ApiError if the request is invalid.
        """
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
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
        placed, error_code = self._added_assignments(topic, added, assignments)
        return [
            self._new_partition(topic.topic_id, existing + index, replicas, error_code)
            for index, replicas in enumerate(placed)
        ]

    def check_replicas(
        self, replicas: tuple[int, ...], *, replication_factor: int | None = None
    ) -> tuple[int, ...]:
        """Return the replicas, or raise INVALID_REPLICA_ASSIGNMENT if they are invalid."""
        repeated = [replica for replica, count in Counter(replicas).items() if count > 1]
        missing = [replica for replica in replicas if replica not in self._metadata.brokers]
        if not replicas:
            reason = "an empty replica list."
        elif missing:
            reason = f"broker {min(missing)}, but no such broker is registered."
        elif repeated:
            reason = f"the broker {min(repeated)} more than once."
        elif replication_factor is not None and len(replicas) != replication_factor:
            reason = (
                f"a partition with {len(replicas)} replica(s), but this is not consistent with "
                f"previous partitions, which have {replication_factor} replica(s)."
            )
        else:
            return replicas
        raise ApiError(
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes {reason}",
        )

    def _added_assignments(
        self, topic: Topic, added: int, assignments: Sequence[tuple[int, ...]] | None
    ) -> tuple[list[tuple[int, ...]], ErrorCode]:
        replication_factor = len(topic.partitions[0].replicas)
        if assignments is None:
            placed = self._place(added, replication_factor)
            return placed, ErrorCode.invalid_replication_factor
        if len(assignments) != added:
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {added} additional partition(s), but only "
                f"{len(assignments)} assignment(s) were specified.",
            )
        checked = [
            self.check_replicas(replicas, replication_factor=replication_factor)
            for replicas in assignments
        ]
        return checked, ErrorCode.invalid_replica_assignment

    def _check_new_name(self, name: str, planned: Mapping[str, str]) -> None:
        check_name(name)
        if name == METADATA_TOPIC:
            raise ApiError(
                ErrorCode.invalid_request,
                f"Creation of internal topic {METADATA_TOPIC} is prohibited.",
            )
        if name in self._metadata.topics:
            raise ApiError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        other = self._metadata.colliding_topic(name) or planned.get(metric_name(name))
        if other is not None:
            raise ApiError(
                ErrorCode.invalid_topic_exception,
                f"Topic '{name}' collides with existing topic: {other}",
            )

    def _assignments(self, new: NewTopic) -> list[tuple[int, ...]]:
        """Return the replicas of each partition of a new topic, in partition order."""
        if new.assignments:
            return self._manual_assignments(new)
        if new.replication_factor == 0 or new.replication_factor < -1:
            raise ApiError(
                ErrorCode.invalid_replication_factor,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if new.partition_count == 0 or new.partition_count < -1:
            raise ApiError(
                ErrorCode.invalid_partitions,
                "Number of partitions was set to an invalid non-positive value.",
            )
        count = self._config.num_partitions if new.partition_count == -1 else new.partition_count
        _check_partition_count(count)
        factor = new.replication_factor
        if factor == -1:
            factor = self._config.default_replication_factor
        return self._place(count, factor)

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
        replication_factor = None
        for partition, replicas in new.assignments:
            if partition in by_partition:
                raise ApiError(
                    ErrorCode.invalid_replica_assignment,
                    f"Found multiple manual partition assignments for partition {partition}",
                )
            by_partition[partition] = self.check_replicas(
                replicas, replication_factor=replication_factor
            )
            replication_factor = len(replicas)
        if sorted(by_partition) != list(range(len(by_partition))):
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                "partitions should be a consecutive 0-based integer sequence",
            )
        return [by_partition[partition] for partition in range(len(by_partition))]

    def _place(self, count: int, replication_factor: int) -> list[tuple[int, ...]]:
        return place(
            self._metadata.brokers.values(),
            count=count,
            replication_factor=replication_factor,
            draw=self._draw,
        )

    def _new_partition(
        self, topic_id: Uuid, partition: int, replicas: tuple[int, ...], error_code: ErrorCode
    ) -> PartitionRecord:
        isr = tuple(replica for replica in replicas if self._metadata.is_active(replica))
        if not isr:
            raise ApiError(
                error_code,
                f"Partition {partition} cannot be created, because all brokers in its replica "
                f"assignment {replicas} are fenced or in controlled shutdown.",
            )
        return PartitionRecord(
            topic_id=topic_id,
            partition_id=partition,
            replicas=replicas,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
        )


def _check_partition_count(count: int) -> None:
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise ApiError(
            ErrorCode.policy_violation, "Excessively large number of partitions per request."
        )
