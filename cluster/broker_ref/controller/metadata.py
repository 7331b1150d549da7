"""The cluster metadata that results from the metadata records.

All handlers read brokers, topics, partitions and configs from this metadata. The controller has its
own instance, and each broker has a copy that it keeps up to date. Invariants: only `apply_commit`
and `replace` change the metadata. The same records always result in the same metadata. Each record
has an offset in the metadata log. Source: Kafka's `MetadataImage`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Final, TypeVar

from broker_ref.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, TRANSACTION_VERSION
from broker_ref.controller.metadata_delta import MetadataDelta
from broker_ref.controller.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    ConfigResourceType,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from broker_ref.controller.topic_names import metric_name
from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.acls import Acl, AclCache
from broker_ref.security.listeners import Endpoint
from broker_ref.security.scram import ScramCredential, ScramMechanism

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which groups store committed offsets."""

TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
"""The topic in which transaction coordinators store the state of transactional ids."""

INTERNAL_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
"""Topics that brokers write to. Metadata responses mark them as internal."""

NO_LEADER: Final = -1

RECOVERED: Final = 0
RECOVERING: Final = 1
"""The leader recovery state of a partition after an unclean election (KIP-704)."""

REMOVED_TOPICS_MAX: Final = 10_000

Value = TypeVar("Value")

_NO_BROKER: Final = -1
"""The broker id of a producer id block in a snapshot. As in Kafka, the actual id is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A registered broker and its listeners.

    `host` and `port` form the address that other brokers use. A fenced broker leads no partitions.
    It remains in an ISR only if it is the last member and eligible leader replicas are disabled.
    """

    broker_id: int
    incarnation_id: Uuid
    broker_epoch: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = True
    in_controlled_shutdown: bool = False
    listeners: tuple[Endpoint, ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the address of a listener, or None if the broker does not have the listener."""
        return next((each for each in self.listeners if each.listener == listener), None)

    @property
    def is_active(self) -> bool:
        """Whether the broker can lead partitions and join ISRs."""
        return not self.is_fenced and not self.in_controlled_shutdown


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """The replicas, the ISR and the leader of a partition, as broker ids.

    The leader is -1 if the partition has no leader. During a reassignment, `replicas` also contains
    the adding and the removing replicas. The `eligible_leader_replicas` contain all committed
    records, although they are not in the ISR (KIP-966). `last_known_elr` contains the last leader
    while the partition has no leader.
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
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding_replicas or self.removing_replicas)

    def merge(self, change: PartitionChangeRecord) -> PartitionMetadata:
        """Return the partition after a change (Kafka's `PartitionRegistration.merge`)."""
        return PartitionMetadata(
            topic_id=self.topic_id,
            topic=self.topic,
            partition=self.partition,
            replicas=_changed(change.replicas, self.replicas),
            isr=_changed(change.isr, self.isr),
            leader=_changed(change.leader, self.leader),
            leader_epoch=self.leader_epoch + (change.leader is not None),
            partition_epoch=self.partition_epoch + 1,
            adding_replicas=_changed(change.adding_replicas, self.adding_replicas),
            removing_replicas=_changed(change.removing_replicas, self.removing_replicas),
            leader_recovery_state=_changed(
                change.leader_recovery_state, self.leader_recovery_state
            ),
            eligible_leader_replicas=_changed(
                change.eligible_leader_replicas, self.eligible_leader_replicas
            ),
            last_known_elr=_changed(change.last_known_elr, self.last_known_elr),
        )


def _changed(value: Value | None, before: Value) -> Value:
    return before if value is None else value


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic with its partitions in order and the configs that are set on it."""

    name: str
    topic_id: Uuid
    partitions: dict[int, PartitionMetadata] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """Whether the topic contains the state of coordinators."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Records that take effect together. `base_offset` is the offset of the first record."""

    base_offset: int
    records: tuple[MetadataRecord, ...]

    @property
    def end_offset(self) -> int:
        """The offset of the last record plus one."""
        return self.base_offset + len(self.records)


