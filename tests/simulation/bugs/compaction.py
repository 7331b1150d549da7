"""Bugs of compaction, which the state of coordinators reveals."""

from __future__ import annotations

from typing import Any

import pytest

from broker_ref.log import cleaner
from broker_ref.log.cleaned_transactions import CleanedTransactionMetadata
from broker_ref.log.log_to_clean import find_cleanable
from integration.simulation.plan import Settings
from tests.simulation.bugs.bug import Bug


def _clean_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_the_end(log: Any, **how: Any) -> Any:
        return find_cleanable(log, **{**how, "last_stable_offset": log.log_end_offset})

    monkeypatch.setattr(cleaner, "find_cleanable", to_the_end)


def _keep_aborted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CleanedTransactionMetadata, "is_aborted", lambda *_: False)


def _remove_markers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    is_discardable = CleanedTransactionMetadata.is_discardable

    def discardable(self: Any, header: Any, batch: Any, **how: Any) -> bool:
        is_discardable(self, header, batch, **how)
        return True

    monkeypatch.setattr(CleanedTransactionMetadata, "is_discardable", discardable)


def compacts_transactions(settings: Settings) -> bool:
    return settings.compacts_internal_topics and settings.transactional_clients > 0


BUGS = (
    Bug(
        name="compact open transactions",
        source="LogCleanerManager.cleanableOffsets",
        description=(
            "the cleaner removes a committed offset because an open transaction commits another "
            "one, and then the transaction is aborted"
        ),
        reintroduce=_clean_open_transactions,
        first_seed=49,
        applies_to=compacts_transactions,
    ),
    Bug(
        name="keep records of aborted transactions",
        source="CleanedTransactionMetadata.onBatchRead",
        description="the cleaner keeps an aborted offset instead of the committed one",
        reintroduce=_keep_aborted_records,
        first_seed=40,
        applies_to=compacts_transactions,
    ),
    Bug(
        name="remove markers before their records",
        source="CleanedTransactionMetadata.onControlBatchRead",
        description="the cleaner removes the marker of a transaction whose records remain",
        reintroduce=_remove_markers_first,
        first_seed=3203,
        applies_to=compacts_transactions,
    ),
)
