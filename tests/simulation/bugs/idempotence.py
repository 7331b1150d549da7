"""Bugs of idempotent producers, in the producer state of partitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from broker_ref.log import producer_state
from broker_ref.log.batch import parse_checked_batches
from broker_ref.log.partition_log import AppendResult, PartitionLog
from broker_ref.log.producer_log import ProducerLog
from broker_ref.log.producer_snapshots import ProducerSnapshots
from tests.simulation.bugs.bug import Bug


def _mutate_before_append(monkeypatch: pytest.MonkeyPatch) -> None:
    write = PartitionLog._write

    def mutated(self: Any, headers: Any, *rest: Any) -> None:
        try:
            write(self, headers, *rest)
        except Exception:
            for header in headers:
                self.producers._state.update(header)
            raise

    monkeypatch.setattr(PartitionLog, "_write", mutated)


def _remember_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "BATCHES_RETAINED", 1)


def _follower_validates_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append_as_follower

    def validated(self: Any, records: bytes, *, now_ms: int) -> None:
        for header, batch in parse_checked_batches(records):
            if header.has_producer_id and not header.is_control:
                self.producers._state.check(header)
            append(self, bytes(batch), now_ms=now_ms)

    monkeypatch.setattr(PartitionLog, "append_as_follower", validated)


def _keep_snapshots_of_what_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerSnapshots, "retain_between", lambda *_: None)


def _keep_state_of_what_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    truncate = PartitionLog._truncate

    def keep(self: Any, *what: Any) -> None:
        state = self.producers._state
        truncate(self, *what)
        self.producers._state = state

    monkeypatch.setattr(PartitionLog, "_truncate", keep)


def _forget_what_no_snapshot_has(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ProducerLog._read

    def unread(self: Any, segments: Any, loaded: Any, start: int, indexed_to: int | None) -> Any:
        state, _ = loaded
        return state if indexed_to is None else read(self, segments, loaded, start, indexed_to)

    monkeypatch.setattr(ProducerLog, "_read", unread)


def _acknowledge_duplicates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    append = PartitionLog.append

    def at_once(self: PartitionLog, *what: Any, **how: Any) -> AppendResult:
        result = append(self, *what, **how)
        return dataclasses.replace(result, last_offset=-1) if result.is_duplicate else result

    monkeypatch.setattr(PartitionLog, "append", at_once)


BUGS = (
    Bug(
        name="producer state updated before the append",
        source="ProducerStateManager.update",
        description="a failed append updates the producer state",
        reintroduce=_mutate_before_append,
        first_seed=70,
    ),
    Bug(
        name="remember only the last batch",
        source="KAFKA-5494",
        description="only a producer's last batch is deduplicated, although five may be in flight",
        reintroduce=_remember_one_batch,
        first_seed=13,
    ),
    Bug(
        name="follower validates sequences",
        source="ProducerAppendInfo.maybeValidateDataBatch, AppendOrigin.REPLICATION",
        description=(
            "a follower rejects batches that its leader accepted, such as the batches of a "
            "coordinator, which all have sequence 0"
        ),
        reintroduce=_follower_validates_sequences,
        first_seed=13,
    ),
    Bug(
        name="keep truncated producer state",
        source="ProducerStateManager.truncateAndReload",
        description="a truncation does not change the producer state",
        reintroduce=_keep_state_of_what_was_cut,
        first_seed=52,
    ),
    Bug(
        name="keep truncated snapshots",
        source="ProducerStateManager.truncateAndReload",
        description="producer snapshots survive the truncation of their records",
        reintroduce=_keep_snapshots_of_what_was_cut,
        first_seed=None,
    ),
    Bug(
        name="restore from snapshots only",
        source="UnifiedLog.rebuildProducerState",
        description="after a start or truncation, the producer state is loaded from snapshots only",
        reintroduce=_forget_what_no_snapshot_has,
        first_seed=7,
    ),
    Bug(
        name="acknowledge duplicates too early",
        source="ReplicaManager.appendRecords",
        description="a duplicate batch is acknowledged before it is replicated",
        reintroduce=_acknowledge_duplicates_at_once,
        first_seed=11,
    ),
)
