"""Reads one partition for a fetch.

Purpose: the rules that apply to consumers, with or without sessions, and to followers, whose
position is updated after a read has shown that it is valid. Invariant: a request updates a position
once, before it waits. Must not know: sessions, limits of a response, waiting. Source:
`kafka.server.ReplicaManager.readFromLog` and `kafka.cluster.Partition.fetchRecords`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker, Call
from broker_ref.api.endpoints import NO_LEADER, current_leader
from broker_ref.api.fetch_contexts import replica_id_of
from broker_ref.api.fetch_messages import (
    NOT_DIVERGING,
    AbortedTransaction,
    EpochEndOffset,
    FetchRequest,
    PartitionAnswer,
)
from broker_ref.config import RACK_AWARE_REPLICA_SELECTOR
from broker_ref.log.batch import end_offset_of
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.replication.fetch_session_cache import CachedPartition
from broker_ref.replication.partition import DivergingEpoch, FetchIsolation, Partition
from broker_ref.replication.replica_selector import ReplicaView, preferred_read_replica

READ_COMMITTED: Final = 1

FIRST_VERSION_FROM_FOLLOWERS: Final = 11
FIRST_VERSION_WITH_CURRENT_LEADER: Final = 16
LAST_VERSION_WITHOUT_STORAGE_ERROR: Final = 5

LEADER_MOVED_ERRORS: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
"""Errors whose answers contain the current leader (KIP-951)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReader:
    """Reads partitions for the sender of a request."""

    broker: Broker
    version: int
    replica_id: int
    replica_epoch: int
    isolation: FetchIsolation
    rack_id: str

    @classmethod
    def of(cls, broker: Broker, call: Call, request: FetchRequest) -> PartitionReader:
        """Create the reader of a request."""
        committed = request.isolation_level == READ_COMMITTED
        return cls(
            broker=broker,
            version=call.version,
            replica_id=replica_id_of(request),
            replica_epoch=request.replica_state.replica_epoch,
            isolation=FetchIsolation.READ_COMMITTED
            if committed
            else FetchIsolation.READ_UNCOMMITTED,
            rack_id=request.rack_id,
        )

    @property
    def is_follower(self) -> bool:
        """Return whether a broker fetches."""
        return self.replica_id >= 0

    def locate(self, wanted: CachedPartition) -> Partition:
        """Return the partition. Raises: ApiError if it cannot be read here or in this leader epoch.

        Consumers in versions without racks read from leaders only, as followers do.
        """
        assert wanted.topic is not None
        asked = wanted.asked
        partition = self.broker.replicas.partition(wanted.topic, asked.partition)
        if wanted.topic_id not in (ZERO_UUID, partition.metadata.topic_id):
            raise ApiError(
                ErrorCode.inconsistent_topic_id,
                f"The log of {wanted.topic}-{asked.partition} belongs to topic id "
                f"{partition.metadata.topic_id}, not {wanted.topic_id}. Start a new session.",
            )
        if self.is_follower:
            partition.check_fetcher(self.replica_id, self.replica_epoch, asked.current_leader_epoch)
        elif self.version < FIRST_VERSION_FROM_FOLLOWERS:
            partition.check_leader(asked.current_leader_epoch)
        else:
            partition.check_replica(asked.current_leader_epoch)
        return partition

    def end_offset(self, partition: Partition) -> int:
        """Return the end of the records that the reader may see."""
        return partition.end_offset_for(self.isolation, self.replica_id)

    def read(
        self, wanted: CachedPartition, *, max_bytes: int, at_least_one_batch: bool
    ) -> PartitionAnswer:
        """Return the batches at the fetch offset, or an error."""
        try:
            partition = self.locate(wanted)
            preferred = self._preferred_read_replica(partition, wanted)
            if preferred is not None:
                return self._answer(partition, wanted, preferred_read_replica=preferred)
            found = partition.read(
                wanted.asked.fetch_offset,
                isolation=self.isolation,
                replica_id=self.replica_id,
                last_fetched_epoch=wanted.asked.last_fetched_epoch,
                max_bytes=max_bytes,
                at_least_one_batch=at_least_one_batch,
            )
        except (ApiError, LogError) as error:
            return self.refusal(wanted, error.error_code)
        if isinstance(found, DivergingEpoch):
            diverging = EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
            return self._answer(partition, wanted, diverging_epoch=diverging)
        try:
            return self._answer(partition, wanted, records=found)
        except LogError as error:
            return self.refusal(wanted, error.error_code)

    def note_position(self, wanted: CachedPartition, answer: PartitionAnswer, now_ms: int) -> None:
        """Update a follower's position to its fetch offset, which was valid."""
        if self.is_follower and not answer.is_urgent:
            self.update_follower_fetch_state(self.locate(wanted), wanted, now_ms)

    def update_follower_fetch_state(
        self, partition: Partition, wanted: CachedPartition, now_ms: int
    ) -> None:
        """Do the same as `note_position` for a known partition."""
        partition.update_follower_fetch_state(
            self.replica_id,
            self.replica_epoch,
            fetch_offset=wanted.asked.fetch_offset,
            log_start_offset=wanted.asked.log_start_offset,
            now_ms=now_ms,
        )

    def has_nothing_new(self, partition: Partition, wanted: CachedPartition) -> bool:
        """Return whether a read would return no records, no error and no diverging epoch.

        False is possible even if a read would return nothing.
        """
        asked = wanted.asked
        return (
            asked.fetch_offset == self.end_offset(partition)
            and asked.last_fetched_epoch in (-1, partition.log.leader_epochs.latest)
            and not self._chooses_replicas
        )

    def refusal(self, wanted: CachedPartition, error_code: ErrorCode) -> PartitionAnswer:
        """Return an error answer, with the current leader for leadership errors."""
        leader = NO_LEADER
        if (
            self.version >= FIRST_VERSION_WITH_CURRENT_LEADER
            and error_code in LEADER_MOVED_ERRORS
            and wanted.topic is not None
        ):
            leader = current_leader(self.broker, wanted.topic, wanted.asked.partition)
        if (
            error_code is ErrorCode.kafka_storage_error
            and self.version <= LAST_VERSION_WITHOUT_STORAGE_ERROR
        ):
            error_code = ErrorCode.not_leader_or_follower
        return PartitionAnswer(
            partition_index=wanted.asked.partition, error_code=error_code, current_leader=leader
        )

    def _answer(
        self,
        partition: Partition,
        wanted: CachedPartition,
        *,
        records: bytes = b"",
        diverging_epoch: EpochEndOffset = NOT_DIVERGING,
        preferred_read_replica: int = -1,
    ) -> PartitionAnswer:
        return PartitionAnswer(
            partition_index=wanted.asked.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=diverging_epoch,
            preferred_read_replica=preferred_read_replica,
            aborted_transactions=self._aborted(partition, wanted, records),
            records=records,
        )

    def _aborted(
        self, partition: Partition, wanted: CachedPartition, records: bytes
    ) -> tuple[AbortedTransaction, ...] | None:
        """Return the aborted transactions of these records for read_committed consumers."""
        if self.isolation is FetchIsolation.READ_UNCOMMITTED or self.is_follower:
            return None
        if not records:
            return ()
        start_offset = wanted.asked.fetch_offset
        if not partition.log.segments.may_have_aborted(start_offset):
            return ()
        return tuple(
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in partition.aborted_transactions(start_offset, end_offset_of(records))
        )

    @property
    def _chooses_replicas(self) -> bool:
        return (
            not self.is_follower
            and self.version >= FIRST_VERSION_FROM_FOLLOWERS
            and self.broker.config.replica_selector_class == RACK_AWARE_REPLICA_SELECTOR
        )

    def _preferred_read_replica(self, partition: Partition, wanted: CachedPartition) -> int | None:
        if not self._chooses_replicas or not partition.is_leader:
            return None
        brokers = self.broker.metadata.brokers
        racks = {broker_id: node.rack for broker_id, node in brokers.items()}
        followers = [
            ReplicaView(
                broker_id=follower.broker_id,
                log_start_offset=follower.log_start_offset,
                log_end_offset=follower.log_end_offset,
                caught_up_ms=follower.last_caught_up_ms,
                rack=racks.get(follower.broker_id),
            )
            for follower in map(partition.remote_replica, partition.metadata.isr)
            if follower is not None
        ]
        return preferred_read_replica(
            followers,
            leader_rack=racks.get(self.broker.config.node_id),
            client_rack=self.rack_id,
            fetch_offset=wanted.asked.fetch_offset,
        )
