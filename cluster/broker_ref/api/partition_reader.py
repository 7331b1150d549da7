"""Reads one partition for a Fetch request.

Different rules apply to reads by consumers and reads by followers. The fetch state of a follower is
updated only after a read has shown that the fetch offset is valid. Invariant: a request updates the
fetch state at most once, before the request waits for more bytes. Source:
`kafka.server.ReplicaManager.readFromLog` and `kafka.cluster.Partition.fetchRecords`.
"""

from __future__ import annotations

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
    PartitionResponse,
)
from broker_ref.broker_configs import RACK_AWARE_REPLICA_SELECTOR
from broker_ref.frozen import dataclass
from broker_ref.log.batch import end_offset_of
from broker_ref.log.errors import LogError
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import ZERO_UUID
from broker_ref.replication.fetch_session_cache import CachedPartition
from broker_ref.replication.partition import DivergingEpoch, FetchIsolation, Partition
from broker_ref.replication.replica_selector import ReplicaView, preferred_read_replica
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.security.authorizer import AuthHelper

READ_COMMITTED: Final = 1

FIRST_VERSION_FROM_FOLLOWERS: Final = 11
FIRST_VERSION_WITH_CURRENT_LEADER: Final = 16
LAST_VERSION_WITHOUT_STORAGE_ERROR: Final = 5

