"""Bugs of transactions: coordinator, markers, last stable offset and pending offsets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api.delayed_fetch import DelayedFetch
from broker_ref.api.partition_reader import PartitionReader
from broker_ref.coordination.replies import Reply
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.group.pending_offsets import PendingOffsets
from broker_ref.log.producer_log import ProducerLog
from broker_ref.log.producer_state import ProducerStateManager
from broker_ref.replication.partition import Partition
from broker_ref.transaction import coordinator, request_validation, transitions
from broker_ref.transaction.coordinator import TransactionCoordinator
from broker_ref.transaction.marker_channel_manager import TransactionMarkerChannelManager
from broker_ref.transaction.shard import ShardState
from integration.simulation import faults
from integration.simulation.plan import Settings
from tests.simulation.bugs.bug import Bug


def _high_watermark_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_stable_offset(self: Partition) -> int:
        # Two values of the high watermark are used: the log end offset decides which transactions
        # are complete, and the high watermark limits the result.
        first = self.log.producers.first_unstable_offset(self.log.log_end_offset)
        return self.high_watermark if first is None else min(first, self.high_watermark)

    monkeypatch.setattr(Partition, "last_stable_offset", property(last_stable_offset))


def _delayed_fetch_drops_aborted_list(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted = PartitionReader._aborted
    waited = [False]

    def having_waited(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*what: Any) -> Any:
            waited[0] = True
            try:
                return method(*what)
            finally:
                waited[0] = False

        return wrapped

    def dropped(self: PartitionReader, *what: Any) -> Any:
        return () if waited[0] else aborted(self, *what)

    monkeypatch.setattr(PartitionReader, "_aborted", dropped)
    for name in ("try_complete", "expire"):
        monkeypatch.setattr(DelayedFetch, name, having_waited(getattr(DelayedFetch, name)))


def _acknowledge_marker_before_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    end = GroupCoordinator.end_transaction

    def at_once(self: Any, *what: Any, **how: Any) -> Reply[ErrorCode]:
        end(self, *what, **how)
        reply: Reply[ErrorCode] = Reply(self._wake)
        reply.complete(ErrorCode.none)
        return reply

    monkeypatch.setattr(GroupCoordinator, "end_transaction", at_once)


def _verify_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerLog, "maybe_start_transaction_verification", lambda *_, **__: None)
    monkeypatch.setattr(ProducerLog, "allows", lambda *_: True)


def _abort_without_epoch_bump(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = transitions.prepare_fence_producer_epoch

    def without_bump(current: Any, **how: Any) -> Any:
        aborting = fenced(current, **how)
        return dataclasses.replace(aborting, producer_epoch=current.producer_epoch)

    monkeypatch.setattr(request_validation, "prepare_fence_producer_epoch", without_bump)


def _answer_before_prepare_is_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(write: Any, reply: Any, result: Any, now_ms: int) -> None:
        del write, now_ms
        reply.complete(result)

    monkeypatch.setattr(coordinator, "_complete_reply", tell)


def _take_markers_of_old_coordinators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerStateManager, "check_marker", lambda *_, **__: None)


def _forget_aborted_index_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ProducerLog._read

    def unindexed(self: Any, segments: Any, loaded: Any, start: int, indexed_to: int | None) -> Any:
        del indexed_to
        return read(self, segments, loaded, start, None)

    monkeypatch.setattr(ProducerLog, "_read", unindexed)


def _forget_what_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionCoordinator, "_send_markers_of_prepared", lambda *_: None)


def _let_zombies_live(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_increment_producer_epoch = transitions.prepare_increment_producer_epoch

    def same_epoch(current: Any, **how: Any) -> Any:
        value = prepare_increment_producer_epoch(current, **how)
        return dataclasses.replace(value, producer_epoch=max(current.producer_epoch, 0))

    monkeypatch.setattr(request_validation, "prepare_increment_producer_epoch", same_epoch)


def _give_markers_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def retry_later(self: Any, pending_txn: Any, key: Any) -> None:
        del self
        pending_txn.entry.unmarked.discard(key)

    monkeypatch.setattr(TransactionMarkerChannelManager, "_retry_later", retry_later)


def _end_with_any_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    end = request_validation._end

    def any_epoch(entry: Any, producer: Any, **how: Any) -> Any:
        present = dataclasses.replace(producer, producer_epoch=entry.current.producer_epoch)
        return end(entry, present, **how)

    monkeypatch.setattr(request_validation, "_end", any_epoch)


def _forget_pending_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingOffsets, "has", lambda *_: False)


def _activate_before_records_are_replicated(monkeypatch: pytest.MonkeyPatch) -> None:
    activate = TransactionCoordinator._activate_if_replicated

    def at_once(self: Any, index: int, now_ms: int) -> None:
        if index in self._loaded:
            self._shards[index].state = ShardState.ACTIVE
        activate(self, index, now_ms)

    monkeypatch.setattr(TransactionCoordinator, "_activate_if_replicated", at_once)


def _deliver_late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "fences_late_requests", lambda _: True)


def has_transactions(settings: Settings) -> bool:
    return settings.transactional_clients > 0


def has_transactions_of_version_1(settings: Settings) -> bool:
    return has_transactions(settings) and settings.transaction_version == 1


BUGS = (
    Bug(
        name="last stable offset from a high watermark read twice",
        source="UnifiedLog.fetchLastStableOffsetMetadata",
        description="a transaction counts as completed before its marker is replicated",
        reintroduce=_high_watermark_read_twice,
        first_seed=0,
        applies_to=has_transactions,
    ),
    Bug(
        name="delayed fetch drops the aborted list",
        source="DelayedFetch, FetchPartitionData.abortedTransactions",
        description="the response to a delayed read_committed fetch lacks the aborted transactions",
        reintroduce=_delayed_fetch_drops_aborted_list,
        first_seed=0,
        applies_to=has_transactions,
    ),
    Bug(
        name="marker acknowledged before offsets materialize",
        source="GroupCoordinator.scheduleHandleTxnCompletion",
        description="a group coordinator acknowledges a marker before it is replicated",
        reintroduce=_acknowledge_marker_before_offsets,
        first_seed=97,
        applies_to=has_transactions,
    ),
    Bug(
        name="late produce after abort",
        source="KIP-890 part 1 (KAFKA-14402)",
        description=(
            "a batch is appended although the coordinator has ended its transaction or never added "
            "the partition"
        ),
        reintroduce=_verify_nothing,
        first_seed=0,
        applies_to=has_transactions,
    ),
    Bug(
        name="abort without epoch bump",
        source="KIP-360, TransactionCoordinator.abortTimedOutTransactions",
        description="the producer epoch is not bumped when a transaction times out",
        reintroduce=_abort_without_epoch_bump,
        first_seed=404,
        applies_to=has_transactions_of_version_1,
    ),
    Bug(
        name="respond before PREPARE is replicated",
        source="TransactionStateManager.appendTransactionToLog",
        description="EndTxn and InitProducerId succeed before PREPARE is replicated",
        reintroduce=_answer_before_prepare_is_replicated,
        first_seed=40,
        applies_to=has_transactions,
    ),
    Bug(
        name="accept markers of old coordinators",
        source="ProducerAppendInfo.checkCoordinatorEpoch",
        description="a delayed marker ends a later transaction",
        reintroduce=_take_markers_of_old_coordinators,
        first_seed=2166,
        applies_to=has_transactions_of_version_1,
    ),
    Bug(
        name="lose the aborted transaction index after a crash",
        source="LogSegment.recover, TransactionIndex",
        description="recovery does not rebuild the index of aborted transactions",
        reintroduce=_forget_aborted_index_after_a_crash,
        first_seed=27,
        applies_to=has_transactions,
    ),
    Bug(
        name="lose prepared transactions",
        source="TransactionStateManager.loadTransactionsForTxnTopicPartition",
        description="a new coordinator does not complete prepared transactions",
        reintroduce=_forget_what_is_prepared,
        first_seed=3,
        applies_to=has_transactions,
    ),
    Bug(
        name="use unreplicated transaction state after an election",
        source="TransactionStateManager.loadTransactionsForTxnTopicPartition (not prevented there)",
        description=(
            "a new coordinator confirms that a partition is in a transaction, but another leader "
            "removes that record, and no marker ends the transaction in the partition"
        ),
        reintroduce=_activate_before_records_are_replicated,
        first_seed=None,
        applies_to=has_transactions,
    ),
    Bug(
        name="do not fence zombies",
        source="KIP-98, InitProducerId",
        description="InitProducerId returns the producer epoch of the previous producer",
        reintroduce=_let_zombies_live,
        first_seed=0,
        applies_to=has_transactions,
    ),
    Bug(
        name="do not retry markers",
        source="TransactionMarkerRequestCompletionHandler",
        description=(
            "a marker counts as written after a partition rejected it with a retriable error"
        ),
        reintroduce=_give_markers_up,
        first_seed=11,
        applies_to=has_transactions,
    ),
    Bug(
        name="accept EndTxn with any producer epoch",
        source="KIP-98, TransactionCoordinator.endTransaction",
        description="a fenced producer can end its successor's transaction",
        reintroduce=_end_with_any_epoch,
        first_seed=302,
        applies_to=has_transactions_of_version_1,
    ),
    Bug(
        name="ignore pending offsets",
        source="KIP-447 (KAFKA-8587)",
        description="OffsetFetch with require_stable ignores pending offsets of open transactions",
        reintroduce=_forget_pending_offsets,
        first_seed=9,
        applies_to=has_transactions,
    ),
    Bug(
        name="one epoch for all transactions",
        source="KIP-890 part 2 (KAFKA-17754)",
        description=(
            "with transaction.version 1, a late EndTxn or AddPartitionsToTxn request affects the "
            "next transaction"
        ),
        reintroduce=_deliver_late_requests,
        first_seed=3574,
        applies_to=has_transactions_of_version_1,
    ),
)
