"""Bugs of idempotent producers: what a partition remembers of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from broker_ref.log import producer_state
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
    monkeypatch.setattr(producer_state, "BATCHES_REMEMBERED", 1)


def _keep_snapshots_of_what_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerSnapshots, "keep_between", lambda *_: None)


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
        name="state mutated before append",
        source="ProducerStateManager.update",
        what="a batch is remembered although its append has failed",
        put_back=_mutate_before_append,
        found_by=70,
    ),
    Bug(
        name="remember one batch",
        source="KAFKA-5494",
        what="only the last batch of a producer is known again, with five under way",
        put_back=_remember_one_batch,
        found_by=0,
    ),
    Bug(
        name="keep state of what was cut",
        source="ProducerStateManager.truncateAndReload",
        what="a truncation leaves the producers' state as it was",
        put_back=_keep_state_of_what_was_cut,
        found_by=None,
    ),
    Bug(
        name="keep snapshots of what was cut",
        source="ProducerStateManager.truncateAndReload",
        what="snapshots of producers outlive the truncation of what they tell of",
        put_back=_keep_snapshots_of_what_was_cut,
        found_by=None,
    ),
    Bug(
        name="forget what no snapshot has",
        source="UnifiedLog.rebuildProducerState",
        what="after a start or truncation producers are known by snapshots alone",
        put_back=_forget_what_no_snapshot_has,
        found_by=32,
    ),
    Bug(
        name="acknowledge duplicates at once",
        source="ReplicaManager.appendRecords",
        what="a batch sent again is acknowledged before it is replicated",
        put_back=_acknowledge_duplicates_at_once,
        found_by=6,
    ),
)
