"""Bugs of replication: truncation, high watermark, in-sync replicas and elections."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api import k02_list_offsets
from broker_ref.controller import controller, elections
from broker_ref.log.errors import LogError
from broker_ref.replication.leader import Leader
from broker_ref.replication.partition import DivergingEpoch, Partition
from broker_ref.replication.partition_state import PendingExpandIsr, PendingShrinkIsr
from broker_ref.replication.replica_fetcher import ReplicaFetcher
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
        first_seed=34,
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
        first_seed=52,
    ),
    Bug(
        name="no eligible leader replicas",
        source="KIP-966",
        description=(
            "the last in-sync replica leads after a power loss, and eligible replicas do not"
        ),
        reintroduce=_disable_elr,
        first_seed=48,
    ),
    Bug(
        name="ignore unclean shutdowns",
        source="KIP-966, ClusterControlManager.registerBroker",
        description="a broker stays an eligible leader after its machine has lost power",
        reintroduce=_trust_every_shutdown,
        first_seed=48,
    ),
    Bug(
        name="commit below the min ISR",
        source="KIP-966, Partition.maybeIncrementLeaderHW",
        description="the high watermark increases although the ISR is too small",
        reintroduce=_commit_below_min_isr,
        first_seed=11,
    ),
)
