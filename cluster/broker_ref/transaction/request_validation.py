"""Validates requests that contain a transactional id.

The functions perform the checks for InitProducerId, AddPartitionsToTxn and EndTxn in the same order
as Kafka, and return the next state of the transactional id. Invariant: the functions do not modify
the transactional id. The caller applies the next state after it is replicated. Source:
Kafka's `TransactionCoordinator` (4.3), KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
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
"""A function that returns a new producer id, or raises COORDINATOR_LOAD_IN_PROGRESS."""


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """A producer id and a producer epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True, kw_only=True)
class TransactionMetadata:
    """A transactional id with its current value and its pending value.

    `pending` is the next value. It is set while this value is being written or while markers are
    being sent. During this time, no other change is accepted. `unmarked` contains the partitions
    that have not received a marker yet. Source: Kafka's `TransactionMetadata`.
    """

    name: str
    current: Transaction
    pending: Transaction | None = None
    unmarked: set[PartitionKey]

    def refuse_if_pending(self) -> None:
        """Raise CONCURRENT_TRANSACTIONS if a change is pending. Clients then retry."""
        if self.pending is not None:
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"Transactional id {self.name!r} is changing from state "
                f"{self.current.state.title} to {self.pending.state.title}. Retry later.",
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
    """Return the next state of a transactional id whose producer sends InitProducerId.

    Return None if an open transaction must be aborted first.
    """
    entry.refuse_if_pending()
    current = entry.current
    if expected is not None and not _may_be_expected(current, expected):
        raise _fenced(entry, expected.producer_id, expected.producer_epoch)
    if current.state in PREPARED:
        raise ApiError(
            ErrorCode.concurrent_transactions,
            f"The transaction of transactional id {entry.name!r} is in state "
            f"{current.state.title}. Retry after the transaction completes.",
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
    """Return whether the producer id in the request is valid. The epoch is checked later.

    The previous producer id is valid if its epochs are exhausted, because the producer may not have
    received the new producer id.
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
    """Return the transaction with the partitions added, or None if it already contains them."""
    entry.refuse_if_pending()
    current = entry.current
    _check_producer(entry, producer)
    if current.state in PREPARED:
        raise _concurrent_transactions(entry)
    if current.state is TransactionState.ONGOING and current.partitions.issuperset(partitions):
        return None
    return prepare_add_partitions(
        current, partitions, client_transaction_version=client_transaction_version, now_ms=now_ms
    )


def verify_partitions(
    entry: TransactionMetadata, producer: ProducerIdAndEpoch, partitions: Collection[PartitionKey]
) -> Mapping[PartitionKey, ErrorCode]:
    """Return NONE or TRANSACTION_ABORTABLE for each partition.

    A pending value of the transactional id is ignored, because the partition leader checks the
    transaction again during the append.
    """
    _check_producer(entry, producer)
    if entry.current.state in PREPARED:
        raise _concurrent_transactions(entry)
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

_PREPARED_STATES: Final = {
    True: TransactionState.PREPARE_COMMIT,
    False: TransactionState.PREPARE_ABORT,
}


def end(
    entry: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    *,
    commit: bool,
    client_transaction_version: int,
    generate_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction | None:
    """Return the prepared transaction, or None if it is already committed or aborted as requested.

    With transaction version 2 or later, the producer receives the next epoch, and a transaction
    without partitions can be aborted. Source: `TransactionCoordinator.endTransaction`.
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
        raise _prepared_error(entry, commit=commit)
    if current.state in COMPLETED and is_retry:
        if OUTCOMES[_PREPARED_STATES[commit]] is current.state:
            return None
        raise _invalid_state(entry, commit=commit)
    if current.state is not TransactionState.ONGOING and commit:
        raise _invalid_state(entry, commit=commit)
    return _prepared(entry, commit=commit, generate_producer_id=generate_producer_id, now_ms=now_ms)


def _end(
    entry: TransactionMetadata, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int
) -> Transaction | None:
    """Validate an EndTxn request for transaction versions below 2. The epoch does not change."""
    _check_producer(entry, producer)
    entry.refuse_if_pending()
    current = entry.current
    if current.state in PREPARED:
        raise _prepared_error(entry, commit=commit)
    if current.state in COMPLETED and OUTCOMES[_PREPARED_STATES[commit]] is current.state:
        return None
    if current.state is not TransactionState.ONGOING:
        raise _invalid_state(entry, commit=commit)
    return prepare_abort_or_commit(
        current,
        _PREPARED_STATES[commit],
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
    """Return the PrepareAbort state of an open transaction. The abort also fences the producer."""
    if transaction_version < FIRST_VERSION_OF_EPOCH_BUMPS:
        return prepare_fence_producer_epoch(entry.current, now_ms=now_ms)
    return _prepared(entry, commit=False, generate_producer_id=generate_producer_id, now_ms=now_ms)


def _prepared(
    entry: TransactionMetadata, *, commit: bool, generate_producer_id: DrawProducerId, now_ms: int
) -> Transaction:
    """Return the prepared transaction with the next epoch.

    If the epochs are exhausted, the transaction contains a new producer id.
    """
    exhausted = entry.current.is_epoch_exhausted
    return prepare_abort_or_commit(
        entry.current,
        _PREPARED_STATES[commit],
        client_transaction_version=FIRST_VERSION_OF_EPOCH_BUMPS,
        next_producer_id=generate_producer_id() if exhausted else NO_PRODUCER_ID,
        now_ms=now_ms,
    )


# Timeout and expiration


def has_timed_out(entry: TransactionMetadata, now_ms: int) -> bool:
    """Return whether the transaction has exceeded its timeout."""
    current = entry.current
    return (
        entry.pending is None
        and current.state is TransactionState.ONGOING
        and not current.is_two_phase_commit
        and current.start_timestamp_ms + current.timeout_ms < now_ms
    )


def has_expired(entry: TransactionMetadata, *, expiration_ms: int, now_ms: int) -> bool:
    """Return whether the transactional id has not been used for `expiration_ms`."""
    current = entry.current
    return (
        entry.pending is None
        and current.state in IDLE
        and current.last_update_timestamp_ms <= now_ms - expiration_ms
    )


# Errors


def _prepared_error(entry: TransactionMetadata, *, commit: bool) -> ApiError:
    if _PREPARED_STATES[commit] is entry.current.state:
        return _concurrent_transactions(entry)
    return _invalid_state(entry, commit=commit)


def _concurrent_transactions(entry: TransactionMetadata) -> ApiError:
    return ApiError(
        ErrorCode.concurrent_transactions,
        f"The transaction of transactional id {entry.name!r} is in state "
        f"{entry.current.state.title}. Retry after the transaction completes.",
    )


def _invalid_state(entry: TransactionMetadata, *, commit: bool) -> ApiError:
    return ApiError(
        ErrorCode.invalid_txn_state,
        f"The transaction of transactional id {entry.name!r} is in state "
        f"{entry.current.state.title} and cannot be {'committed' if commit else 'aborted'}.",
    )


def _wrong_producer_id(entry: TransactionMetadata, producer: ProducerIdAndEpoch) -> ApiError:
    return ApiError(
        ErrorCode.invalid_producer_id_mapping,
        f"The producer id of transactional id {entry.name!r} is {entry.current.producer_id}, not "
        f"{producer.producer_id}.",
    )


def _fenced(entry: TransactionMetadata, producer_id: int, producer_epoch: int) -> ApiError:
    current = entry.current
    return ApiError(
        ErrorCode.producer_fenced,
        f"Producer id {producer_id} with epoch {producer_epoch} is fenced. Transactional id "
        f"{entry.name!r} now has producer id {current.producer_id} with epoch "
        f"{current.producer_epoch}.",
    )