LEADER_MOVED_ERRORS: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
"""Error codes for which the response contains the current leader (KIP-951)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReader:
    """Reads partitions on behalf of the client that sent the request."""

    broker: Broker
    version: int
    replica_id: int
    replica_epoch: int
    isolation: FetchIsolation
    rack_id: str
    listener: str
    auth: AuthHelper

    @classmethod
    def of(cls, broker: Broker, call: Call, request: FetchRequest) -> PartitionReader:
        """Create the reader for a request."""
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
            listener=call.listener,
            auth=call.auth,
        )

    @property
    def is_follower(self) -> bool:
        """Return whether the client is a follower."""
        return self.replica_id >= 0

    def may_read(self, topic: str) -> bool:
        """Return whether the client may read a topic. A follower may read all topics or none."""
        if self.is_follower:
            return self.auth.allows(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return self.auth.allows(AclOperation.READ, ResourceType.TOPIC, topic)

    def locate(self, cached: CachedPartition) -> Partition:
        """Return the partition to read.

        Before Fetch version 11, consumers can read only from leaders. Followers always read from
        leaders.

        Raises: ApiError if this broker cannot serve the partition or the leader epoch in the
        request does not match.
        """
        assert cached.topic is not None
        requested = cached.requested
        partition = self.broker.replicas.partition(cached.topic, requested.partition)
        if cached.topic_id not in (ZERO_UUID, partition.metadata.topic_id):
            raise ApiError(
                ErrorCode.inconsistent_topic_id,
                f"The topic id of {cached.topic}-{requested.partition} is "
                f"{partition.metadata.topic_id}, but the client uses the topic id "
                f"{cached.topic_id}. Start a new fetch session.",
            )
        if self.is_follower:
            partition.check_fetcher(
                self.replica_id, self.replica_epoch, requested.current_leader_epoch
            )
        elif self.version < FIRST_VERSION_FROM_FOLLOWERS:
            partition.check_leader(requested.current_leader_epoch)
        else:
            partition.check_replica(requested.current_leader_epoch)
        return partition

    def end_offset(self, partition: Partition) -> int:
        """Return the end offset of the records that the client may read."""
        return partition.end_offset_for(self.isolation, self.replica_id)

    def read(
        self, cached: CachedPartition, *, max_bytes: int, at_least_one_batch: bool
    ) -> PartitionResponse:
        """Return the record batches starting at the fetch offset, or an error."""
        try:
            partition = self.locate(cached)
            preferred = self._preferred_read_replica(partition, cached)
            if preferred is not None:
                return self._response(partition, cached, preferred_read_replica=preferred)
            found = partition.read(
                cached.requested.fetch_offset,
                isolation=self.isolation,
                replica_id=self.replica_id,
                last_fetched_epoch=cached.requested.last_fetched_epoch,
                max_bytes=max_bytes,
                at_least_one_batch=at_least_one_batch,
            )
        except (ApiError, LogError) as error:
            return self.error_response(cached, error.error_code)
        if isinstance(found, DivergingEpoch):
            diverging = EpochEndOffset(epoch=found.epoch, end_offset=found.end_offset)
            return self._response(partition, cached, diverging_epoch=diverging)
        if found and self.is_throttled(partition):
            found = b""
        try:
            return self._response(partition, cached, records=found)
        except LogError as error:
            return self.error_response(cached, error.error_code)

    def is_throttled(self, partition: Partition) -> bool:
        """Return whether replication to the follower is throttled (`shouldLeaderThrottle`)."""
        quota = self.broker.replicas.leader_quota
        return (
            self.is_follower
            and quota.is_throttled(partition.key.topic, partition.key.partition)
            and not partition.is_in_sync(self.replica_id)
            and quota.is_quota_exceeded()
        )

    def record_sent(self, cached: CachedPartition, size_bytes: int) -> None:
        """Count the bytes that a throttled follower receives."""
        quota = self.broker.replicas.leader_quota
        topic, index = cached.topic, cached.requested.partition
        if self.is_follower and topic is not None and quota.is_throttled(topic, index):
            quota.record(size_bytes)

    def record_position(
        self, cached: CachedPartition, response: PartitionResponse, now_ms: int
    ) -> None:
        """Update the fetch state of a follower whose fetch offset is valid."""
        if self.is_follower and not response.must_respond:
            self.update_follower_fetch_state(self.locate(cached), cached, now_ms)

    def update_follower_fetch_state(
        self, partition: Partition, cached: CachedPartition, now_ms: int
    ) -> None:
        """Update the fetch state of a follower in the given partition."""
        partition.update_follower_fetch_state(
            self.replica_id,
            self.replica_epoch,
            fetch_offset=cached.requested.fetch_offset,
            log_start_offset=cached.requested.log_start_offset,
            now_ms=now_ms,
        )

    def has_nothing_new(self, partition: Partition, cached: CachedPartition) -> bool:
        """Return True only if a read would return no records, no error and no diverging epoch.

        If the result is False, a read may still return nothing.
        """
        requested = cached.requested
        return (
            requested.fetch_offset == self.end_offset(partition)
            and requested.last_fetched_epoch in (-1, partition.log.leader_epochs.latest)
            and not self._chooses_replicas
        )

    def error_response(self, cached: CachedPartition, error_code: ErrorCode) -> PartitionResponse:
        """Return an error response, with the current leader if leadership has changed."""
        leader = NO_LEADER
        if (
            self.version >= FIRST_VERSION_WITH_CURRENT_LEADER
            and error_code in LEADER_MOVED_ERRORS
            and cached.topic is not None
        ):
            leader = current_leader(self.broker, cached.topic, cached.requested.partition)
        if (
            error_code is ErrorCode.kafka_storage_error
            and self.version <= LAST_VERSION_WITHOUT_STORAGE_ERROR
        ):
            error_code = ErrorCode.not_leader_or_follower
        return PartitionResponse(
            partition_index=cached.requested.partition, error_code=error_code, current_leader=leader
        )

    def _response(
        self,
        partition: Partition,
        cached: CachedPartition,
        *,
        records: bytes = b"",
        diverging_epoch: EpochEndOffset = NOT_DIVERGING,
        preferred_read_replica: int = -1,
    ) -> PartitionResponse:
        return PartitionResponse(
            partition_index=cached.requested.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            diverging_epoch=diverging_epoch,
            preferred_read_replica=preferred_read_replica,
            aborted_transactions=self._aborted(partition, cached, records),
            records=records,
        )

    def _aborted(
        self, partition: Partition, cached: CachedPartition, records: bytes
    ) -> tuple[AbortedTransaction, ...] | None:
        """Return the aborted transactions in the records' offset range (read_committed only)."""
        if self.isolation is FetchIsolation.READ_UNCOMMITTED or self.is_follower:
            return None
        if not records:
            return ()
        start_offset = cached.requested.fetch_offset
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

    def _preferred_read_replica(self, partition: Partition, cached: CachedPartition) -> int | None:
        if not self._chooses_replicas or not partition.is_leader:
            return None
        brokers = self.broker.metadata.brokers
        racks = {
            broker_id: node.rack
            for broker_id, node in brokers.items()
            if not node.is_fenced and node.endpoint(self.listener) is not None
        }
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
            fetch_offset=cached.requested.fetch_offset,
        )
