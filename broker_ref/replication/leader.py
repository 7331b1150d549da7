"""What a leader does about its followers: high watermark, in-sync replicas.

Purpose: take in how far followers are, raise the high watermark, propose that followers join or
leave the in-sync replicas. Invariants: the high watermark is raised to the least log end offset
over the maximal ISR and those about to join it, only while `min.insync.replicas` are in sync, and
never falls; a replica joins only when it has everything committed and everything from before this
leader's epoch. What it must not know: clients, and how the controller is reached.
Source: Kafka's `Partition`: maybeIncrementLeaderHW, maybeExpandIsr, maybeShrinkIsr.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import PartitionMetadata
from broker_ref.log.partition_log import PartitionLog
from broker_ref.replication.broker_states import BrokerStates
from broker_ref.replication.high_watermark import HighWatermark
from broker_ref.replication.isr import (
    Committed,
    IsrState,
    Pending,
    PendingExpand,
    PendingShrink,
    Reaction,
    reaction_to,
)
from broker_ref.replication.isr_changes import IsrChange, IsrChanges, IsrMember, IsrOutcome
from broker_ref.replication.remote_replica import RemoteReplica

UNKNOWN_BROKER_EPOCH: Final = -1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the replicas of a broker need of it; `clock` gives the time of the present step."""

    broker_id: int
    broker_epoch: Callable[[], int]
    replica_lag_time_max_ms: int
    isr_changes: IsrChanges
    brokers: BrokerStates
    clock: Callable[[], int]