class ClusterMetadata:
    """Brokers, topics, finalized features, SCRAM credentials, ACLs and the next producer id.

    `end_offset` is the offset of the last applied record plus one. `removed_topics` contains the
    ids of the last `REMOVED_TOPICS_MAX` deleted topics, because their logs may still exist.
    `finalized_features` contains the version of each finalized feature, which is never 0.
    `scram_credentials` contains the credentials of users, keyed by mechanism and name.
    `resource_configs` contains the configs of brokers, groups and client metrics, keyed by resource
    type and name. The cluster-wide broker defaults have an empty name.
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
        self.scram_credentials: dict[tuple[int, str], ScramCredential] = {}
        self.acls = AclCache()
        self.resource_configs: dict[tuple[int, str], dict[str, str]] = {}
        self.finalized_features: Mapping[str, int] = MappingProxyType(self._features)

    @property
    def transaction_version(self) -> int:
        """The finalized `transaction.version`, or 0 if the feature is not finalized (KIP-890)."""
        return self.finalized_features.get(TRANSACTION_VERSION, 0)

    @property
    def is_elr_enabled(self) -> bool:
        """Whether partitions have eligible leader replicas (KIP-966)."""
        return self.finalized_features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1

    def scram_credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return the SCRAM credential of a user, or None if there is none."""
        return self.scram_credentials.get((mechanism, user))

    def configs(self, resource_type: ConfigResourceType, name: str) -> Mapping[str, str]:
        """Return the configs that are set on a resource. The values may be secrets."""
        if resource_type is ConfigResourceType.TOPIC:
            topic = self.topics.get(name)
            return topic.configs if topic is not None else {}
        return self.resource_configs.get((resource_type, name), {})

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """Return the partition, or None if it does not exist."""
        found = self.topics.get(topic)
        return found.partitions.get(partition) if found is not None else None

    def partitions(self) -> Iterator[PartitionMetadata]:
        """Yield all partitions of all topics."""
        for topic in self.topics.values():
            yield from topic.partitions.values()

    def colliding_topic(self, name: str) -> str | None:
        """Return the existing topic whose name collides with `name`, if any."""
        return self._by_metric_name.get(metric_name(name))

    def is_active(self, broker_id: int) -> bool:
        """Return whether the broker is registered, unfenced and not in controlled shutdown."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def apply_commit(self, commit: Commit, delta: MetadataDelta | None = None) -> None:
        """Apply the next records, and add their changes to `delta`.

        Raises: ValueError if earlier records have not been applied.
        """
        if commit.base_offset != self.end_offset:
            raise ValueError(
                f"The metadata records start at offset {commit.base_offset}, but offset "
                f"{self.end_offset} was expected."
            )
        self._apply(commit.records, MetadataDelta() if delta is None else delta)
        self.end_offset = commit.end_offset

    def replace(
        self,
        records: Iterable[MetadataRecord],
        end_offset: int,
        delta: MetadataDelta | None = None,
    ) -> None:
        """Replace the metadata with a snapshot of the records below `end_offset`.

        Add all objects of the old and the new metadata to `delta`. A topic that is
        missing from the snapshot is treated as removed only if the snapshot contains the record of
        its removal.
        """
        delta = MetadataDelta() if delta is None else delta
        delta.has_changed_brokers = True
        before = dict(self.topics_by_id)
        self.brokers.clear()
        self.topics.clear()
        self.topics_by_id.clear()
        self._by_metric_name.clear()
        self.removed_topics.clear()
        self.next_producer_id = 0
        self._features.clear()
        self.scram_credentials.clear()
        self.acls.clear()
        self.resource_configs.clear()
        self._apply(records, delta)
        self.end_offset = end_offset
        delta.configs.update(dict.fromkeys(self.topics))
        for topic_id, topic in before.items():
            if topic_id in self.removed_topics:
                delta.remove_topic(topic)
            else:
                delta.add_partitions(topic)

    def records(self) -> list[MetadataRecord]:
        """Return the smallest list of records that results in this metadata."""
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
                listeners=broker.listeners,
            )
            for broker in self.brokers.values()
        ]
        records += [RemoveTopicRecord(topic_id=topic_id) for topic_id in self.removed_topics]
        for topic in self.topics.values():
            records += _topic_records(topic)
        records += [
            UserScramCredentialRecord(
                name=name,
                mechanism=mechanism,
                salt=credential.salt,
                stored_key=credential.stored_key,
                server_key=credential.server_key,
                iterations=credential.iterations,
            )
            for (mechanism, name), credential in self.scram_credentials.items()
        ]
        records += [acl_record(acl_id, acl) for acl_id, acl in self.acls.items()]
        records += [
            ConfigRecord(
                resource_type=resource_type, resource_name=resource_name, name=name, value=value
            )
            for (resource_type, resource_name), configs in self.resource_configs.items()
            for name, value in configs.items()
        ]
        records.append(
            ProducerIdsRecord(
                broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=self.next_producer_id
            )
        )
        return records

    def _apply(self, records: Iterable[MetadataRecord], delta: MetadataDelta) -> None:
        for record in records:
            delta.add(record, self.topics_by_id)
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
                case ClearElrRecord():
                    self._apply_elr_clearing(record)
                case RemoveTopicRecord():
                    self._apply_removal(record)
                case _:
                    self._apply_cluster_record(record)

    def _apply_cluster_record(
        self,
        record: ProducerIdsRecord
        | FeatureLevelRecord
        | UserScramCredentialRecord
        | RemoveUserScramCredentialRecord
        | AccessControlEntryRecord
        | RemoveAccessControlEntryRecord,
    ) -> None:
        match record:
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case FeatureLevelRecord():
                self._apply_feature(record)
            case UserScramCredentialRecord():
                self.scram_credentials[record.mechanism, record.name] = ScramCredential(
                    salt=record.salt,
                    stored_key=record.stored_key,
                    server_key=record.server_key,
                    iterations=record.iterations,
                )
            case RemoveUserScramCredentialRecord():
                del self.scram_credentials[record.mechanism, record.name]
            case AccessControlEntryRecord():
                self.acls.add(record.id, _acl(record))
            case RemoveAccessControlEntryRecord():
                self.acls.remove(record.id)

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
            listeners=record.listeners
            or (Endpoint(listener="PLAINTEXT", host=record.host, port=record.port),),
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
            eligible_leader_replicas=record.eligible_leader_replicas,
            last_known_elr=record.last_known_elr,
        )

    def _apply_elr_clearing(self, record: ClearElrRecord) -> None:
        topics = [self.topics[record.topic]] if record.topic else self.topics.values()
        for topic in topics:
            for partition in topic.partitions.values():
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    cleared = PartitionChangeRecord(
                        topic_id=partition.topic_id,
                        partition_id=partition.partition,
                        eligible_leader_replicas=(),
                        last_known_elr=(),
                    )
                    topic.partitions[partition.partition] = partition.merge(cleared)

    def _apply_config(self, record: ConfigRecord) -> None:
        if record.resource_type == ConfigResourceType.TOPIC:
            configs = self.topics[record.resource_name].configs
        else:
            resource = (record.resource_type, record.resource_name)
            configs = self.resource_configs.setdefault(resource, {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        if not configs:
            self.resource_configs.pop((record.resource_type, record.resource_name), None)

    def _apply_feature(self, record: FeatureLevelRecord) -> None:
        if record.feature_level:
            self._features[record.name] = record.feature_level
        else:
            self._features.pop(record.name, None)

    def _apply_removal(self, record: RemoveTopicRecord) -> None:
        self.removed_topics[record.topic_id] = None
        if len(self.removed_topics) > REMOVED_TOPICS_MAX:
            del self.removed_topics[next(iter(self.removed_topics))]
        # A snapshot contains only the id of a removed topic.
        removed = self.topics_by_id.pop(record.topic_id, None)
        if removed is not None:
            del self.topics[removed.name]
            self._by_metric_name.pop(metric_name(removed.name), None)


def acl_record(acl_id: Uuid, acl: Acl) -> AccessControlEntryRecord:
    """Return the record that creates an ACL."""
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def _acl(record: AccessControlEntryRecord) -> Acl:
    return Acl.of(
        resource_type=record.resource_type,
        resource_name=record.resource_name,
        pattern_type=record.pattern_type,
        principal=record.principal,
        host=record.host,
        operation=record.operation,
        permission_type=record.permission_type,
    )


def _topic_records(topic: Topic) -> Sequence[MetadataRecord]:
    return [
        TopicRecord(name=topic.name, topic_id=topic.topic_id),
        *(
            ConfigRecord(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=topic.name,
                name=name,
                value=value,
            )
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
                eligible_leader_replicas=partition.eligible_leader_replicas,
                last_known_elr=partition.last_known_elr,
            )
            for partition in topic.partitions.values()
        ),
    ]
