"""Validation of requests about a transactional id.

Purpose: the checks of InitProducerId, AddPartitionsToTxn and EndTxn in Kafka's order, and the next
value of the transactional id. Invariant: nothing is changed here; the caller applies the value
after it is replicated. Must not know: the log, replies, leaders of partitions.
Source: Kafka's `TransactionCoordinator` (4.3), KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.states import COMPLETED, IDLE, OUTCOMES, PREPARED, TransactionState
from broker_ref.transaction.transitions import (
    FIRST_VERSION_OF_EPOCH_BUMPS,
    LAST_PRODUCERS_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Transaction,
    prepare_abort_or_commit,
    prepare_add_partitions,
    prepare_fence_producer_epoch,
    prepare_increment_producer_epoch,
    prepare_producer_id_rotation,
)

DrawProducerId = Callable[[], int]
"""Returns an unused producer id; raises COORDINATOR_LOAD_IN_PROGRESS while none is available."""


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """A producer id with its epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True, kw_only=True)
class TransactionMetadata:
    """A transactional id with its replicated and its pending value (Kafka's TransactionMetadata).

    `pending` is the next value while it is written or its markers are being sent; no other change
    is accepted meanwhile. `unmarked` contains the partitions that lack their marker.
    """

    name: str
    current: Transaction
    pending: Transaction | None = None
    unmarked: set[PartitionKey]

    def refuse_if_pending(self) -> None:
        """Raise CONCURRENT_TRANSACTIONS while a change is pending; clients retry it."""
        if self.pending is not None:
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"Transactional id {self.name!r} changes from {self.current.state.title} to "
                f"{self.pending.state.title}.",
            )


# InitProducerId


