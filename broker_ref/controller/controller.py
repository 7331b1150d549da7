"""The controller, which decides on brokers, topics, leaders and producer ids.

Purpose: turn every decision into metadata records. The controller writes them to the journal,
applies them to the metadata, keeps them for the brokers that fetch them, and calls `on_change`.
Invariants: the result of an operation is durable; an operation that raises ApiError has changed
nothing; an offset is never used for two records. Must not know: requests, versions, the logs of
partitions. Source: Kafka's QuorumController.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
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
from broker_ref.controller.configs import ConfigChange, incremental_changes, legacy_changes
from broker_ref.controller.elections import (
    Election,
    change_partition,
    leader_and_isr_updates,
    requested_election,
)
from broker_ref.controller.features import FeatureUpdate, first_features, updated_features
from broker_ref.controller.journal import Journal
from broker_ref.controller.metadata import (
    NO_LEADER,
    ClusterMetadata,
    Commit,
    PartitionMetadata,
    Topic,
)
from broker_ref.controller.metadata_batches import encode_commit, encode_snapshot
from broker_ref.controller.reassignments import cancellation, check_factor_is_kept, reassignment
from broker_ref.controller.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
)
from broker_ref.controller.topics import CreatedTopic, NewTopic, TopicPlanner
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.schedule import Schedule
from broker_ref.topic_configs import unclean_leader_election

PRODUCER_ID_BLOCK_SIZE: Final = 1000

BYTES_BETWEEN_SNAPSHOTS: Final = 20 * 2**20
"""Kafka's default of `metadata.log.max.record.bytes.between.snapshots`."""


