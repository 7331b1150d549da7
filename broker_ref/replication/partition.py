"""One replica of a partition on this broker: its log, and its part as leader or follower.

Purpose: leadership checks, the append and read rules of a leader, what a follower does with what
it fetched. Invariants: a replica is a leader, a follower, or nothing before the first metadata;
clients see nothing at or above the high watermark, followers everything up to the log end; a
follower truncates by leader epochs, never by its high watermark, while it knows any epoch
(KIP-101, KIP-279). What it must not know: requests, and how leaders are chosen.
Source: Kafka's `Partition`.
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
from broker_ref.replication.isr import IsrState
from broker_ref.replication.leader import Leader, Surroundings
from broker_ref.replication.remote_replica import UNKNOWN_OFFSET, RemoteReplica

NO_EPOCH: Final = -1
"""What a client sends that does not know the leader epoch."""

CONSUMER: Final = -1
"""The replica id of a fetcher that is no broker."""

logger = logging.getLogger(__name__)


class Isolation(Enum):
    """How far a reader sees."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergingEpoch:
    """The reader's log is not this one: the largest epoch of both, and where it ends here."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKey:
    """What purgatory watches for a partition."""

    topic: str
    partition: int


class Partition:
    """The replica of a partition.

    `on_change` is called when those who wait are to look again, `on_storage_failure`, with the
    reason, when the log takes no more writes: the replica has resigned then.
    """

    def __init__(
        self,
        *,
        surroundings: Surroundings,
        metadata: PartitionMetadata,
        log: PartitionLog,
        min_insync_replicas: int,
        high_watermark: int,
        on_change: Callable[[], None],
        on_storage_failure: Callable[[str], None],
    ) -> None:
        """A replica that neither leads nor follows until `follow` says so.

        `high_watermark` is the one that was checkpointed.
        """
        self.log = log
        self.key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        self.metadata = metadata
        self._surroundings = surroundings
        self._min_insync_replicas = min_insync_replicas
        self._high_watermark = HighWatermark(log, high_watermark)
        self._on_change = on_change
        self._on_storage_failure = on_storage_failure
        self._leader: Leader | None = None
        self._is_follower = False
        self._tenure = 0

    def follow(self, metadata: PartitionMetadata, now_ms: int) -> None:
        """Take the partition's leader, epoch and replicas in; StorageError, LogError from the log.

        A new leader notes at once where its epoch begins, before anything is appended in it.
        """
        self.metadata = metadata
        if metadata.leader != self._surroundings.broker_id:
            if self._leader is not None:
                self._leader.resign()
            self._leader = None
            self._is_follower = True
        elif self._leader is not None:
            self._leader.follow(metadata, now_ms)
        else:
            self._is_follower = False
            self._tenure += 1
            self._leader = Leader(
                surroundings=self._surroundings,
                log=self.log,
                high_watermark=self._high_watermark,
                min_insync_replicas=self._min_insync_replicas,
                metadata=metadata,
                on_change=self._on_change,
                now_ms=now_ms,
            )
            self._leader.advance_high_watermark(now_ms)
        self._on_change()

    def resign(self) -> None:
        """Neither lead nor follow any more: the replica goes, or its storage has failed."""
        if self._leader is not None:
            self._leader.resign()
        self._leader = None
        self._is_follower = False
        self._on_change()

    @property
    def leader_epoch(self) -> int:
        """The epoch in which the present leader leads."""
        return self.metadata.leader_epoch

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self._leader is not None

    @property
    def is_follower(self) -> bool:
        """Whether this broker is to fetch the partition from its leader, if there is one."""
        return self._is_follower

    @property
    def tenure(self) -> int:
        """How often this broker began to lead; what was appended in one is not cut within it."""
        return self._tenure

    @property
    def high_watermark(self) -> int:
        """One past the last offset that is known to be committed."""
        return self._high_watermark.offset

    @property
    def last_stable_offset(self) -> int:
        """What read_committed readers see below: no undecided transaction, nothing uncommitted."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def min_insync_replicas(self) -> int:
        """As configured; no more are asked for than there are replicas."""
        return self._min_insync_replicas

    @min_insync_replicas.setter
    def min_insync_replicas(self, replicas: int) -> None:
        self._min_insync_replicas = replicas
        if self._leader is not None:
            self._leader.min_insync_replicas = replicas
            self._leader.advance_high_watermark(self._surroundings.clock())
            self._on_change()

    @property
    def isr_state(self) -> IsrState | None:
        """The in-sync replicas as the leader knows them; None where this broker does not lead."""
        return self._leader.state if self._leader is not None else None

    def remote_replica(self, replica_id: int) -> RemoteReplica | None:
        """What is known of a follower; None where there is none, or this broker does not lead."""
        return self._leader.remote(replica_id) if self._leader is not None else None

    # Checks

    def check_leader(self, current_leader_epoch: int) -> None:
        """Refuse where this broker does not lead, or the client's epoch is another.

        FENCED_LEADER_EPOCH tells a client that it has old metadata, UNKNOWN_LEADER_EPOCH that
        this broker has (KIP-320).
        """
        self._require_epoch(current_leader_epoch)
        self._require_leader()

    def check_replica(self, current_leader_epoch: int) -> None:
        """As `check_leader`, but a follower will do: for consumers that read there (KIP-392)."""
        self._require_epoch(current_leader_epoch)
        if not self._is_follower:
            self._require_leader()

    def check_fetcher(self, replica_id: int, replica_epoch: int, current_leader_epoch: int) -> None:
        """Refuse as `check_leader` does, and brokers that have no replica, or had another life."""
        self.check_leader(current_leader_epoch)
        if replica_id >= 0:
            self._require_follower(replica_id, replica_epoch, current_leader_epoch)

    # Leading

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        supports_epoch_bump: bool,
    ) -> VerificationGuard | None:
        """What `append` is to be given for a transactional batch once its coordinator knows of it.

        None where the transaction is open here: it has been known then. `supports_epoch_bump`:
        each transaction of the client has an epoch of its own (transaction version 2).
        INVALID_PRODUCER_EPOCH for a producer that has been fenced here.
        """
        self._require_leader()
        return self.log.producers.begin_verification(
            producer_id,
            producer_epoch,
            base_sequence,
            supports_epoch_bump=supports_epoch_bump,
            now_ms=self._surroundings.clock(),
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
        """Append as the leader; LogError where the records are refused.

        `all_replicas` (acks=all) needs `min.insync.replicas` to be in sync, or as many as there
        are replicas. `guard` is that of `begin_verification`, for who begins a transaction.
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
        """Append, under acks=all, how a producer's transaction has ended.

        Refuses with INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, and as `append` does.
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
            leader.advance_high_watermark(now_ms)
            self._on_change()
        return result

    def replication_outcome(self, required_offset: int, tenure: int) -> ErrorCode | None:
        """What acks=all is answered for a batch that ends at `required_offset`; None: not yet.

        NONE, NOT_ENOUGH_REPLICAS_AFTER_APPEND where the ISR has become too small, or
        NOT_LEADER_OR_FOLLOWER where this broker no longer leads as it did when it appended.
        """
        leader = self._leader
        if leader is None or tenure != self._tenure:
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
        isolation: Isolation,
        replica_id: int = CONSUMER,
        last_fetched_epoch: int,
        max_bytes: int,
        at_least_one_batch: bool,
    ) -> bytes | DivergingEpoch:
        """Whole batches that the reader may see from `fetch_offset` on.

        OFFSET_OUT_OF_RANGE below the log start or above the log end offset; between what the
        reader may see and the log end, nothing. Where `last_fetched_epoch` shows that the reader
        has records that this log has not, only where they part (KIP-595).
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
        """Those with an offset from `start_offset` on, below `end_offset`: what a read_committed
        reader of that range is to be told. Raises: LogError of the storage.
        """
        return self.log.aborted_transactions(start_offset, end_offset)

    def end_offset_for(self, isolation: Isolation, replica_id: int = CONSUMER) -> int:
        """Below what a reader sees: a replica all there is, a consumer what is committed."""
        if replica_id >= 0:
            return self.log.log_end_offset
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def follower_fetched(
        self,
        replica_id: int,
        replica_epoch: int,
        *,
        fetch_offset: int,
        now_ms: int,
        log_start_offset: int = UNKNOWN_OFFSET,
    ) -> None:
        """Note that a follower has everything below `fetch_offset`, after a read that did not
        diverge and was in range.

        Raises the high watermark, proposes that the follower joins the in-sync replicas.
        """
        leader = self._require_leader()
        leader.follower_fetched(
            self._require_follower(replica_id, replica_epoch, NO_EPOCH),
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=replica_epoch,
            now_ms=now_ms,
        )

    def shrink_isr(self, now_ms: int) -> None:
        """Propose that followers which lag leave the in-sync replicas; nothing where not leader."""
        if self._leader is not None:
            self._leader.shrink(now_ms)

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to `offset`, -1 for the high watermark.

        Returns where it is to begin everywhere: the deletion is done when the low watermark has
        come there. POLICY_VIOLATION, OFFSET_OUT_OF_RANGE.
        """
        self._require_leader()
        if not self.log.config.delete:
            raise ApiError(
                ErrorCode.policy_violation,
                f"Records of {self._name} cannot be deleted: its cleanup.policy is "
                f"{','.join(self.log.config.cleanup_policy)}, without delete.",
            )
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"Offset {offset} of {self._name} is not within 0 and the high watermark "
                f"{self.high_watermark}.",
            )
        with self._storage_errors():
            self.log.delete_records_before(target)
        self._on_change()
        return target

    @property
    def low_watermark(self) -> int:
        """The least log start offset of the replicas that are alive; NOT_LEADER_OR_FOLLOWER."""
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
        """Append what the leader has, and take over its high watermark and log start offset.

        Raises: LogError where the records are damaged or storage fails.
        """
        with self._storage_errors():
            if records:
                self._make_room_for_first_batch(records, now_ms)
                self.log.append_as_follower(records, now_ms=now_ms)
        if self._high_watermark.follow(leader_high_watermark) or records:
            self._on_change()
        if self.log.log_start_offset < leader_log_start_offset <= self.high_watermark:
            with self._storage_errors():
                self.log.delete_records_before(leader_log_start_offset)

    def _make_room_for_first_batch(self, records: bytes, now_ms: int) -> None:
        """Let an empty log begin with the whole of a batch of which the leader's start is within.

        DeleteRecords leaves such a batch; the log start offset is raised again after the append.
        """
        if len(records) < HEADER_BYTES:
            return  # The log refuses it.
        base_offset = unpack_header(records).base_offset
        if base_offset < self.log.log_end_offset == self.log.log_start_offset:
            self.restart_at(base_offset, now_ms=now_ms)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """A replica whose log takes no more writes has no part in the partition any more."""
        try:
            yield
        except LogError:
            if self.log.storage_error is not None:
                self.resign()
                self._on_storage_failure(self.log.storage_error)
            raise

    def truncate_to_divergence(self, diverging: DivergingEpoch, *, now_ms: int) -> None:
        """Cut the log where it parts from the leader's, as far as the epochs of both tell.

        To the end of the leader's epoch, the lesser of here and there. Where this log has not
        that epoch, to the end of the one before it: the next fetch asks again from there.
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
        """Cut the log, and the high watermark with it. Raises: LogError of the storage."""
        level = logging.WARNING if offset < self.high_watermark else logging.INFO
        logger.log(
            level,
            "Truncating %s from %d to %d; its high watermark is %d",
            self._name, self.log.log_end_offset, offset, self.high_watermark,
        )  # fmt: skip
        with self._storage_errors():
            self.log.truncate_to(offset, now_ms=now_ms)
        self._high_watermark.follow(self.high_watermark)
        self._on_change()

    def restart_at(self, offset: int, *, now_ms: int) -> None:
        """Drop all records and go on at `offset`, where the leader has nothing of this log.

        Raises: LogError of the storage.
        """
        logger.warning(
            "Truncating %s fully, to go on at %d: it had offsets %d to %d",
            self._name, offset, self.log.log_start_offset, self.log.log_end_offset,
        )  # fmt: skip
        with self._storage_errors():
            self.log.truncate_fully_and_start_at(offset, now_ms=now_ms)
        self._high_watermark.restart_at(offset)
        self._on_change()

    def _require_leader(self) -> Leader:
        if self._leader is None:
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"Broker {self._surroundings.broker_id} does not lead partition {self._name}; "
                f"broker {self.metadata.leader} does.",
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
                f"Broker {replica_id} has no replica of partition {self._name} to be fetched for.",
            )
        if self._surroundings.brokers.is_stale(replica_id, replica_epoch):
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"The fetch of {self._name} is from broker {replica_id} as it was in its broker "
                f"epoch {replica_epoch}; it has registered anew since.",
            )
        return remote

    def _divergence(self, fetch_offset: int, last_fetched_epoch: int) -> DivergingEpoch | None:
        epoch, end_offset = self.log.leader_epochs.end_offset_for_epoch(
            last_fetched_epoch, log_end_offset=self.log.log_end_offset
        )
        if epoch < 0 or end_offset < 0:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"Partition {self._name} has no epoch {last_fetched_epoch} to fetch after.",
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


class Appended:
    """A batch in the leader's log that acks=all waits for: below `required_offset`."""

    __slots__ = ("_tenure", "partition", "required_offset")

    def __init__(self, *, partition: Partition, required_offset: int) -> None:
        """To be made in the step of the append: it remembers under which leadership that was."""
        self.partition = partition
        self.required_offset = required_offset
        self._tenure = partition.tenure

    @property
    def outcome(self) -> ErrorCode | None:
        """What the producer is answered (see `Partition.replication_outcome`); None: not yet."""
        return self.partition.replication_outcome(self.required_offset, self._tenure)

    @property
    def is_replicated(self) -> bool:
        """Whether every in-sync replica has the batch, and they are enough."""
        return self.outcome is ErrorCode.none
