"""The controller, which manages brokers, topics, leaders and producer ids.

The controller writes each change as metadata records. It appends the records to the journal,
applies them to the metadata, retains them so that brokers can fetch them, and calls `on_change`.
Invariants: the result of an operation is durable, an operation that raises ApiError has no effect,
and an offset is never used for two records. Source: Kafka's `QuorumController`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.acls import created_acls, deleted_acls
from broker_ref.controller.alter_partition import IsrProposal, checked_partition, proposed_change
from broker_ref.controller.broker_heartbeats import (
    BrokerControlState,
    BrokerHeartbeatManager,
    Heartbeat,
    HeartbeatReply,
    Registration,
    is_caught_up,
    registration_record,
)
from broker_ref.controller.configs import (
    ConfigChange,
    ConfigResource,
    incremental_changes,
    legacy_changes,
)
from broker_ref.controller.elections import (
    Election,
    change_partition,
    leader_and_isr_updates,
    requested_election,
)
from broker_ref.controller.features import (
    FeatureUpdate,
    enables_elr,
    initial_features,
    updated_features,
)
from broker_ref.controller.journal import Journal
from broker_ref.controller.metadata import (
    NO_LEADER,
    ClusterMetadata,
    Commit,
    PartitionMetadata,
    Topic,
)
from broker_ref.controller.metadata_batches import encode_commit, encode_snapshot
from broker_ref.controller.min_insync_replicas import (
    clearing_records,
    effective_min_isr,
    safety_records,
)
from broker_ref.controller.reassignments import cancellation, check_replication_factor, reassignment
from broker_ref.controller.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    ConfigResourceType,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    encode_record,
)
from broker_ref.controller.scram import ScramDeletion, ScramUpsertion, scram_changes
from broker_ref.controller.topics import CreatedTopic, NewTopic, TopicPlanner
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.schedule import Schedule
from broker_ref.security.acls import Acl, AclFilter
from broker_ref.topic_configs import unclean_leader_election

PRODUCER_ID_BLOCK_SIZE: Final = 1000

RECORDS_PER_USER_OPERATION_MAX: Final = 10_000
"""The maximum number of config changes in a request (`MAX_RECORDS_PER_USER_OP`)."""

BYTES_BETWEEN_SNAPSHOTS: Final = 20 * 2**20
"""Kafka's default for `metadata.log.max.record.bytes.between.snapshots`."""