class Controller:
    """Owner of the journal and the metadata."""

    def __init__(
        self,
        *,
        journal: Journal,
        config: BrokerConfig,
        cluster_id: str,
        random_bytes: Callable[[int], bytes],
        now_ms: int,
        features: Mapping[str, int] | None = None,
    ) -> None:
        """Load the journal; raise ApiError where it cannot be written.

        An empty journal means a new cluster, which finalizes the default features. `features`
        overrides them; an unsupported version raises INVALID_UPDATE_VERSION.
        """
        self.metadata = ClusterMetadata()
        self.on_change: Callable[[], None] = lambda: None
        self._journal = journal
        self._config = config
        self._cluster_id = cluster_id
        self.metadata.replace(journal.snapshot.records, journal.snapshot.base_offset)
        for commit in journal.commits:
            self.metadata.apply_commit(commit)
        journal.forget_found()
        self._batches: deque[tuple[int, bytes]] = deque()
        self._batches_bytes = 0
        self._snapshot: tuple[int, bytes] | None = None
        self._rewrite_journal()
        first = first_features(features or {})
        if self.metadata.end_offset == 0:
            self._commit(first)
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
        """Fence the brokers whose session has expired and run the periodic tasks that are due.

        Raise ApiError with KAFKA_STORAGE_ERROR where the journal cannot be written; the controller
        must be stopped then.
        """
        for broker_id in self._heartbeats.stale_brokers(now_ms):
            self._commit(self._fencing(broker_id))
        self._schedule.run(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next call of `tick` that is needed."""
        deadlines = (self._heartbeats.next_expiry_ms(), self._schedule.next_deadline_ms())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # Metadata fetched by brokers ----------------------------------------------------------------

    def batches_from(self, offset: int, max_bytes: int) -> bytes | None:
        """Return whole batches that start at the record at `offset`, at least one if there is any.

        Return None where these batches are no longer kept or `offset` is in the middle of a commit.
        The broker needs a snapshot then.
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
        """Return the end offset and the bytes of a snapshot from which `batches_from` continues.

        The snapshot stays the same while that holds, because brokers fetch it in parts.
        """
        if self._snapshot is None or self.batches_from(self._snapshot[0], 0) is None:
            records = self.metadata.records()
            self._snapshot = (self.metadata.end_offset, encode_snapshot(records))
        return self._snapshot

    # Brokers ------------------------------------------------------------------------------------

    def register_broker(self, registration: Registration, now_ms: int) -> int:
        """Register a started broker and return its epoch.

        The previous incarnation is removed from leadership and ISRs. Raise ApiError with
        INCONSISTENT_CLUSTER_ID or DUPLICATE_BROKER_REGISTRATION.
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
            records += self._removal_from_isrs(broker_id)
        self._commit(records)
        self._heartbeats.register(broker_id, now_ms)
        return record.broker_epoch

    def heartbeat(self, heartbeat: Heartbeat, now_ms: int) -> HeartbeatReply:
        """Process a heartbeat: fence, unfence or shut down the broker; raise STALE_BROKER_EPOCH."""
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
        """Remove the registration of a broker; raise BROKER_ID_NOT_REGISTERED."""
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
        """Raise STALE_BROKER_EPOCH unless this is the registered incarnation of the broker."""
        self._heartbeats.check_broker_epoch(broker_id, broker_epoch)

    # Partitions ---------------------------------------------------------------------------------

    def alter_partitions(
        self, proposals: Sequence[IsrProposal]
    ) -> list[PartitionMetadata | ApiError]:
        """Apply ISR proposals of leaders; return the new partition or the error for each.

        NEW_LEADER_ELECTED means that the proposal was applied and completed a reassignment that
        changes the leader.
        """
        answers: list[PartitionMetadata | ApiError] = []
        records: list[MetadataRecord] = []
        seen: set[tuple[Uuid, int]] = set()
        for proposal in proposals:
            try:
                if (proposal.topic_id, proposal.partition) in seen:
                    raise ApiError(
                        ErrorCode.invalid_request,
                        f"The request contains partition {proposal.partition} of topic id "
                        f"{proposal.topic_id} twice.",
                    )
                seen.add((proposal.topic_id, proposal.partition))
                partition = checked_partition(self.metadata, proposal)
            except ApiError as error:
                answers.append(error)
                continue
            change = proposed_change(
                self.metadata,
                partition,
                proposal,
                is_unclean_allowed=self._is_unclean_allowed(partition.topic),
            )
            if change is not None:
                records.append(change)
                partition = partition.merge(change)
            moved = partition.leader != proposal.leader_id
            answers.append(
                ApiError(
                    ErrorCode.new_leader_elected,
                    f"The ISR change of {partition.topic}-{partition.partition} completed a "
                    "reassignment that moved the leader.",
                )
                if moved
                else partition
            )
        self._commit(records)
        return answers

    def elect_leaders(
        self, partitions: Sequence[tuple[str, int]], *, unclean: bool
    ) -> list[ApiError | None]:
        """Elect the preferred leader of each, or any leader if `unclean`; return the errors."""

        def election(topic: str, partition: int) -> PartitionChangeRecord:
            return requested_election(
                self.metadata, self._partition(topic, partition), unclean=unclean
            )

        return self._change_each(partitions, election)

    def alter_reassignments(
        self,
        wanted: Mapping[tuple[str, int], tuple[int, ...] | None],
        *,
        may_change_factor: bool = True,
    ) -> list[ApiError | None]:
        """Reassign each partition to these replicas, or cancel if None; return the errors.

        Unless `may_change_factor`, another replication factor is INVALID_REPLICATION_FACTOR.
        """

        def change(topic: str, partition_id: int) -> PartitionChangeRecord | None:
            partition = self._partition(topic, partition_id)
            replicas = wanted[topic, partition_id]
            if replicas is None:
                unclean = self._is_unclean_allowed(topic)
                return cancellation(self.metadata, partition, is_unclean_allowed=unclean)
            self.topics.check_replicas(replicas)
            if not may_change_factor:
                check_factor_is_kept(partition, replicas)
            return reassignment(self.metadata, partition, replicas)

        return self._change_each(tuple(wanted), change)

    # Topics -------------------------------------------------------------------------------------

    def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> CreatedTopic:
        """Create a topic; raise ApiError where it is refused."""
        created, records = self.topics.create(new)
        if not validate_only:
            self._commit(records)
        return created

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its partitions."""
        self._commit([RemoveTopicRecord(topic_id=topic.topic_id)])

    def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[tuple[int, ...]] | None,
        *,
        validate_only: bool,
    ) -> None:
        """Grow a topic to `count` partitions; raise ApiError where it is refused."""
        records = self.topics.grow(name, count, assignments)
        if not validate_only:
            self._commit(records)

    def alter_configs(
        self, topic: str, changes: Sequence[ConfigChange], *, validate_only: bool
    ) -> None:
        """Change some configs of a topic; raise ApiError where it is refused."""
        records = incremental_changes(self.metadata, topic, changes)
        if not validate_only:
            self._commit(records)

    def replace_configs(
        self, topic: str, configs: Mapping[str, str | None], *, validate_only: bool
    ) -> None:
        """Replace all configs of a topic; raise ApiError where it is refused."""
        records = legacy_changes(self.metadata, topic, configs)
        if not validate_only:
            self._commit(records)

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """Return a block of producer ids that is never allocated again, even after a crash."""
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
        """Finalize feature versions, all or none; raise INVALID_UPDATE_VERSION."""
        records = updated_features(self.metadata.finalized_features, updates)
        if not validate_only:
            self._commit(records)

    @property
    def failure(self) -> str | None:
        """The reason why nothing can be committed. The controller must be stopped then."""
        return self._journal.failure

    def close(self) -> None:
        """Release the journal."""
        self._journal.close()

    # --------------------------------------------------------------------------------------------

    def _commit(self, records: Sequence[MetadataRecord]) -> None:
        """Write records that take effect together; raise KAFKA_STORAGE_ERROR where that fails."""
        if not records:
            return
        commit = Commit(base_offset=self.metadata.end_offset, records=tuple(records))
        try:
            self._journal.append(commit)
        except StorageError as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from error
        self.metadata.apply_commit(commit)
        batch = encode_commit(commit)
        self._batches.append((commit.base_offset, batch))
        self._batches_bytes += len(batch)
        while self._batches_bytes > BYTES_BETWEEN_SNAPSHOTS:
            self._batches_bytes -= len(self._batches.popleft()[1])
        if self._journal.size_bytes > self._snapshot_bytes + BYTES_BETWEEN_SNAPSHOTS:
            # The commit is durable even if the rewrite fails; `failure` then blocks further ones.
            with suppress(ApiError):
                self._rewrite_journal()
        self.on_change()

    def _rewrite_journal(self) -> None:
        """Replace the journal's contents with a snapshot of the metadata."""
        try:
            self._journal.rewrite(self.metadata.records(), end_offset=self.metadata.end_offset)
        except StorageError as error:
            raise ApiError(ErrorCode.kafka_storage_error, str(error)) from error
        self._snapshot_bytes = self._journal.size_bytes

    def _transition(
        self, state: BrokerControlState, following: BrokerControlState, broker_id: int
    ) -> list[MetadataRecord]:
        """Return the records of a broker's state change."""
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

    def _updates(
        self, partitions: Iterable[PartitionMetadata], **brokers: int
    ) -> list[PartitionChangeRecord]:
        return leader_and_isr_updates(
            self.metadata, partitions, is_unclean_allowed=self._is_unclean_allowed, **brokers
        )

    def _balance_leaders(self, now_ms: int) -> None:
        """Elect preferred leaders where another replica leads (`auto.leader.rebalance.enable`)."""
        del now_ms
        changes = [
            change_partition(
                partition,
                is_acceptable_leader=self.metadata.is_active,
                election=Election.PREFERRED,
            )
            for partition in self.metadata.partitions()
            if partition.leader != partition.replicas[0]
        ]
        self._commit([change for change in changes if change is not None])

    def _elect_unclean_leaders(self, now_ms: int) -> None:
        """Elect a leader for leaderless partitions whose topic allows an unclean election."""
        del now_ms
        leaderless = [p for p in self.metadata.partitions() if p.leader == NO_LEADER]
        self._commit(self._updates(leaderless))

    def _change_each(
        self,
        partitions: Iterable[tuple[str, int]],
        decide: Callable[[str, int], PartitionChangeRecord | None],
    ) -> list[ApiError | None]:
        """Commit the records that `decide` returns, all at once; return the errors."""
        answers: list[ApiError | None] = []
        records: list[MetadataRecord] = []
        for topic, partition in partitions:
            try:
                change = decide(topic, partition)
            except ApiError as error:
                answers.append(error)
            else:
                answers.append(None)
                records += [] if change is None else [change]
        self._commit(records)
        return answers

    def _partition(self, topic: str, partition: int) -> PartitionMetadata:
        found = self.metadata.partition(topic, partition)
        if found is None:
            raise ApiError(
                ErrorCode.unknown_topic_or_partition,
                f"The partition {topic}-{partition} does not exist.",
            )
        return found

    def _leads_partitions(self, broker_id: int) -> bool:
        return any(partition.leader == broker_id for partition in self.metadata.partitions())

    def _is_unclean_allowed(self, topic: str) -> bool:
        return unclean_leader_election(self.metadata.topics[topic].configs, self._topic_defaults)