class Leader:
    """The leader of one partition, from when it begins to lead until it stops.

    `on_change` is called when the high watermark or a follower's log start has moved.
    """

    def __init__(
        self,
        *,
        surroundings: Surroundings,
        log: PartitionLog,
        high_watermark: HighWatermark,
        min_insync_replicas: int,
        metadata: PartitionMetadata,
        on_change: Callable[[], None],
        now_ms: int,
    ) -> None:
        """Begin to lead: note where the epoch begins before anything is appended in it."""
        self.min_insync_replicas = min_insync_replicas
        self._surroundings = surroundings
        self._log = log
        self._high_watermark = high_watermark
        self._on_change = on_change
        self._remotes: dict[int, RemoteReplica] = {}
        self._state: IsrState = Committed(isr=frozenset())
        self._take(metadata)
        self._begin_epoch(is_new_leader=True, now_ms=now_ms)

    @property
    def state(self) -> IsrState:
        """The in-sync replicas, and the change of them that is under way."""
        return self._state

    @property
    def partition_epoch(self) -> int:
        """The version of the partition's state that is known, from metadata or the controller."""
        return self._partition_epoch

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but no more than there are replicas."""
        return min(self.min_insync_replicas, len(self._remotes) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        """Whether fewer replicas are in sync than acks=all needs."""
        return len(self._state.isr) < self.effective_min_isr

    def remote(self, replica_id: int) -> RemoteReplica | None:
        """A follower; None where that broker has no replica."""
        return self._remotes.get(replica_id)

    @property
    def low_watermark(self) -> int:
        """The least log start offset over this and the followers that are alive (KIP-107)."""
        return min(
            [self._log.log_start_offset]
            + [
                remote.log_start_offset
                for remote in self._remotes.values()
                if self._surroundings.brokers.is_alive(remote.broker_id)
            ]
        )

    def follow(self, metadata: PartitionMetadata, now_ms: int) -> None:
        """Take new metadata in under which this broker still leads.

        What is known already, from the controller's answer to a proposal, changes nothing: a
        proposal made since then stays pending, for the controller may be about to accept it.
        """
        is_new_epoch = metadata.leader_epoch > self._metadata.leader_epoch
        if not is_new_epoch and metadata.partition_epoch <= self._partition_epoch:
            return
        self._take(metadata)
        if is_new_epoch:
            self._begin_epoch(is_new_leader=False, now_ms=now_ms)
        self.advance_high_watermark(now_ms)

    def advance_high_watermark(self, now_ms: int) -> bool:
        """Raise the high watermark as far as it may be; whether it moved."""
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
        moved = self._high_watermark.raise_to(target)
        if moved:
            self._on_change()
        return moved

    def follower_fetched(
        self,
        remote: RemoteReplica,
        *,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        now_ms: int,
    ) -> None:
        """The follower has everything below `fetch_offset`."""
        end_offset_before = remote.log_end_offset
        log_start_moved = remote.log_start_offset != log_start_offset
        remote.fetched(
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            leader_end_offset=self._log.log_end_offset,
            now_ms=now_ms,
        )
        self._expand(remote)
        if end_offset_before != fetch_offset:
            self.advance_high_watermark(now_ms)
        if log_start_moved:
            self._on_change()

    def shrink(self, now_ms: int) -> None:
        """Propose that those leave who have not caught up for `replica.lag.time.max.ms`."""
        state = self._state
        if not isinstance(state, Committed):
            return
        own = self._surroundings.broker_id
        leaving = frozenset(
            replica_id
            for replica_id in state.isr
            if replica_id != own and not self._is_in_time(replica_id, now_ms)
        )
        if not leaving:
            return
        logger.info(
            "Shrinking the ISR of %s-%d from %s by %s, which have not caught up for %d ms; high "
            "watermark %d, log end offset %d",
            self._metadata.topic, self._metadata.partition, sorted(state.isr), sorted(leaving),
            self._surroundings.replica_lag_time_max_ms, self._high_watermark.offset,
            self._log.log_end_offset,
        )  # fmt: skip
        self._propose(PendingShrink(leaving=leaving, committed=state))

    def resign(self) -> None:
        """Stop leading: outcomes of what was proposed do not matter any more."""
        self._state = Committed(isr=frozenset())

    def _take(self, metadata: PartitionMetadata) -> None:
        own = self._surroundings.broker_id
        self._metadata = metadata
        self._partition_epoch = metadata.partition_epoch
        self._state = Committed(isr=frozenset(metadata.isr))
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
        """Whether the high watermark is to wait for a follower out of sync that is caught up.

        Else it might run ahead of the follower for ever, which then could never join.
        """
        return remote.is_caught_up(
            leader_end_offset=end_offset,
            lag_time_max_ms=self._surroundings.replica_lag_time_max_ms,
            now_ms=now_ms,
        ) and self._surroundings.brokers.may_join_isr(remote.broker_id, remote.broker_epoch)

    def _is_in_time(self, replica_id: int, now_ms: int) -> bool:
        remote = self._remotes.get(replica_id)
        return remote is not None and remote.is_caught_up(
            leader_end_offset=self._log.log_end_offset,
            lag_time_max_ms=self._surroundings.replica_lag_time_max_ms,
            now_ms=now_ms,
        )

    def _expand(self, remote: RemoteReplica) -> None:
        """Propose that a follower joins, where it is not in sync and has all that it must have."""
        state = self._state
        if (
            isinstance(state, Committed)
            and remote.broker_id not in state.isr
            and remote.log_end_offset >= self._high_watermark.offset
            and remote.log_end_offset >= self._epoch_start_offset
            and self._surroundings.brokers.may_join_isr(remote.broker_id, remote.broker_epoch)
        ):
            self._propose(PendingExpand(joining=remote.broker_id, committed=state))

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
        self._surroundings.isr_changes.propose(
            change, lambda outcome: self._decided(pending, change, outcome)
        )

    def _member(self, replica_id: int) -> IsrMember:
        """A member that has not fetched from this leader yet has no known epoch: -1."""
        remote = self._remotes.get(replica_id)
        epoch = remote.broker_epoch if remote is not None else None
        if replica_id == self._surroundings.broker_id:
            epoch = self._surroundings.broker_epoch()
        return IsrMember(
            broker_id=replica_id,
            broker_epoch=UNKNOWN_BROKER_EPOCH if epoch is None else epoch,
        )

    def _decided(self, pending: Pending, change: IsrChange, outcome: IsrOutcome) -> None:
        if self._state is not pending:
            return  # Metadata has come in between: what is true now is in it.
        if outcome.error_code is not ErrorCode.none:
            self._refused(pending, change, outcome.error_code)
        elif (
            outcome.leader_epoch == self._metadata.leader_epoch
            and outcome.partition_epoch >= self._partition_epoch
        ):
            self._state = Committed(isr=frozenset(outcome.isr))
            self._partition_epoch = outcome.partition_epoch
            self.advance_high_watermark(self._surroundings.clock())
            # Who waits for acks=all may have lost the replicas that it needs.
            self._on_change()

    def _refused(self, pending: Pending, change: IsrChange, error_code: ErrorCode) -> None:
        reaction = reaction_to(error_code)
        logger.info(
            "The ISR %s proposed for %s-%d is refused with %s: %s",
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