def initialize(
    entry: TransactionMetadata,
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    generate_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction | None:
    """Return the value for a starting producer; None if its transaction must be aborted first."""
    entry.refuse_if_pending()
    current = entry.current
    if expected is not None and not _may_be_expected(current, expected):
        raise _fenced(entry, expected.producer_id, expected.producer_epoch)
    if current.state in PREPARED:
        raise ApiError(
            ErrorCode.concurrent_transactions,
            f"The transaction of {entry.name!r} is {current.state.title}.",
        )
    if current.state is TransactionState.ONGOING:
        return None
    expected_epoch = None if expected is None else expected.producer_epoch
    if current.is_epoch_exhausted and expected_epoch in (None, current.producer_epoch):
        return prepare_producer_id_rotation(
            current,
            generate_producer_id(),
            timeout_ms=timeout_ms,
            keeps_last_epoch=expected is not None,
            now_ms=now_ms,
        )
    return prepare_increment_producer_epoch(
        current, timeout_ms=timeout_ms, expected_epoch=expected_epoch, now_ms=now_ms
    )


def _may_be_expected(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Return whether `expected` has a valid producer id; its epoch is checked later.

    The previous producer id is valid if its epochs are exhausted, because the producer may not have
    received the new one.
    """
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == current.producer_id
        or (
            expected.producer_id == current.previous_producer_id
            and expected.producer_epoch >= LAST_PRODUCERS_EPOCH
        )
    )


# AddPartitionsToTxn, AddOffsetsToTxn


def add_partitions(
    entry: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    partitions: Collection[PartitionKey],
    *,
    client_transaction_version: int,
    now_ms: int,
) -> Transaction | None:
    """Return the transaction with these partitions added; None if it has all of them."""
    entry.refuse_if_pending()
    current = entry.current
    _check_producer(entry, producer)
    if current.state in PREPARED:
        raise _is_prepared(entry)
    if current.state is TransactionState.ONGOING and current.partitions.issuperset(partitions):
        return None
    return prepare_add_partitions(
        current, partitions, client_transaction_version=client_transaction_version, now_ms=now_ms
    )


def verify_partitions(
    entry: TransactionMetadata, producer: ProducerIdAndEpoch, partitions: Collection[PartitionKey]
) -> Mapping[PartitionKey, ErrorCode]:
    """Return NONE or TRANSACTION_ABORTABLE for each partition.

    Pending changes are ignored: the partition checks again when it appends.
    """
    _check_producer(entry, producer)
    if entry.current.state in PREPARED:
        raise _is_prepared(entry)
    return {
        key: ErrorCode.none if key in entry.current.partitions else ErrorCode.transaction_abortable
        for key in partitions
    }


def _check_producer(entry: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    current = entry.current
    if producer.producer_id != current.producer_id:
        raise _wrong_producer_id(entry, producer)
    if producer.producer_epoch != current.producer_epoch or producer.producer_epoch < 0:
        raise _fenced(entry, producer.producer_id, producer.producer_epoch)


# EndTxn

_DECISIONS: Final = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


def end(
    entry: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    *,
    commit: bool,
    client_transaction_version: int,
    generate_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction | None:
    """Return the prepared transaction; None if it is already completed as requested.

    From transaction version 2 on, each end returns the next epoch to the producer, and an abort is
    valid without any partition (`TransactionCoordinator.endTransaction`).
    """
    if client_transaction_version < FIRST_VERSION_OF_EPOCH_BUMPS:
        return _end(entry, producer, commit=commit, now_ms=now_ms)
    entry.refuse_if_pending()
    current = entry.current
    retries_bump = current.producer_epoch == producer.producer_epoch + 1
    retries_rotation = (
        current.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_PRODUCERS_EPOCH
        and current.producer_epoch == 0
    )
    is_retry = retries_bump or retries_rotation
    if producer.producer_id != current.producer_id and not retries_rotation:
        raise _wrong_producer_id(entry, producer)
    if current.state in PREPARED:
        is_valid = retries_bump
    elif current.state in COMPLETED:
        is_valid = is_retry or producer.producer_epoch == current.producer_epoch
    else:
        is_valid = producer.producer_epoch == current.producer_epoch
    if not is_valid:
        raise _fenced(entry, producer.producer_id, producer.producer_epoch)
    if current.state in PREPARED:
        raise _answer_to_prepared(entry, commit=commit)
    if current.state in COMPLETED and is_retry:
        if OUTCOMES[_DECISIONS[commit]] is current.state:
            return None
        raise _invalid_state(entry, commit=commit)
    if current.state is not TransactionState.ONGOING and commit:
        raise _invalid_state(entry, commit=commit)
    return _decided(entry, commit=commit, generate_producer_id=generate_producer_id, now_ms=now_ms)


def _end(
    entry: TransactionMetadata, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int
) -> Transaction | None:
    """Validate an end before transaction version 2, where the epoch stays the same."""
    _check_producer(entry, producer)
    entry.refuse_if_pending()
    current = entry.current
    if current.state in PREPARED:
        raise _answer_to_prepared(entry, commit=commit)
    if current.state in COMPLETED and OUTCOMES[_DECISIONS[commit]] is current.state:
        return None
    if current.state is not TransactionState.ONGOING:
        raise _invalid_state(entry, commit=commit)
    return prepare_abort_or_commit(
        current,
        _DECISIONS[commit],
        client_transaction_version=0,
        next_producer_id=NO_PRODUCER_ID,
        now_ms=now_ms,
    )


def fence(
    entry: TransactionMetadata,
    *,
    transaction_version: int,
    generate_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction:
    """Return the abort of an open transaction that the coordinator fences."""
    if transaction_version < FIRST_VERSION_OF_EPOCH_BUMPS:
        return prepare_fence_producer_epoch(entry.current, now_ms=now_ms)
    return _decided(entry, commit=False, generate_producer_id=generate_producer_id, now_ms=now_ms)


def _decided(
    entry: TransactionMetadata, *, commit: bool, generate_producer_id: DrawProducerId, now_ms: int
) -> Transaction:
    """Return the prepared transaction with the next epoch, or a new producer id if exhausted."""
    exhausted = entry.current.is_epoch_exhausted
    return prepare_abort_or_commit(
        entry.current,
        _DECISIONS[commit],
        client_transaction_version=FIRST_VERSION_OF_EPOCH_BUMPS,
        next_producer_id=generate_producer_id() if exhausted else NO_PRODUCER_ID,
        now_ms=now_ms,
    )


# Timeout and expiration


def has_timed_out(entry: TransactionMetadata, now_ms: int) -> bool:
    """Return whether the transaction exceeds its timeout."""
    current = entry.current
    return (
        entry.pending is None
        and current.state is TransactionState.ONGOING
        and not current.is_two_phase_commit
        and current.start_timestamp_ms + current.timeout_ms < now_ms
    )


def has_expired(entry: TransactionMetadata, *, expiration_ms: int, now_ms: int) -> bool:
    """Return whether the id was idle for `expiration_ms`."""
    current = entry.current
    return (
        entry.pending is None
        and current.state in IDLE
        and current.last_update_timestamp_ms <= now_ms - expiration_ms
    )


# Errors


def _answer_to_prepared(entry: TransactionMetadata, *, commit: bool) -> ApiError:
    if _DECISIONS[commit] is entry.current.state:
        return _is_prepared(entry)
    return _invalid_state(entry, commit=commit)


def _is_prepared(entry: TransactionMetadata) -> ApiError:
    return ApiError(
        ErrorCode.concurrent_transactions,
        f"The transaction of {entry.name!r} is in state {entry.current.state.title}.",
    )


def _invalid_state(entry: TransactionMetadata, *, commit: bool) -> ApiError:
    return ApiError(
        ErrorCode.invalid_txn_state,
        f"The transaction of {entry.name!r} is in state {entry.current.state.title} and cannot be "
        f"{'committed' if commit else 'aborted'}.",
    )


def _wrong_producer_id(entry: TransactionMetadata, producer: ProducerIdAndEpoch) -> ApiError:
    return ApiError(
        ErrorCode.invalid_producer_id_mapping,
        f"The producer id of {entry.name!r} is {entry.current.producer_id}, not "
        f"{producer.producer_id}.",
    )


def _fenced(entry: TransactionMetadata, producer_id: int, producer_epoch: int) -> ApiError:
    current = entry.current
    return ApiError(
        ErrorCode.producer_fenced,
        f"Producer {producer_id} with epoch {producer_epoch} is fenced: the current producer of "
        f"{entry.name!r} is {current.producer_id} with epoch {current.producer_epoch}.",
    )
