"""One replica of a partition on this broker: its log and what it knows as the leader.

Purpose: leadership checks, the append and read rules of a leader, and the high watermark.
Invariant: the high watermark is the least log end offset over the in-sync replicas, and clients
see nothing at or above it. What it must not know: requests, and how leaders are chosen.
Source: Kafka's `Partition`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.log.partition_log import AppendResult, PartitionLog
from broker_ref.protocol.errors import ApiError

NO_EPOCH: Final = -1
"""What a client sends that does not know the leader epoch."""


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


@dataclass(slots=True, kw_only=True)
class RemoteReplica:
    """A follower. Times in milliseconds."""

    broker_id: int
    log_start_offset: int
    log_end_offset: int
    last_caught_up_ms: int


class Partition:
    """The replica of a partition on broker `broker_id`."""

    def __init__(
        self,
        *,
        broker_id: int,
        metadata: PartitionMetadata,
        log: PartitionLog,
        min_insync_replicas: int,
    ) -> None:
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self.key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        self._broker_id = broker_id
        self._remotes: dict[int, RemoteReplica] = {}
        self.follow(metadata)

    def follow(self, metadata: PartitionMetadata) -> None:
        """Take the partition's new leader, epoch and replicas in.

        A new leader notes at once where its epoch begins, before anything is appended in it.
        """
        self.metadata = metadata
        if metadata.leader == self._broker_id and self.log.leader_epochs.latest != (
            metadata.leader_epoch
        ):
            self.log.leader_epochs.assign(metadata.leader_epoch, self.log.log_end_offset)

    @property
    def leader_epoch(self) -> int:
        """The epoch in which the present leader leads."""
        return self.metadata.leader_epoch

    @property
    def high_watermark(self) -> int:
        """One past the last offset that every in-sync replica has."""
        return min(
            [self.log.log_end_offset]
            + [
                (
                    self._remotes[replica].log_end_offset
                    if replica in self._remotes
                    else self.log.log_start_offset
                )
                for replica in self.metadata.isr
                if replica != self._broker_id
            ]
        )

    @property
    def last_stable_offset(self) -> int:
        """What read_committed readers see below: the high watermark, without transactions."""
        return self.high_watermark

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.metadata.leader == self._broker_id

    def end_offset_for(self, isolation: Isolation, replica_id: int = -1) -> int:
        """Where a reader's sight ends: a replica's at the log end."""
        if replica_id >= 0:
            return self.log.log_end_offset
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark

    def check_leader(self, current_leader_epoch: int) -> None:
        """Refuse as `_require_epoch` does, and where this broker does not lead."""
        self._require_epoch(current_leader_epoch)
        if self.metadata.leader != self._broker_id:
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"Broker {self._broker_id} does not lead partition {self._name}; broker "
                f"{self.metadata.leader} does.",
            )

    def check_replica(self, current_leader_epoch: int) -> None:
        """As `check_leader`, but a follower will do: for consumers that read there (KIP-392)."""
        self._require_epoch(current_leader_epoch)

    def remote_replica(self, replica_id: int) -> RemoteReplica | None:
        """What is known of a follower; None where there is none, or this broker does not lead."""
        return self._remotes.get(replica_id)

    def _require_epoch(self, current_leader_epoch: int) -> None:
        """Refuse where the client's leader epoch is not the partition's; -1 is not compared.

        FENCED_LEADER_EPOCH tells a client that it has old metadata, UNKNOWN_LEADER_EPOCH that
        this broker has (KIP-320).
        """
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return
        older = current_leader_epoch < self.leader_epoch
        raise ApiError(
            ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch,
            f"The leader epoch of partition {self._name} is {self.leader_epoch}, not "
            f"{current_leader_epoch}.",
        )

    def append(self, records: bytes, *, all_replicas: bool, now_ms: int) -> AppendResult:
        """Append as the leader; LogError where the records are refused.

        `all_replicas` (acks=all) needs `min.insync.replicas` to be in sync.
        """
        self.check_leader(NO_EPOCH)
        if all_replicas and len(self.metadata.isr) < self.min_insync_replicas:
            raise ApiError(
                ErrorCode.not_enough_replicas,
                f"The size of the current ISR {list(self.metadata.isr)} is insufficient to "
                f"satisfy the min.isr requirement of {self.min_insync_replicas} for partition "
                f"{self._name}",
            )
        return self.log.append(records, leader_epoch=self.leader_epoch, now_ms=now_ms)

    def check_fetcher(self, replica_id: int, replica_epoch: int, current_leader_epoch: int) -> None:
        """Refuse as `check_leader` does, and brokers that have no replica of the partition."""
        del replica_epoch
        self.check_leader(current_leader_epoch)
        if replica_id < 0 or (
            replica_id in self.metadata.replicas and not self._is_own(replica_id)
        ):
            return
        known = current_leader_epoch >= 0
        raise ApiError(
            ErrorCode.unknown_leader_epoch if known else ErrorCode.not_leader_or_follower,
            f"Broker {replica_id} has no replica of partition {self._name} to be fetched for.",
        )

    def read(
        self,
        fetch_offset: int,
        *,
        isolation: Isolation,
        replica_id: int = -1,
        last_fetched_epoch: int,
        max_bytes: int,
        at_least_one_batch: bool,
    ) -> bytes | DivergingEpoch:
        """Whole batches that a client may see from `fetch_offset` on.

        OFFSET_OUT_OF_RANGE below the log start or above the log end offset; between what the
        client may see and the log end, nothing. Where `last_fetched_epoch` shows that the reader
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

    def follower_fetched(
        self,
        replica_id: int,
        replica_epoch: int,
        *,
        fetch_offset: int,
        now_ms: int,
        log_start_offset: int = -1,
    ) -> None:
        """Note that a follower has everything below `fetch_offset`."""
        del replica_epoch
        self._remotes[replica_id] = RemoteReplica(
            broker_id=replica_id,
            log_start_offset=log_start_offset,
            log_end_offset=fetch_offset,
            last_caught_up_ms=now_ms,
        )

    def _divergence(self, fetch_offset: int, last_fetched_epoch: int) -> DivergingEpoch | None:
        epoch, end_offset = self.log.leader_epochs.end_offset_for_epoch(
            last_fetched_epoch, log_end_offset=self.log.log_end_offset
        )
        if epoch < 0 or end_offset < 0:
            raise ApiError(
                ErrorCode.offset_out_of_range,
                f"Partition {self._name} has no epoch {last_fetched_epoch} to fetch after.",
            )
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return DivergingEpoch(epoch=epoch, end_offset=end_offset)
        return None

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to `offset`, -1 for the high watermark; returns it."""
        self.check_leader(NO_EPOCH)
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
        return self.log.delete_records_before(target)

    def _is_own(self, replica_id: int) -> bool:
        return replica_id == self._broker_id

    @property
    def _name(self) -> str:
        return f"{self.metadata.topic}-{self.metadata.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A batch in the leader's log, and the high watermark at which every replica has it."""

    partition: Partition
    required_offset: int

    @property
    def is_replicated(self) -> bool:
        """Whether every in-sync replica has the batch."""
        return self.partition.high_watermark >= self.required_offset
