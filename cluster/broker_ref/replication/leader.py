"""The leader of a partition: its followers, the high watermark and the in-sync replicas.

The leader tracks the offsets of followers, increases the high watermark, and proposes that
followers join or leave the ISR. Invariants: the high watermark is the lowest log end offset of the
replicas in the maximal ISR (`partition_state`) and of replicas that are about to join it. The high
watermark increases only if at least `min.insync.replicas` replicas are in sync, and never
decreases. A replica can join the ISR only if its log contains all committed records and all records
from before this leader epoch. Source: Kafka's `Partition`: maybeIncrementLeaderHW, maybeExpandIsr,
maybeShrinkIsr.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.frozen import dataclass
from broker_ref.log.partition_log import PartitionLog
from broker_ref.replication.alter_partition_manager import (
    AlterPartitionManager,
    IsrChange,
    IsrMember,
    IsrOutcome,
)
from broker_ref.replication.broker_states import BrokerStates
from broker_ref.replication.high_watermark import HighWatermark
from broker_ref.replication.partition_state import (
    CommittedPartitionState,
    PartitionState,
    Pending,
    PendingExpandIsr,
    PendingShrinkIsr,
    Reaction,
    reaction_to,
)
from broker_ref.replication.remote_replica import RemoteReplica

UNKNOWN_BROKER_EPOCH: Final = -1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """The parts of the broker that replicas use. `clock` returns the time of the current event."""

    broker_id: int
    broker_epoch: Callable[[], int]
    replica_lag_time_max_ms: int
    alter_partition_manager: AlterPartitionManager
    brokers: BrokerStates
    clock: Callable[[], int]


class Leader:
    """The leader of one partition, from its election until it resigns.

    `on_change` is called when the high watermark, the ISR or a follower's log start offset changes.
    """

    def __init__(
        self,
        *,
        context: ReplicaContext,
        log: PartitionLog,
        high_watermark: HighWatermark,
        min_insync_replicas: int,
        metadata: PartitionMetadata,
        on_change: Callable[[], None],
        now_ms: int,
    ) -> None:
        """Become leader, and store the start offset of the leader epoch before the first append."""
        self.min_insync_replicas = min_insync_replicas
        self._context = context
        self._log = log
        self._high_watermark = high_watermark
        self._on_change = on_change
        self._remotes: dict[int, RemoteReplica] = {}
        self._state: PartitionState = CommittedPartitionState(isr=frozenset())
        self._apply(metadata)
        self._begin_epoch(is_new_leader=True, now_ms=now_ms)

    @property
    def state(self) -> PartitionState:
        """Return the in-sync replicas and the pending change to the ISR."""
        return self._state

    @property
    def partition_epoch(self) -> int:
        """Return the latest partition epoch from the metadata and the controller's responses."""
        return self._partition_epoch

    @property
    def effective_min_isr(self) -> int:
        """Return `min.insync.replicas`, limited to the number of replicas."""
        return min(self.min_insync_replicas, len(self._remotes) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        """Return whether fewer replicas are in sync than acks=all requires."""
        return len(self._state.isr) < self.effective_min_isr

    def remote(self, replica_id: int) -> RemoteReplica | None:
        """Return the state of a follower, or None if the broker `replica_id` is not a follower."""
        return self._remotes.get(replica_id)

    @property
    def low_watermark(self) -> int:
        """Return the lowest log start offset of this replica and all live followers (KIP-107)."""
        return min(
            [self._log.log_start_offset]
            + [
                remote.log_start_offset
                for remote in self._remotes.values()
                if self._context.brokers.is_alive(remote.broker_id)
            ]
        )

    def apply_metadata(self, metadata: PartitionMetadata, now_ms: int) -> None:
        """Apply new metadata in which this broker is still the leader.

        Metadata that was already received in an AlterPartition response is ignored. If the leader
        has proposed another ISR change after that response, the change remains pending, because the
        controller may still accept it.
        """
        is_new_epoch = metadata.leader_epoch > self._metadata.leader_epoch
        if not is_new_epoch and metadata.partition_epoch <= self._partition_epoch:
            return
        self._apply(metadata)
        if is_new_epoch:
            self._begin_epoch(is_new_leader=False, now_ms=now_ms)
        self.maybe_increment_high_watermark(now_ms)

    def maybe_increment_high_watermark(self, now_ms: int) -> bool:
        """Increase the high watermark if possible; return whether it has changed."""
        if self.is_under_min_isr:
            return False
        end_offset = self._log.log_end_offset
        target = end_offset
        for remote in self._remotes.values():
            if remote.log_end_offset < target and (
                remote.broker_id in self._state.maximal_isr
                or self._is_about_to_join(remote, end_offset, now_ms)
            ):
                target = remote.log_end_offset
        moved = self._high_watermark.maybe_increment(target)
        if moved:
            self._on_change()
        return moved

    def update_follower_fetch_state(
        self,
        remote: RemoteReplica,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        """Update the state of a follower whose log contains all records below `fetch_offset`."""
        end_offset_before = remote.log_end_offset
        update_log_start_offset = remote.log_start_offset != log_start_offset
        remote.update_fetch_state(
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            leader_end_offset=self._log.log_end_offset,
            now_ms=now_ms,
        )
        self._maybe_expand_isr(remote)
        if end_offset_before != fetch_offset:
            self.maybe_increment_high_watermark(now_ms)
        if update_log_start_offset:
            self._on_change()

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """Propose removing lagging followers from the ISR (`replica.lag.time.max.ms`)."""
        state = self._state
        if not isinstance(state, CommittedPartitionState):
            return
        own = self._context.broker_id
        leaving = frozenset(
            replica_id
            for replica_id in state.isr
            if replica_id != own and not self._is_in_time(replica_id, now_ms)
        )
        if not leaving:
            return
        logger.info(
            "%s-%d: proposing to remove replicas from the ISR %s. Replicas %s have not caught "
            "up for %d ms. The high watermark is %d, and the log end offset is %d",
            self._metadata.topic, self._metadata.partition, sorted(state.isr), sorted(leaving),
            self._context.replica_lag_time_max_ms, self._high_watermark.offset,
            self._log.log_end_offset,
        )  # fmt: skip
        self._propose(PendingShrinkIsr(leaving=leaving, committed=state))

    def resign(self) -> None:
        """Stop being the leader; outcomes of pending ISR changes are ignored."""
        self._state = CommittedPartitionState(isr=frozenset())

    def _apply(self, metadata: PartitionMetadata) -> None:
        own = self._context.broker_id
        self._metadata = metadata
        self._partition_epoch = metadata.partition_epoch
        self._state = CommittedPartitionState(isr=frozenset(metadata.isr))
        self._remotes = {
            replica_id: self._remotes.get(replica_id) or RemoteReplica(broker_id=replica_id)
            for replica_id in metadata.replicas
            if replica_id != own
        }

    def _begin_epoch(self, *, is_new_leader: bool, now_ms: int) -> None:
        self._epoch_start_offset = self._log.log_end_offset
        self._log.leader_epochs.assign(self._metadata.leader_epoch, self._epoch_start_offset)
        for remote in self._remotes.values():
            remote.reset(
                in_sync=remote.broker_id in self._metadata.isr,
                is_new_leader=is_new_leader,
                leader_end_offset=self._epoch_start_offset,
                now_ms=now_ms,
            )

    def _is_about_to_join(self, remote: RemoteReplica, end_offset: int, now_ms: int) -> bool:
        """Return whether the high watermark must wait for a follower that is not in the ISR.

        The high watermark waits for followers that have caught up. If it did not wait, it might
        always be ahead of a follower, and the follower could never join the ISR.
        """
        return remote.is_caught_up(
            leader_end_offset=end_offset,
            lag_time_max_ms=self._context.replica_lag_time_max_ms,
            now_ms=now_ms,
        ) and self._context.brokers.may_join_isr(remote.broker_id, remote.broker_epoch)

    def _is_in_time(self, replica_id: int, now_ms: int) -> bool:
        remote = self._remotes.get(replica_id)
        return remote is not None and remote.is_caught_up(
            leader_end_offset=self._log.log_end_offset,
            lag_time_max_ms=self._context.replica_lag_time_max_ms,
            now_ms=now_ms,
        )

    def _maybe_expand_isr(self, remote: RemoteReplica) -> None:
        """Propose adding a follower to the ISR, if the follower may join."""
        state = self._state
        if (
            isinstance(state, CommittedPartitionState)
            and remote.broker_id not in state.isr
            and remote.log_end_offset >= self._high_watermark.offset
            and remote.log_end_offset >= self._epoch_start_offset
            and self._context.brokers.may_join_isr(remote.broker_id, remote.broker_epoch)
        ):
            self._propose(PendingExpandIsr(joining=remote.broker_id, committed=state))

    def _propose(self, pending: Pending) -> None:
        self._state = pending
        change = IsrChange(
            topic_id=self._metadata.topic_id,
            partition=self._metadata.partition,
            leader_epoch=self._metadata.leader_epoch,
            partition_epoch=self._partition_epoch,
            new_isr=tuple(self._member(replica_id) for replica_id in sorted(pending.proposed_isr)),
        )
        self._send(pending, change)

    def _send(self, pending: Pending, change: IsrChange) -> None:
        self._context.alter_partition_manager.submit(
            change, lambda outcome: self._handle_outcome(pending, change, outcome)
        )

    def _member(self, replica_id: int) -> IsrMember:
        """Return the ISR member with this broker id, including its broker epoch.

        The broker epoch of a follower is -1 until the follower has fetched from this leader.
        """
        remote = self._remotes.get(replica_id)
        epoch = remote.broker_epoch if remote is not None else None
        if replica_id == self._context.broker_id:
            epoch = self._context.broker_epoch()
        return IsrMember(
            broker_id=replica_id,
            broker_epoch=UNKNOWN_BROKER_EPOCH if epoch is None else epoch,
        )

    def _handle_outcome(self, pending: Pending, change: IsrChange, outcome: IsrOutcome) -> None:
        if self._state is not pending:
            return  # Newer metadata has replaced this change.
        if outcome.error_code is not ErrorCode.none:
            self._handle_alter_partition_error(pending, change, outcome.error_code)
        elif (
            outcome.leader_epoch == self._metadata.leader_epoch
            and outcome.partition_epoch >= self._partition_epoch
        ):
            self._state = CommittedPartitionState(isr=frozenset(outcome.isr))
            self._partition_epoch = outcome.partition_epoch
            self.maybe_increment_high_watermark(self._context.clock())
            # The ISR may be too small for appends with acks=all that are waiting for replication.
            self._on_change()

    def _handle_alter_partition_error(
        self, pending: Pending, change: IsrChange, error_code: ErrorCode
    ) -> None:
        reaction = reaction_to(error_code)
        logger.info(
            "The controller rejected the ISR %s for %s-%d with %s. The leader will %s",
            sorted(pending.proposed_isr), self._metadata.topic, self._metadata.partition,
            error_code.name, reaction.value,
        )  # fmt: skip
        match reaction:
            case Reaction.RESET:
                self._state = pending.committed
            case Reaction.AWAIT_METADATA:
                pass
            case Reaction.RETRY:
                self._send(pending, change)