class Controller:
    """The controller of a cluster, which owns the journal and the metadata."""

    def __init__(
        self,
        *,
        journal: Journal,
        config: BrokerConfig,
        cluster_id: str,
        random_bytes: Callable[[int], bytes],
        now_ms: int,
        features: Mapping[str, int] | None = None,
        scram_credentials: Sequence[UserScramCredentialRecord] = (),
    ) -> None:
        """Load the journal.

        If the journal is empty, the controller creates a new cluster and finalizes the default
        features. `features` overrides the default feature versions, and `scram_credentials`
        contains the credentials of the initial users.

        Raises: ApiError (KAFKA_STORAGE_ERROR if the journal cannot be written,
        INVALID_UPDATE_VERSION if a feature version is not supported).
        """
        self.metadata = ClusterMetadata()
        self.on_change: Callable[[], None] = lambda: None
        self._journal = journal
        self._config = config
        self._cluster_id = cluster_id
        self._random_bytes = random_bytes
        self.metadata.replace(journal.snapshot.records, journal.snapshot.base_offset)
        for commit in journal.commits:
            self.metadata.apply_commit(commit)
        journal.release_contents()
        self._batches: deque[tuple[int, bytes]] = deque()
        self._batches_bytes = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._rewrite_journal()
        first = initial_features(features or {})
        if self.metadata.end_offset == 0:
            self._commit([*first, *scram_credentials])
        if self.metadata.is_elr_enabled:
            self._commit(safety_records(self.metadata, config))
        self.topics = TopicPlanner(self.metadata, config=config, random_bytes=random_bytes)
        self._topic_defaults = config.topic_config_defaults()
        self._heartbeats = BrokerHeartbeatManager(
            self.metadata, timeout_ms=config.broker_session_timeout_ms, now_ms=now_ms
        )
        self._schedule = Schedule(now_ms)
        if config.auto_leader_rebalance_enable:
            self._schedule.every(
                config.leader_imbalance_check_interval_seconds * 1000, self._balance_leaders
            )
        self._schedule.every(
            config.unclean_leader_election_interval_ms, self._elect_unclean_leaders
        )

    # Time ---------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Fence brokers whose sessions have expired, and run the periodic tasks that are due.

        Raises: ApiError (KAFKA_STORAGE_ERROR) if the journal cannot be written. After this error,
        the controller must be stopped.
        """
        for broker_id in self._heartbeats.stale_brokers(now_ms):
            self._commit(self._fencing(broker_id))
        self._schedule.run(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the time at which `tick` must be called next."""
        deadlines = (self._heartbeats.next_expiry_ms(), self._schedule.next_deadline_ms())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # Metadata fetched by brokers ----------------------------------------------------------------

    def batches_from(self, offset: int, max_bytes: int) -> bytes | None:
        """Return complete batches, starting with the record at `offset`.

        The result contains at least one batch unless `offset` is the end offset. If the batches are
        no longer available, or if `offset` is neither the first offset of a batch nor the end
        offset, the result is None, and the broker needs a snapshot.
        """
        if offset == self.metadata.end_offset:
            return b""
        later = list(itertools.takewhile(lambda batch: batch[0] >= offset, reversed(self._batches)))
        if not later or later[-1][0] != offset:
            return None
        found: list[bytes] = []
        size_bytes = 0
        for _, batch in reversed(later):
            if found and size_bytes + len(batch) > max_bytes:
                break
            found.append(batch)
            size_bytes += len(batch)
        return b"".join(found)

    def snapshot(self) -> tuple[int, bytes]:
        """Return the end offset and the bytes of a snapshot.

        `batches_from` returns the batches that follow the snapshot. While these batches are
        available, `snapshot` returns the same snapshot, because brokers fetch a snapshot in parts.
        """
        if self._snapshot is None or self.batches_from(self._snapshot[0], 0) is None:
            records = self.metadata.records()
            self._snapshot = (self.metadata.end_offset, encode_snapshot(records))
        return self._snapshot

    # Brokers ------------------------------------------------------------------------------------

    def register_broker(self, registration: Registration, now_ms: int) -> int:
        """Register a broker and return its broker epoch.

        If the incarnation is new, the broker loses leadership of its partitions and is removed from
        all ISRs. If the broker's last shutdown was not clean, it is also removed from all ELRs
        (KIP-966).

        Raises: ApiError (INCONSISTENT_CLUSTER_ID or DUPLICATE_BROKER_REGISTRATION).
        """
        broker_id = registration.broker_id
        existing = self.metadata.brokers.get(broker_id)
        record = registration_record(
            registration,
            existing=existing,
            has_valid_session=self._heartbeats.has_valid_session(broker_id, now_ms),
            cluster_id=self._cluster_id,
            next_offset=self.metadata.end_offset,
        )
        records: list[MetadataRecord] = [record]
        if existing is None or existing.incarnation_id != registration.incarnation_id:
            is_clean = (
                existing is not None and existing.broker_epoch == registration.previous_broker_epoch
            )
            records += self._shutdown(broker_id, is_clean=is_clean)
        self._commit(records)
        self._heartbeats.register(broker_id, now_ms)
        return record.broker_epoch

    def heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> HeartbeatReply:
        """Process a heartbeat, which can fence, unfence or shut down the broker.

        Raises: ApiError (STALE_BROKER_EPOCH) if the broker epoch is not the registered epoch.
        """
        broker_id = heartbeat.broker_id
        state, following = self._heartbeats.calculate_next_broker_state(
            heartbeat, leads_partitions=lambda: self._leads_partitions(broker_id)
        )
        if following is not state:
            self._commit(self._transition(state, following, broker_id))
        self._heartbeats.touch(heartbeat, now_ms)
        if following is BrokerControlState.CONTROLLED_SHUTDOWN:
            self._heartbeats.maybe_update_controlled_shutdown_offset(
                broker_id, self.metadata.end_offset - 1
            )
        return HeartbeatReply(
            is_caught_up=is_caught_up(self.metadata.brokers[broker_id], heartbeat),
            is_fenced=following.is_fenced,
            should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
        )

    def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker.

        Raises: ApiError (BROKER_ID_NOT_REGISTERED) if the broker is not registered.
        """
        broker = self.metadata.brokers.get(broker_id)
        if broker is None:
            raise ApiError(
                ErrorCode.broker_id_not_registered,
                f"Broker ID {broker_id} is not currently registered",
            )
        self._commit(
            [
                *self._removal_from_isrs(broker_id),
                UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.broker_epoch),
            ]
        )
        self._heartbeats.remove(broker_id)

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        """Raise STALE_BROKER_EPOCH unless `broker_epoch` is the registered epoch of the broker."""
        self._heartbeats.check_broker_epoch(broker_id, broker_epoch)

    # Partitions ---------------------------------------------------------------------------------

    def alter_partitions(
        self, proposals: Sequence[IsrProposal]
    ) -> list[PartitionMetadata | ApiError]:
        """Apply ISR proposals. Return the new partition state or the error for each proposal.

        NEW_LEADER_ELECTED means that the proposal was applied, and that it completed a reassignment
        that changed the leader.
        """
        outcomes: list[PartitionMetadata | ApiError] = []
        records: list[MetadataRecord] = []
        seen: set[tuple[Uuid, int]] = set()
        min_isr, is_unclean_allowed = cache(self._min_isr), cache(self._is_unclean_allowed)
        for proposal in proposals:
            try:
                if (proposal.topic_id, proposal.partition) in seen:
                    raise ApiError(
                        ErrorCode.invalid_request,
                        f"The request contains partition {proposal.partition} of the topic with "
                        f"id {proposal.topic_id} more than once.",
                    )
                seen.add((proposal.topic_id, proposal.partition))
                partition = checked_partition(self.metadata, proposal)
            except ApiError as error:
                outcomes.append(error)
                continue
            change = proposed_change(
                self.metadata,
                partition,
                proposal,
                is_unclean_allowed=is_unclean_allowed(partition.topic),
                min_isr=min_isr(partition.topic),
            )
            if change is not None:
                records.append(change)
                partition = partition.merge(change)
            moved = partition.leader != proposal.leader_id
            outcomes.append(
                ApiError(
                    ErrorCode.new_leader_elected,
                    f"The ISR change of {partition.topic}-{partition.partition} completed a "
                    "reassignment that changed the leader.",
                )
                if moved
                else partition
            )
        self._commit(records)
        return outcomes

    def elect_leaders(
        self, partitions: Sequence[tuple[str, int]], *, unclean: bool
    ) -> list[ApiError | None]:
        """Elect the preferred leader of each partition, or any replica if `unclean` is True.

        Return the error or None for each partition.
        """

        def election(topic: str, partition: int) -> PartitionChangeRecord:
            return requested_election(
                self.metadata,
                self._partition(topic, partition),
                unclean=unclean,
                min_isr=self._min_isr(topic),
            )

        return self._change_each(partitions, election)

    def alter_reassignments(
        self,
        requested: Mapping[tuple[str, int], tuple[int, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> list[ApiError | None]:
        """Reassign each partition, or cancel its reassignment if the new replicas are None.

        Return the error or None for each partition. If `may_change_factor` is False, a change to
        the replication factor fails with INVALID_REPLICATION_FACTOR.
        """

        def change(topic: str, partition_id: int) -> PartitionChangeRecord | None:
            partition = self._partition(topic, partition_id)
            replicas = requested[topic, partition_id]
            min_isr = self._min_isr(topic)
            if replicas is None:
                unclean = self._is_unclean_allowed(topic)
                return cancellation(
                    self.metadata, partition, is_unclean_allowed=unclean, min_isr=min_isr
                )
            self.topics.check_replicas(replicas)
            if not may_change_factor:
                check_replication_factor(partition, replicas)
            return reassignment(self.metadata, partition, replicas, min_isr=min_isr)

        return self._change_each(tuple(requested), change)

    # Topics -------------------------------------------------------------------------------------

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> list[CreatedTopic | ApiError]:
        """Create the valid topics in one commit. Return the result or the error for each topic."""
        outcomes: list[CreatedTopic | ApiError] = []
        records: list[MetadataRecord] = []
        planned: dict[str, str] = {}
        for new in topics:
            try:
                created, of_topic = self.topics.create(new, planned)
            except ApiError as error:
                outcomes.append(error)
            else:
                outcomes.append(created)
                records += of_topic
        if not validate_only:
            self._commit(records)
        return outcomes

    def delete_topics(self, topics: Iterable[Topic]) -> None:
        """Delete topics and their partitions in one commit."""
        self._commit([RemoveTopicRecord(topic_id=topic.topic_id) for topic in topics])

    def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Increase the number of partitions of a topic to `count`.

        Raises: ApiError if the request is invalid.
        """
        records = self.topics.create_partitions(name, count, assignments)
        if not validate_only:
            self._commit(records)

    def incremental_config_records(
        self, resource: ConfigResource, changes: Sequence[ConfigChange]
    ) -> list[ConfigRecord]:
        """Return the records for incremental changes, or raise ApiError if a change is invalid."""
        return incremental_changes(self.metadata, resource, changes, self._config)

    def replacing_config_records(
        self, resource: ConfigResource, configs: Mapping[str, str | None]
    ) -> list[ConfigRecord]:
        """Return the records that replace all configs, or raise ApiError if a config is invalid."""
        return legacy_changes(self.metadata, resource, configs, self._config)

    def alter_configs(self, changes: Sequence[ConfigRecord], *, validate_only: bool) -> None:
        """Change the configs of several resources in one commit.

        Raises: ApiError (POLICY_VIOLATION) if the commit would contain too many records.
        """
        records: list[MetadataRecord] = [*changes, *clearing_records(self.metadata, changes)]
        if len(records) > RECORDS_PER_USER_OPERATION_MAX:
            raise ApiError(
                ErrorCode.policy_violation, "Unable to perform excessively large batch operation."
            )
        if not validate_only:
            self._commit(records)

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """Allocate and return a block of producer ids, which is never allocated again."""
        first = self.metadata.next_producer_id
        block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
        self._commit(
            [
                ProducerIdsRecord(
                    broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=block.stop
                )
            ]
        )
        return block

    def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Finalize all requested feature versions, or raise INVALID_UPDATE_VERSION."""
        records = updated_features(self.metadata.finalized_features, updates)
        if not validate_only:
            safety: list[ConfigRecord] = []
            if any(enables_elr(record) for record in records):
                safety = safety_records(self.metadata, self._config)
            self._commit([*safety, *records])

    def alter_scram_credentials(
        self, changes: Sequence[ScramDeletion | ScramUpsertion]
    ) -> dict[str, ApiError | None]:
        """Apply the valid changes in one commit. Return the error or None for each user."""
        records, outcomes = scram_changes(self.metadata.scram_credentials, changes)
        self._commit(records)
        return outcomes

    def create_acls(self, acls: Sequence[Acl]) -> list[ApiError | None]:
        """Create the valid ACLs in one commit. Return the error or None for each ACL."""
        records, outcomes = created_acls(self.metadata.acls, acls, self._random_bytes)
        self._commit(records)
        return outcomes

    def delete_acls(self, filters: Sequence[AclFilter]) -> list[tuple[Acl, ...] | ApiError]:
        """Delete all ACLs that match at least one of the filters, in one commit.

        Return the matching ACLs or the error for each filter.
        """
        records, outcomes = deleted_acls(self.metadata.acls, filters)
        self._commit(records)
        return outcomes

    @property
    def failure(self) -> str | None:
        """The reason why commits are no longer possible, or None.

        If the value is not None, the controller must be stopped.
        """
        return self._journal.failure

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # --------------------------------------------------------------------------------------------

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        """Write records that take effect together. Raises: ApiError (KAFKA_STORAGE_ERROR)."""
        if not records:
            return
        commit = Commit(base_offset=self.metadata.end_offset, records=tuple(records))
        encoded = [encode_record(record) for record in records]
        try:
            self._journal.append(commit.base_offset, encoded)
        except StorageError as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from error
        self.metadata.apply_commit(commit)
        batch = encode_commit(commit.base_offset, encoded)
        self._batches.append((commit.base_offset, batch))
        self._batches_bytes += len(batch)
        while self._batches_bytes > BYTES_BETWEEN_SNAPSHOTS:
            self._batches_bytes -= len(self._batches.popleft()[1])
        if self._journal.size_bytes > self._snapshot_bytes + BYTES_BETWEEN_SNAPSHOTS:
            # The commit is durable even if the journal cannot be rewritten. After a failed rewrite,
            # the journal rejects further commits.
            with suppress(ApiError):
                self._rewrite_journal()
        self.on_change()

    def _rewrite_journal(self) -> None:
        """Replace the contents of the journal with a snapshot of the metadata."""
        try:
            self._journal.rewrite(
                map(encode_record, self.metadata.records()), end_offset=self.metadata.end_offset
            )
        except StorageError as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from error
        self._snapshot_bytes = self._journal.size_bytes

    def _transition(
        self, state: BrokerControlState, following: BrokerControlState, broker_id: int
    ) -> list[MetadataRecord]:
        """Return the records for a change to a broker's state."""
        broker_epoch = self.metadata.brokers[broker_id].broker_epoch
        if following is BrokerControlState.UNFENCED:
            leaderless = [p for p in self.metadata.partitions() if p.leader == NO_LEADER]
            unfenced = BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker_epoch, fenced=False
            )
            return [unfenced, *self._updates(leaderless, broker_to_add=broker_id)]
        if following is BrokerControlState.CONTROLLED_SHUTDOWN:
            shutting_down = BrokerRegistrationChangeRecord(
                broker_id=broker_id, broker_epoch=broker_epoch, in_controlled_shutdown=True
            )
            return [shutting_down, *self._removal_from_isrs(broker_id)]
        return [] if state is BrokerControlState.FENCED else self._fencing(broker_id)

    def _fencing(self, broker_id: int) -> list[MetadataRecord]:
        return [
            *self._removal_from_isrs(broker_id),
            BrokerRegistrationChangeRecord(
                broker_id=broker_id,
                broker_epoch=self.metadata.brokers[broker_id].broker_epoch,
                fenced=True,
            ),
        ]

    def _removal_from_isrs(self, broker_id: int) -> list[PartitionChangeRecord]:
        in_sync = [p for p in self.metadata.partitions() if broker_id in p.isr]
        return self._updates(in_sync, broker_to_remove=broker_id)

    def _shutdown(self, broker_id: int, *, is_clean: bool) -> list[PartitionChangeRecord]:
        """Return the partition changes for a broker that has shut down (`handleBrokerShutdown`)."""
        if is_clean or not self.metadata.is_elr_enabled:
            return self._removal_from_isrs(broker_id)
        affected = [
            p
            for p in self.metadata.partitions()
            if broker_id in p.isr or broker_id in p.eligible_leader_replicas
        ]
        return self._updates(affected, unclean_shutdown=broker_id)

    def _updates(
        self, partitions: Iterable[PartitionMetadata], **brokers: int
    ) -> list[PartitionChangeRecord]:
        return leader_and_isr_updates(
            self.metadata,
            partitions,
            # All partitions of a topic have the same configs.
            is_unclean_allowed=cache(self._is_unclean_allowed),
            min_isr=cache(self._min_isr),
            **brokers,
        )

    def _balance_leaders(self, now_ms: int) -> None:
        """Move leadership to the preferred leaders (`auto.leader.rebalance.enable`)."""
        del now_ms
        min_isr = cache(self._min_isr)
        changes = [
            change_partition(
                partition,
                is_acceptable_leader=self.metadata.is_active,
                min_isr=min_isr(partition.topic),
                election=Election.PREFERRED,
            )
            for partition in self.metadata.partitions()
            if partition.leader != partition.replicas[0]
        ]
        self._commit([change for change in changes if change is not None])

    def _elect_unclean_leaders(self, now_ms: int) -> None:
        """Elect leaders for leaderless partitions of topics that allow unclean elections."""
        del now_ms
        leaderless = [
            p
            for p in self.metadata.partitions()
            if p.leader == NO_LEADER and self._is_unclean_allowed(p.topic)
        ]
        self._commit(self._updates(leaderless))

    def _change_each(
        self,
        partitions: Iterable[tuple[str, int]],
        decide: Callable[[str, int], PartitionChangeRecord | None],
    ) -> list[ApiError | None]:
        """Commit the records that `decide` returns.

        Return the error or None for each partition.
        """
        outcomes: list[ApiError | None] = []
        records: list[MetadataRecord] = []
        for topic, partition in partitions:
            try:
                change = decide(topic, partition)
            except ApiError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
                records += [] if change is None else [change]
        self._commit(records)
        return outcomes

    def _partition(self, topic: str, partition: int) -> PartitionMetadata:
        found = self.metadata.partition(topic, partition)
        if found is None:
            raise ApiError(
                ErrorCode.unknown_topic_or_partition,
                f"Topic {topic} has no partition {partition}.",
            )
        return found

    def _leads_partitions(self, broker_id: int) -> bool:
        return any(partition.leader == broker_id for partition in self.metadata.partitions())

    def _min_isr(self, topic: str) -> int | None:
        return effective_min_isr(self.metadata, topic, self._defaults_of_topics())

    def _is_unclean_allowed(self, topic: str) -> bool:
        return unclean_leader_election(
            self.metadata.topics[topic].configs, self._defaults_of_topics()
        )

    def _defaults_of_topics(self) -> Mapping[str, str]:
        """Return the topic config defaults, including the dynamic cluster-wide defaults."""
        return {
            **self._topic_defaults,
            **self.metadata.configs(ConfigResourceType.BROKER, ""),
        }
