"""The replica of a partition on this broker, as leader or follower.

A partition checks leadership, appends and reads records as leader, and appends records and
truncates its log as follower. Invariants: a replica is either a leader or a follower. Before it
has received metadata, it is neither. Consumers read below the high watermark, and followers read up
to the log end offset. A follower whose log contains a leader epoch truncates according to leader
epochs, never to its high watermark (KIP-101, KIP-279). Source: Kafka's `Partition`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.frozen import dataclass
from broker_ref.log.append import AppendOrigin, AppendResult
from broker_ref.log.batch import HEADER_BYTES, unpack_header
from broker_ref.log.control import EndTransactionMarker
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.transaction_index import AbortedTransaction
from broker_ref.log.verification_guards import VerificationGuard
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.high_watermark import HighWatermark
from broker_ref.replication.leader import Leader, ReplicaContext
from broker_ref.replication.partition_state import CommittedPartitionState, PartitionState
from broker_ref.replication.remote_replica import UNKNOWN_OFFSET, RemoteReplica

NO_EPOCH: Final = -1
"""The leader epoch in requests from clients that do not know the leader epoch."""

CONSUMER: Final = -1
"""The replica id in fetch requests from consumers."""

logger = logging.getLogger(__name__)


class FetchIsolation(Enum):
    """The isolation level of a read, which determines its upper bound."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergingEpoch:
    """The largest leader epoch that the logs of a leader and a follower both contain.

    `end_offset` is the end offset of this epoch in the leader's log. The leader returns the epoch
    to a follower whose log diverges from the leader's log.
    """

    epoch: int
    end_offset: int


class PartitionKey(NamedTuple):
    """The purgatory key for the delayed operations of a partition.

    The key is a tuple, because tuples are hashed quickly and each fetch request hashes many keys.
    """

    topic: str
    partition: int


