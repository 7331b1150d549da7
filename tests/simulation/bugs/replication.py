"""Bugs of replication: truncation, high watermark, in-sync replicas and elections."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api import k02_list_offsets
from broker_ref.controller import controller, elections
from broker_ref.log.errors import LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.replication.leader import Leader
from broker_ref.replication.partition import DivergingEpoch, Partition
from broker_ref.replication.partition_state import PendingExpandIsr, PendingShrinkIsr
from broker_ref.replication.replica_fetcher import ReplicaFetcher
from broker_ref.replication.replica_manager import ReplicaManager
from tests.simulation.bugs.bug import Bug


def _truncate_to_own_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    def truncate(self: Any, partition: Partition) -> None:
        if partition.high_watermark < partition.log.log_end_offset:
            partition.truncate_to(partition.high_watermark, now_ms=self._clock())

    monkeypatch.setattr(ReplicaFetcher, "_truncate_without_epochs", truncate)


def _compare_offsets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def divergence(self: Any, fetch_offset: int, epoch: int) -> DivergingEpoch | None:
        if fetch_offset > self.log.log_end_offset:
            return DivergingEpoch(epoch=epoch, end_offset=self.log.log_end_offset)
        return None

    monkeypatch.setattr(Partition, "_divergence", divergence)


def _compare_ends_of_epochs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def divergence(self: Any, fetch_offset: int, epoch: int) -> DivergingEpoch | None:
        found, end_offset = self.log.leader_epochs.end_offset_for_epoch(
            epoch, log_end_offset=self.log.log_end_offset
        )
        if 0 <= end_offset < fetch_offset:
            return DivergingEpoch(epoch=found, end_offset=end_offset)
        return None

    monkeypatch.setattr(Partition, "_divergence", divergence)


def _ignore_who_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingExpandIsr, "maximal_isr", property(lambda self: self.committed.isr))
    monkeypatch.setattr(Leader, "_is_about_to_join", lambda *_: False)


def _shrink_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk = property(lambda self: self.committed.isr - self.leaving)
    monkeypatch.setattr(PendingShrinkIsr, "maximal_isr", shrunk)
    monkeypatch.setattr(PendingShrinkIsr, "isr", shrunk)


def _answer_in_a_later_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Partition.check_enough_replicas_reach_offset

    def in_any_leadership(
        self: Partition, required_offset: int, leadership_count: int
    ) -> ErrorCode | None:
        if self.is_leader:
            return outcome(self, required_offset, self.leadership_count)
        # Without a leader the request is not failed before its timeout.
        del leadership_count
        return None

    monkeypatch.setattr(Partition, "check_enough_replicas_reach_offset", in_any_leadership)


def _tell_a_high_watermark_that_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k02_list_offsets, "_require_known_end", lambda *_: None)


def _out_of_range_above_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Partition.read

    def refuse(self: Partition, fetch_offset: int, **how: Any) -> bytes | DivergingEpoch:
        if how.get("replica_id", -1) < 0 and fetch_offset > self.high_watermark:
            raise LogError(ErrorCode.offset_out_of_range, "above the high watermark")
        return read(self, fetch_offset, **how)

    monkeypatch.setattr(Partition, "read", refuse)


def _elect_uncleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = elections.leader_and_isr_updates

    def unclean(*what: Any, **how: Any) -> Any:
        return updates(*what, **{**how, "is_unclean_allowed": lambda _: True})

    monkeypatch.setattr(controller, "leader_and_isr_updates", unclean)


def _disable_elr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.Controller, "_min_isr", lambda *_: None)


def _trust_every_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = controller.Controller._shutdown

    def trust(self: Any, broker_id: int, *, is_clean: bool) -> Any:
        del is_clean
        return handle(self, broker_id, is_clean=True)

    monkeypatch.setattr(controller.Controller, "_shutdown", trust)


def _commit_below_min_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leader, "is_under_min_isr", property(lambda _: False))


def _followers_return_uncommitted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    end_offset_for = Partition.end_offset_for

    def log_end_on_followers(self: Partition, *what: Any) -> int:
        return end_offset_for(self, *what) if self.is_leader else self.log.log_end_offset

    monkeypatch.setattr(Partition, "end_offset_for", log_end_on_followers)


def _followers_ignore_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    stable = vars(Partition)["last_stable_offset"].fget

    def on_leaders(self: Partition) -> int:
        offset: int = stable(self) if self.is_leader else self.high_watermark
        return offset

    monkeypatch.setattr(Partition, "last_stable_offset", property(on_leaders))


def _keep_logs_of_deleted_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaManager, "_remove_log_of_other_topic", lambda *_, **__: True)
    monkeypatch.setattr(LogManager, "delete_log", lambda self, *key, **_: _close_log(self, key))


def _close_log(self: LogManager, key: Any) -> None:
    self._logs.pop(key).discard()


def _keep_checkpoints_of_deleted_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogManager, "_remove_from_checkpoints", lambda *_: None)
    monkeypatch.setattr(LogManager, "remove_checkpoints", lambda *_: None)


def _trust_new_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(target: Any) -> Any:
        replicas = tuple(
            replica for replica in target.replicas if replica not in target.removing_replicas
        )
        if not target.adding_replicas and not target.removing_replicas:
            return target
        return dataclasses.replace(
            target, replicas=replicas, isr=replicas, adding_replicas=(), removing_replicas=()
        )

    monkeypatch.setattr(elections, "_complete_reassignment", complete)


BUGS = (
    Bug(
        name="truncate to own high watermark",
        source="KIP-101 (KAFKA-1211)",
        description="a new follower truncates its log to its own high watermark",
        reintroduce=_truncate_to_own_high_watermark,
        first_seed=0,
    ),
    Bug(
        name="compare only offsets",
        source="KIP-101",
        description="a follower truncates its log only if it is longer than the leader's",
        reintroduce=_compare_offsets_alone,
        first_seed=3,
    ),
    Bug(
        name="compare only the ends of leader epochs",
        source="KIP-279 (KAFKA-6361)",
        description=(
            "the leader returns an end offset for a leader epoch that its log does not contain"
        ),
        reintroduce=_compare_ends_of_epochs_alone,
        first_seed=11,
    ),
    Bug(
        name="ignore joining replicas",
        source="KIP-497 (KAFKA-8836)",
        description="the high watermark ignores replicas that the leader is adding to the ISR",
        reintroduce=_ignore_who_joins,
        first_seed=0,
    ),
    Bug(
        name="shrink the ISR too early",
        source="KIP-497 (KAFKA-8836)",
        description=(
            "a leader ignores lagging replicas before the controller has removed them from the ISR"
        ),
        reintroduce=_shrink_at_once,
        first_seed=75,
    ),
    Bug(
        name="complete in a later leader epoch",
        source="DelayedProduce, Partition.checkEnoughReplicasReachOffset",
        description="the high watermark of a later leader epoch completes an acks=all request",
        reintroduce=_answer_in_a_later_leadership,
        first_seed=11,
    ),
    Bug(
        name="expose a lagging high watermark",
        source="KIP-207 (KAFKA-2334)",
        description=(
            "a new leader exposes its high watermark before it has caught up with committed offsets"
        ),
        reintroduce=_tell_a_high_watermark_that_lags,
        first_seed=3,
    ),
    Bug(
        name="out of range above the high watermark",
        source="KIP-207 (KAFKA-2334)",
        description="a new leader rejects a fetch at a committed offset above its high watermark",
        reintroduce=_out_of_range_above_the_high_watermark,
        first_seed=3,
    ),
    Bug(
        name="unclean leader election by default",
        source="KIP-106",
        description="an out-of-sync replica is elected by default if no in-sync replica is alive",
        reintroduce=_elect_uncleanly,
        first_seed=11,
    ),
    Bug(
        name="no eligible leader replicas",
        source="KIP-966",
        description=(
            "the last in-sync replica leads after a power loss, and eligible replicas do not"
        ),
        reintroduce=_disable_elr,
        first_seed=57,
    ),
    Bug(
        name="ignore unclean shutdowns",
        source="KIP-966, ClusterControlManager.registerBroker",
        description="a broker stays an eligible leader after its machine has lost power",
        reintroduce=_trust_every_shutdown,
        first_seed=107,
    ),
    Bug(
        name="lead with an empty disk",
        source="KAFKA-15495",
        description=(
            "the last in-sync replica leads after its disk was replaced, although every append was "
            "flushed, and the other replicas remove all records"
        ),
        reintroduce=_disable_elr,
        first_seed=107,
        applies_to=lambda settings: settings.flushes_always and settings.min_insync_replicas > 1,
    ),
    Bug(
        name="read above a follower's high watermark",
        source="KIP-392",
        description="consumers read uncommitted records from followers",
        reintroduce=_followers_return_uncommitted_records,
        first_seed=0,
        applies_to=lambda settings: settings.reads_from_followers,
    ),
    Bug(
        name="read open transactions from a follower",
        source="KIP-392, UnifiedLog.lastStableOffset",
        description="read_committed consumers read up to the high watermark of a follower",
        reintroduce=_followers_ignore_open_transactions,
        first_seed=0,
        applies_to=lambda settings: (
            settings.reads_from_followers and settings.transactional_clients > 0
        ),
    ),
    Bug(
        name="keep logs of deleted topics",
        source="KIP-516",
        description="a new topic has the records of a deleted topic with the same name",
        reintroduce=_keep_logs_of_deleted_topics,
        first_seed=0,
        applies_to=lambda settings: settings.recreates_topic,
    ),
    Bug(
        name="keep checkpoints of deleted topics",
        source="LogManager.asyncDelete",
        description="a new topic inherits the checkpointed offsets of a deleted topic",
        reintroduce=_keep_checkpoints_of_deleted_topics,
        first_seed=12,
        applies_to=lambda settings: settings.recreates_topic,
    ),
    Bug(
        name="trust new replicas",
        source="KIP-455, PartitionReassignmentReplicas.maybeCompleteReassignment",
        description="a reassignment is completed before the new replicas are in sync",
        reintroduce=_trust_new_replicas,
        first_seed=47,
    ),
    Bug(
        name="commit below the min ISR",
        source="KIP-966, Partition.maybeIncrementLeaderHW",
        description="the high watermark increases although the ISR is too small",
        reintroduce=_commit_below_min_isr,
        first_seed=11,
    ),
)
