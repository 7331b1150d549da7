"""The replica of a partition on this broker, as leader or follower.

Purpose: the leadership checks, a leader's appends and reads, and a follower's appends and
truncations. Invariants: a replica is a leader, a follower, or neither before the first metadata;
clients read below the high watermark, followers up to the log end; a follower that knows any leader
epoch truncates by epochs, never by its high watermark (KIP-101, KIP-279). Must not know: requests,
elections. Source: Kafka's `Partition`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import PartitionMetadata
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
from broker_ref.replication.partition_state import PartitionState
from broker_ref.replication.remote_replica import UNKNOWN_OFFSET, RemoteReplica

NO_EPOCH: Final = -1
"""The leader epoch of a client that does not know it."""

CONSUMER: Final = -1
"""The replica id of a consumer."""

logger = logging.getLogger(__name__)


class FetchIsolation(Enum):
    """The upper bound of a read."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergingEpoch:
    """The reader's log diverges: the largest common epoch and its end offset in this log."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKey:
    """The key of a partition's delayed operations in the purgatory."""

    topic: str
    partition: int


class Partition:
    """The replica of a partition.

    `on_change` is called when delayed operations should be checked. `on_storage_failure` is called
    with the reason when the log rejects writes; the replica has resigned then.
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
        """Create a replica that is neither leader nor follower before `apply_metadata`.

        `high_watermark` is the checkpointed one.
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
        """Become leader or follower (`Partition.makeLeader`, `makeFollower`).

        A new leader records the start offset of its epoch before any append. Raise StorageError or
        LogError of the log.
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
        """Stop leading and following, because the replica is removed or its storage has failed."""
        if self._leader is not None:
            self._leader.resign()
        self._leader = None
        self._is_follower = False
        self._on_change()

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch."""
        return self.metadata.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self._leader is not None

    @property
    def is_follower(self) -> bool:
        """Whether this broker fetches the partition from its leader, if there is one."""
        return self._is_follower

    @property
    def leadership_count(self) -> int:
        """How often this broker became leader. Within one leadership, appends are not truncated."""
        return self._leadership_count

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are known to be committed."""
        return self._high_watermark.offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which read_committed readers see (KIP-98)."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def min_insync_replicas(self) -> int:
        """The configured value, which may exceed the number of replicas."""
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
        """The leader's ISR state; None on a follower."""
        return self._leader.state if self._leader is not None else None

    def remote_replica(self, replica_id: int) -> RemoteReplica | None:
        """Return a follower's state; None on a follower or for an unknown replica."""
        return self._leader.remote(replica_id) if self._leader is not None else None

    # Checks

    def check_leader(self, current_leader_epoch: int) -> None:
        """Raise an error if this broker does not lead or the leader epochs differ (KIP-320).

        FENCED_LEADER_EPOCH: the client's metadata is older. UNKNOWN_LEADER_EPOCH: the broker's is.
        """
        self._require_epoch(current_leader_epoch)
        self._require_leader()

    def check_replica(self, current_leader_epoch: int) -> None:
        """Check the epoch as `check_leader`, but accept a follower, for consumers (KIP-392)."""
        self._require_epoch(current_leader_epoch)
        if not self._is_follower:
            self._require_leader()

    def check_fetcher(self, replica_id: int, replica_epoch: int, current_leader_epoch: int) -> None:
        """Check as `check_leader`; also refuse brokers without a replica or with another epoch."""
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
        """Return the guard that `append` needs to begin a transaction.

        The caller first verifies the transaction with its coordinator
        (`Partition.maybeStartTransactionVerification`). None means that the transaction is already
        open here. `supports_epoch_bump`: each transaction of the client has its own epoch
        (transaction version 2). Raise INVALID_PRODUCER_EPOCH for a fenced producer.
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
        """Append as leader; raise LogError where the records are invalid.

        `all_replicas` (acks=all) requires `min.insync.replicas` in-sync replicas, limited to the
        number of replicas. `guard` is the result of `maybe_start_transaction_verification`.
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
        """Append a transaction's end marker with acks=all.

        Raise INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or what `append` raises.
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
        """Return the result of acks=all for a batch that ends at `required_offset`, None if open.

        NONE, NOT_ENOUGH_REPLICAS_AFTER_APPEND where the ISR became too small, or
        NOT_LEADER_OR_FOLLOWER where the leadership of the append is over
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
        """Return whole visible batches from `fetch_offset` on.

        OFFSET_OUT_OF_RANGE below the log start or above the log end; nothing between the visible
        end and the log end. Where `last_fetched_epoch` shows that the reader's log diverges, return
        only the point of divergence (KIP-595).
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
        """Return the aborted transactions with offsets in [`start_offset`, `end_offset`).

        A read_committed reader of that range needs them. Raise LogError of the storage.
        """
        return self.log.aborted_transactions(start_offset, end_offset)

    def end_offset_for(self, isolation: FetchIsolation, replica_id: int = CONSUMER) -> int:
        """Return the upper bound of a read: the log end for a replica, else by isolation."""
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
        """Record that a follower has everything below `fetch_offset`, after a successful read.

        This may increase the high watermark and expand the ISR
        (`Partition.updateFollowerFetchState`).
        """
        leader = self._require_leader()
        leader.update_follower_fetch_state(
            self._require_follower(replica_id, replica_epoch, NO_EPOCH),
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=replica_epoch,
            now_ms=now_ms,
        )

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """Propose to remove lagging followers from the ISR; do nothing on a follower."""
        if self._leader is not None:
            self._leader.maybe_shrink_isr(now_ms)

    def delete_records_before(self, offset: int) -> int:
        """Increase the log start offset to `offset`; -1 means the high watermark.

        Return the new log start offset. The deletion is complete when the low watermark reaches it.
        Raise POLICY_VIOLATION or OFFSET_OUT_OF_RANGE.
        """
        self._require_leader()
        if not self.log.config.delete:
            raise ApiError(
                ErrorCode.policy_violation,
                f"Records of {self._name} cannot be deleted: its cleanup.policy "
                f"{','.join(self.log.config.cleanup_policy)} does not contain delete.",
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
        """Return the lowest log start offset of live replicas; raise NOT_LEADER_OR_FOLLOWER."""
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
        """Append the leader's records and apply its high watermark and log start offset.

        Raise LogError where the records are corrupt or the storage fails.
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

    def _make_room_for_first_batch(self, records: bytes, now_ms: int) -> None:
        """Lower the start of an empty log to the base offset of a batch that covers it.

        The leader's log start may be inside a batch after DeleteRecords. The append is followed by
        an increase of the log start offset.
        """
        if len(records) < HEADER_BYTES:
            return  # The append rejects it.
        base_offset = unpack_header(records).base_offset
        if base_offset < self.log.log_end_offset == self.log.log_start_offset:
            self.truncate_fully_and_start_at(base_offset, now_ms=now_ms)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Resign if the log's storage fails."""
        try:
            yield
        except LogError:
            if self.log.storage_error is not None:
                self.resign()
                self._on_storage_failure(self.log.storage_error)
            raise

    def truncate_to_divergence(self, diverging: DivergingEpoch, *, now_ms: int) -> None:
        """Truncate the log where it diverges from the leader's.

        Truncate to the end offset of the leader's epoch, the lower one of both logs. If this log
        lacks that epoch, truncate to the end of the previous one and let the next fetch compare.
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
        """Truncate the log and its high watermark. Raise LogError of the storage."""
        level = logging.WARNING if offset < self.high_watermark else logging.INFO
        logger.log(
            level,
            "Truncating %s from %d to %d; its high watermark is %d",
            self._name, self.log.log_end_offset, offset, self.high_watermark,
        )  # fmt: skip
        with self._storage_errors():
            self.log.truncate_to(offset, now_ms=now_ms)
        self._high_watermark.maybe_update(self.high_watermark)
        self._on_change()

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Delete all records and restart at `offset`, because the leader's log is disjoint.

        Raise LogError of the storage.
        """
        logger.warning(
            "Truncating %s fully and starting at %d; its offsets were %d to %d",
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
                f"The fetch of {self._name} by broker {replica_id} has the stale broker epoch "
                f"{replica_epoch}. The broker has registered again since.",
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
                f"Offset {fetch_offset} of {self._name} is below its log start offset "
                f"{self.log.log_start_offset}.",
            )
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return DivergingEpoch(epoch=epoch, end_offset=end_offset)
        return None

    @property
    def _name(self) -> str:
        return f"{self.metadata.topic}-{self.metadata.partition}"


class PendingReplication:
    """An append that waits for replication (acks=all) up to `required_offset`."""

    __slots__ = ("_leadership_count", "partition", "required_offset")

    def __init__(self, *, partition: Partition, required_offset: int) -> None:
        """Create it in the step of the append, because it stores the current leadership."""
        self.partition = partition
        self.required_offset = required_offset
        self._leadership_count = partition.leadership_count

    @property
    def outcome(self) -> ErrorCode | None:
        """Return the result (see `Partition.check_enough_replicas_reach_offset`), None if open."""
        return self.partition.check_enough_replicas_reach_offset(
            self.required_offset, self._leadership_count
        )

    @property
    def is_replicated(self) -> bool:
        """Return whether enough in-sync replicas have the batch."""
        return self.outcome is ErrorCode.none