class Partition:
    """The replica of a partition on this broker.

    `on_change` is called when delayed operations must be checked. If the log can no longer be
    written to, the replica resigns and then calls `on_storage_failure` with the reason.
    """

    def __init__(
        self,
        *,
        context: ReplicaContext,
        metadata: PartitionMetadata,
        log: PartitionLog,
        min_insync_replicas: int,
        high_watermark: int,
        on_change: Callable[[], None],
        on_storage_failure: Callable[[str], None],
    ) -> None:
        """Create a replica that is neither leader nor follower until `apply_metadata` is called.

        `high_watermark` is the checkpointed high watermark.
        """
        self.log = log
        self.key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        self.metadata = metadata
        self._context = context
        self._min_insync_replicas = min_insync_replicas
        self._high_watermark = HighWatermark(log, high_watermark)
        self._on_change = on_change
        self._on_storage_failure = on_storage_failure
        self._leader: Leader | None = None
        self._is_follower = False
        self._leadership_count = 0

    def apply_metadata(self, metadata: PartitionMetadata, now_ms: int) -> None:
        """Become leader or follower (`Partition.makeLeader`, `Partition.makeFollower`).

        A new leader stores the start offset of its leader epoch before any append. Raises:
        StorageError, LogError.
        """
        self.metadata = metadata
        if metadata.leader != self._context.broker_id:
            if self._leader is not None:
                self._leader.resign()
            self._leader = None
            self._is_follower = True
        elif self._leader is not None:
            self._leader.apply_metadata(metadata, now_ms)
        else:
            self._is_follower = False
            self._leadership_count += 1
            self._leader = Leader(
                context=self._context,
                log=self.log,
                high_watermark=self._high_watermark,
                min_insync_replicas=self._min_insync_replicas,
                metadata=metadata,
                on_change=self._on_change,
                now_ms=now_ms,
            )
            self._leader.maybe_increment_high_watermark(now_ms)
        self._on_change()

    def resign(self) -> None:
        """Stop being leader or follower.

        The replica resigns when it is removed or when its storage has failed.
        """
        if self._leader is not None:
            self._leader.resign()
        self._leader = None
        self._is_follower = False
        self._on_change()

    @property
    def leader_epoch(self) -> int:
        """Return the current leader epoch."""
        return self.metadata.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Return whether this broker is the leader of the partition."""
        return self._leader is not None

    @property
    def is_follower(self) -> bool:
        """Return whether this broker is a follower of the partition."""
        return self._is_follower

    @property
    def leadership_count(self) -> int:
        """Return how many times this broker has become leader.

        If this number has not changed since an append, the appended records were not truncated.
        """
        return self._leadership_count

    @property
    def high_watermark(self) -> int:
        """Return the offset below which all records are known to be committed."""
        return self._high_watermark.offset

    @property
    def last_stable_offset(self) -> int:
        """Return the offset below which read_committed consumers can read (KIP-98)."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def min_insync_replicas(self) -> int:
        """Return `min.insync.replicas`, which may exceed the number of replicas."""
        return self._min_insync_replicas

    @min_insync_replicas.setter
    def min_insync_replicas(self, replicas: int) -> None:
        self._min_insync_replicas = replicas
        if self._leader is not None:
            self._leader.min_insync_replicas = replicas
            self._leader.maybe_increment_high_watermark(self._context.clock())
            self._on_change()

    @property
    def partition_state(self) -> PartitionState | None:
        """Return the ISR and its pending change on a leader, or None on a follower."""
        return self._leader.state if self._leader is not None else None

    def remote_replica(self, replica_id: int) -> RemoteReplica | None:
        """Return the state that the leader tracks for a follower, or None.

        Return None if this replica is a follower, or if the broker has no replica of the partition.
        """
        return self._leader.remote(replica_id) if self._leader is not None else None

    # Checks

    def check_leader(self, current_leader_epoch: int) -> None:
        """Raise an error if this broker is not the leader or the client sent another leader epoch.

        FENCED_LEADER_EPOCH means that the client's metadata is stale. UNKNOWN_LEADER_EPOCH means
        that the broker's metadata is stale (KIP-320).
        """
        self._require_epoch(current_leader_epoch)
        self._require_leader()

    def check_replica(self, current_leader_epoch: int) -> None:
        """Check the leader epoch as in `check_leader`, but accept followers (KIP-392)."""
        self._require_epoch(current_leader_epoch)
        if not self._is_follower:
            self._require_leader()

    def check_fetcher(self, replica_id: int, replica_epoch: int, current_leader_epoch: int) -> None:
        """Perform the checks of `check_leader`, and check the follower that sent a fetch request.

        The follower must be a replica of the partition, and its broker epoch must be current.
        """
        self.check_leader(current_leader_epoch)
        if replica_id >= 0:
            self._require_follower(replica_id, replica_epoch, current_leader_epoch)

    # Leading

    def maybe_start_transaction_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
    ) -> VerificationGuard | None:
        """Return the verification guard that the first `append` in a transaction requires.

        Before the append, the caller must verify the transaction with its coordinator
        (`Partition.maybeStartTransactionVerification`). Return None if the transaction is already
        open in this partition. `supports_epoch_bump` means that the producer uses a new epoch for
        each transaction (transaction version 2). Raises: LogError(INVALID_PRODUCER_EPOCH) for a
        fenced producer.
        """
        self._require_leader()
        return self.log.producers.maybe_start_transaction_verification(
            producer_id,
            producer_epoch,
            base_sequence,
            supports_epoch_bump=supports_epoch_bump,
            now_ms=self._context.clock(),
        )

    def append(
        self,
        records: bytes,
        *,
        all_replicas: bool,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append a batch as the leader. Raises: ApiError, LogError.

        If `all_replicas` is true (acks=all), at least `min.insync.replicas` replicas must be in
        sync. This minimum is limited to the number of replicas. `guard` is the result of
        `maybe_start_transaction_verification`.
        """
        return self._append_as_leader(
            lambda: self.log.append(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                guard=guard,
            ),
            all_replicas=all_replicas,
            now_ms=now_ms,
        )

    def append_end_marker(
        self,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> AppendResult:
        """Append a transaction marker with acks=all.

        Raises: LogError(INVALID_PRODUCER_EPOCH), LogError(TRANSACTION_COORDINATOR_FENCED), or the
        same errors as `append`.
        """
        return self._append_as_leader(
            lambda: self.log.append_end_marker(
                marker,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_version=transaction_version,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
            ),
            all_replicas=True,
            now_ms=now_ms,
        )

    def _append_as_leader(
        self, append: Callable[[], AppendResult], *, all_replicas: bool, now_ms: int
    ) -> AppendResult:
        leader = self._require_leader()
        if all_replicas and leader.is_under_min_isr:
            raise ApiError(
                ErrorCode.not_enough_replicas,
                f"The size of the current ISR {sorted(leader.state.isr)} is insufficient to "
                f"satisfy the min.isr requirement of {leader.effective_min_isr} for partition "
                f"{self._name}",
            )
        with self._storage_errors():
            result = append()
        if not result.is_duplicate:
            leader.maybe_increment_high_watermark(now_ms)
            self._on_change()
        return result

    def check_enough_replicas_reach_offset(
        self, required_offset: int, leadership_count: int
    ) -> ErrorCode | None:
        """Return the result of an append with acks=all, or None if the append is still pending.

        `required_offset` is the end offset of the appended batch. The result is NONE,
        NOT_ENOUGH_REPLICAS_AFTER_APPEND if the ISR has become too small, or NOT_LEADER_OR_FOLLOWER
        if the broker has lost leadership since the append
        (`Partition.checkEnoughReplicasReachOffset`).
        """
        leader = self._leader
        if leader is None or leadership_count != self._leadership_count:
            return ErrorCode.not_leader_or_follower
        if self.high_watermark < required_offset:
            return None
        if len(leader.state.maximal_isr) < leader.effective_min_isr:
            return ErrorCode.not_enough_replicas_after_append
        return ErrorCode.none

    def read(
        self,
        fetch_offset: int,
        *,
        isolation: FetchIsolation,
        replica_id: int = CONSUMER,
        last_fetched_epoch: int,
        max_bytes: int,
        at_least_one_batch: bool,
    ) -> bytes | DivergingEpoch:
        """Return complete batches from `fetch_offset` up to the upper bound of the read.

        If `last_fetched_epoch` shows that the log of the follower diverges, the point of divergence
        is returned instead (KIP-595). Raises: LogError(OFFSET_OUT_OF_RANGE) if `fetch_offset` is
        below the log start offset or above the log end offset.
        """
        if last_fetched_epoch >= 0:
            diverging = self._divergence(fetch_offset, last_fetched_epoch)
            if diverging is not None:
                return diverging
        return self.log.read(
            fetch_offset,
            end_offset=self.end_offset_for(isolation, replica_id),
            max_bytes=max_bytes,
            at_least_one_batch=at_least_one_batch,
        )

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap a range of offsets. The end is exclusive.

        A read_committed consumer discards the records of these transactions. Raises: LogError.
        """
        return self.log.aborted_transactions(start_offset, end_offset)

    def end_offset_for(self, isolation: FetchIsolation, replica_id: int = CONSUMER) -> int:
        """Return the upper bound of a read.

        Followers can read up to the log end offset. For consumers, the upper bound depends on the
        isolation level.
        """
        if replica_id >= 0:
            return self.log.log_end_offset
        if isolation is FetchIsolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def update_follower_fetch_state(
        self,
        replica_id: int,
        replica_epoch: int,
        *,
        fetch_offset: int,
        now_ms: int,
        log_start_offset: int = UNKNOWN_OFFSET,
    ) -> None:
        """Update the state of a follower whose log contains all records below `fetch_offset`.

        Call this method after a successful read. The update may increase the high watermark and
        expand the ISR (`Partition.updateFollowerFetchState`).
        """
        leader = self._require_leader()
        leader.update_follower_fetch_state(
            self._require_follower(replica_id, replica_epoch, NO_EPOCH),
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=replica_epoch,
            now_ms=now_ms,
        )

    def is_in_sync(self, broker_id: int) -> bool:
        """Return whether this broker leads the partition and `broker_id` is in the ISR."""
        return self._leader is not None and broker_id in self._leader.state.isr

    def in_sync_follower(self, replica_id: int) -> RemoteReplica | None:
        """Return the state of a follower that is in the ISR.

        Return None if the follower is not in the ISR, or if a change to the ISR is pending.
        """
        state = self.partition_state
        if isinstance(state, CommittedPartitionState) and replica_id in state.isr:
            return self.remote_replica(replica_id)
        return None

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """Propose removing lagging followers from the ISR, if this replica is the leader."""
        if self._leader is not None:
            self._leader.maybe_shrink_isr(now_ms)

    def delete_records_before(self, offset: int) -> int:
        """Increase the log start offset to `offset` and return the new log start offset.

        An offset of -1 means the high watermark. A DeleteRecords request is complete when the low
        watermark has reached the new log start offset. Raises: ApiError(POLICY_VIOLATION),
        ApiError(OFFSET_OUT_OF_RANGE).
        """
        self._require_leader()
        if self.log.config.compact and not self.log.config.delete:
            raise ApiError(
                ErrorCode.policy_violation,
                f"Records of {self._name} cannot be deleted, because the topic has cleanup.policy="
                "compact. Add delete to cleanup.policy.",
            )
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"Offset {offset} of {self._name} is not between 0 and the high watermark "
                f"{self.high_watermark}.",
            )
        with self._storage_errors():
            self.log.delete_records_before(target)
        self._on_change()
        return target

    @property
    def low_watermark(self) -> int:
        """Return the lowest log start offset of all live replicas.

        Raises: ApiError(NOT_LEADER_OR_FOLLOWER).
        """
        return self._require_leader().low_watermark

    # Following

    def append_as_follower(
        self,
        records: bytes,
        *,
        leader_high_watermark: int,
        leader_log_start_offset: int,
        now_ms: int,
    ) -> None:
        """Append records from the leader, and apply the leader's high watermark and start offset.

        Raises: LogError if the records are corrupt or the storage fails.
        """
        with self._storage_errors():
            if records:
                self._make_room_for_first_batch(records, now_ms)
                self.log.append_as_follower(records, now_ms=now_ms)
        if self._high_watermark.maybe_update(leader_high_watermark) or records:
            self._on_change()
        if self.log.log_start_offset < leader_log_start_offset <= self.high_watermark:
            with self._storage_errors():
                self.log.delete_records_before(leader_log_start_offset)
            self._on_change()

    def _make_room_for_first_batch(self, records: bytes, now_ms: int) -> None:
        """Move the start of an empty log back to the base offset of the first fetched batch.

        After DeleteRecords, the leader's log start offset may be within a batch. The follower still
        replicates the entire batch. After the append, the log start offset is increased again.
        """
        if len(records) < HEADER_BYTES:
            return  # The append rejects an incomplete header.
        base_offset = unpack_header(records).base_offset
        if base_offset < self.log.log_end_offset == self.log.log_start_offset:
            self.truncate_fully_and_start_at(base_offset, now_ms=now_ms)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Resign if the storage of the log fails."""
        try:
            yield
        except LogError:
            if self.log.storage_error is not None:
                self.resign()
                self._on_storage_failure(self.log.storage_error)
            raise

    def truncate_to_divergence(self, diverging: DivergingEpoch, *, now_ms: int) -> None:
        """Truncate the log to the offset at which it diverges from the leader's log.

        The log is truncated to the end offset of the diverging leader epoch. If the end offsets in
        the two logs differ, the lower end offset is used. If this log does not contain the leader
        epoch, it is truncated to the end of the previous leader epoch, and the next fetch continues
        the comparison.
        """
        end_offset = self.log.log_end_offset
        epoch, own_end = self.log.leader_epochs.end_offset_for_epoch(
            diverging.epoch, log_end_offset=end_offset
        )
        if own_end < 0:
            target = min(diverging.end_offset, end_offset)
        elif epoch != diverging.epoch:
            target = min(own_end, end_offset)
        else:
            target = min(own_end, diverging.end_offset, end_offset)
        self.truncate_to(target, now_ms=now_ms)

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Truncate the log to `offset`, and limit the high watermark to the new end offset.

        Raises: LogError.
        """
        level = logging.WARNING if offset < self.high_watermark else logging.INFO
        logger.log(
            level,
            "Truncating %s from offset %d to offset %d. Its high watermark is %d",
            self._name, self.log.log_end_offset, offset, self.high_watermark,
        )  # fmt: skip
        with self._storage_errors():
            self.log.truncate_to(offset, now_ms=now_ms)
        self._high_watermark.maybe_update(self.high_watermark)
        self._on_change()

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Delete all records and start at `offset`.

        A follower calls this method if the leader's log starts after the end of its own log.
        Raises: LogError.
        """
        logger.warning(
            "Deleting all records of %s. The empty log will start at offset %d. Previously, the "
            "log start offset was %d, and the log end offset was %d",
            self._name, offset, self.log.log_start_offset, self.log.log_end_offset,
        )  # fmt: skip
        with self._storage_errors():
            self.log.truncate_fully_and_start_at(offset, now_ms=now_ms)
        self._high_watermark.truncate_fully_and_start_at(offset)
        self._on_change()

    def _require_leader(self) -> Leader:
        if self._leader is None:
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"Broker {self._context.broker_id} is not the leader of partition "
                f"{self._name}. The leader is broker {self.metadata.leader}.",
            )
        return self._leader

    def _require_epoch(self, current_leader_epoch: int) -> None:
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        older = current_leader_epoch < self.leader_epoch
        raise ApiError(
            ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch,
            f"The leader epoch of partition {self._name} is {self.leader_epoch}, not "
            f"{current_leader_epoch}.",
        )

    def _require_follower(
        self, replica_id: int, replica_epoch: int, current_leader_epoch: int
    ) -> RemoteReplica:
        remote = self.remote_replica(replica_id)
        if remote is None:
            known = current_leader_epoch >= 0
            raise ApiError(
                ErrorCode.unknown_leader_epoch if known else ErrorCode.not_leader_or_follower,
                f"Broker {replica_id} has no replica of partition {self._name}.",
            )
        if self._context.brokers.is_stale(replica_id, replica_epoch):
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"Broker {replica_id} sent a fetch request for {self._name} with the stale broker "
                f"epoch {replica_epoch}. The broker has since registered with a new epoch.",
            )
        return remote

    def _divergence(self, fetch_offset: int, last_fetched_epoch: int) -> DivergingEpoch | None:
        epoch, end_offset = self.log.leader_epochs.end_offset_for_epoch(
            last_fetched_epoch, log_end_offset=self.log.log_end_offset
        )
        if epoch < 0 or end_offset < 0:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"Partition {self._name} has no leader epoch {last_fetched_epoch}.",
            )
        if fetch_offset < self.log.log_start_offset:
            raise LogError(
                ErrorCode.offset_out_of_range,
                f"Offset {fetch_offset} of {self._name} is below the log start offset "
                f"{self.log.log_start_offset}.",
            )
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return DivergingEpoch(epoch=epoch, end_offset=end_offset)
        return None

    @property
    def _name(self) -> str:
        return f"{self.metadata.topic}-{self.metadata.partition}"


class PendingReplication:
    """An append with acks=all that is waiting for replication up to `required_offset`."""

    __slots__ = ("_leadership_count", "partition", "required_offset")

    def __init__(self, *, partition: Partition, required_offset: int) -> None:
        """Store the leadership count of the partition, to detect later leader changes.

        Create this object immediately after the append, before the leader can change.
        """
        self.partition = partition
        self.required_offset = required_offset
        self._leadership_count = partition.leadership_count

    @property
    def outcome(self) -> ErrorCode | None:
        """Return the result of the append, or None if it is pending.

        See `Partition.check_enough_replicas_reach_offset`.
        """
        return self.partition.check_enough_replicas_reach_offset(
            self.required_offset, self._leadership_count
        )

    @property
    def is_replicated(self) -> bool:
        """Return whether enough in-sync replicas have replicated the batch."""
        return self.outcome is ErrorCode.none
