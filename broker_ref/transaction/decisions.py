"""What a request makes of a transactional id, or why it is refused.

Purpose: the checks of InitProducerId, AddPartitionsToTxn and EndTxn in Kafka's order, and the value
that follows. Invariant: nothing is changed here; the caller lets a value count when the log has it.
What it must not know: the log, replies, partitions' leaders.
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
    decided,
    fenced,
    with_next_epoch,
    with_partitions,
    with_producer_id,
)

DrawProducerId = Callable[[], int]
"""An id that nobody has had; COORDINATOR_LOAD_IN_PROGRESS where the next block has yet to come."""


@dataclass(frozen=True, slots=True)
class ProducerIdAndEpoch:
    """Who a producer is."""

    producer_id: int
    producer_epoch: int


@dataclass(slots=True, kw_only=True)
class TransactionalId:
    """A transactional id: what the log has, and what it is about to have.

    `pending` is the next value while it is being written or its markers are on their way: nothing
    else may happen to the id meanwhile. `unmarked` are the partitions that lack their marker.
    """

    name: str
    current: Transaction
    pending: Transaction | None = None
    unmarked: set[PartitionKey]

    def refuse_if_pending(self) -> None:
        """CONCURRENT_TRANSACTIONS, on which clients ask again."""
        if self.pending is not None:
            raise ApiError(
                ErrorCode.concurrent_transactions,
                f"Transactional id {self.name!r} is {self.current.state.title}, on the way to "
                f"{self.pending.state.title}.",
            )


# InitProducerId


def initialize(
    entry: TransactionalId,
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    draw_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction | None:
    """The value for a producer that starts; None where its transaction is to be aborted first."""
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
        return with_producer_id(
            current,
            draw_producer_id(),
            timeout_ms=timeout_ms,
            keeps_last_epoch=expected is not None,
            now_ms=now_ms,
        )
    return with_next_epoch(
        current, timeout_ms=timeout_ms, expected_epoch=expected_epoch, now_ms=now_ms
    )


def _may_be_expected(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Whether a producer with this id may go on; its epoch is looked at later.

    The id before the present one may where its epochs are exhausted: the producer may not have
    heard that it has been given another.
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
    entry: TransactionalId,
    producer: ProducerIdAndEpoch,
    partitions: Collection[PartitionKey],
    *,
    client_transaction_version: int,
    now_ms: int,
) -> Transaction | None:
    """The transaction with these partitions; None where it has them all."""
    entry.refuse_if_pending()
    current = entry.current
    _check_producer(entry, producer)
    if current.state in PREPARED:
        raise _is_prepared(entry)
    if current.state is TransactionState.ONGOING and current.partitions.issuperset(partitions):
        return None
    return with_partitions(
        current, partitions, client_transaction_version=client_transaction_version, now_ms=now_ms
    )


def verify_partitions(
    entry: TransactionalId, producer: ProducerIdAndEpoch, partitions: Collection[PartitionKey]
) -> Mapping[PartitionKey, ErrorCode]:
    """Which partitions are in the transaction: NONE or TRANSACTION_ABORTABLE for each.

    What is pending is not looked at: the partition checks again when it appends.
    """
    _check_producer(entry, producer)
    if entry.current.state in PREPARED:
        raise _is_prepared(entry)
    return {
        key: ErrorCode.none if key in entry.current.partitions else ErrorCode.transaction_abortable
        for key in partitions
    }


def _check_producer(entry: TransactionalId, producer: ProducerIdAndEpoch) -> None:
    current = entry.current
    if producer.producer_id != current.producer_id:
        raise _wrong_producer_id(entry, producer)
    if producer.producer_epoch != current.producer_epoch or producer.producer_epoch < 0:
        raise _fenced(entry, producer.producer_id, producer.producer_epoch)


# EndTxn

_DECISIONS: Final = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}


def end(
    entry: TransactionalId,
    producer: ProducerIdAndEpoch,
    *,
    commit: bool,
    client_transaction_version: int,
    draw_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction | None:
    """The transaction that is to be committed or aborted; None where it has been, as asked.

    From version 2 on each end gives the producer its next epoch, and an abort may come where no
    partition has been heard of.
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
    return _decided(entry, commit=commit, draw_producer_id=draw_producer_id, now_ms=now_ms)


def _end(
    entry: TransactionalId, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int
) -> Transaction | None:
    """The same before version 2: the epoch stays."""
    _check_producer(entry, producer)
    entry.refuse_if_pending()
    current = entry.current
    if current.state in PREPARED:
        raise _answer_to_prepared(entry, commit=commit)
    if current.state in COMPLETED and OUTCOMES[_DECISIONS[commit]] is current.state:
        return None
    if current.state is not TransactionState.ONGOING:
        raise _invalid_state(entry, commit=commit)
    return decided(
        current,
        _DECISIONS[commit],
        client_transaction_version=0,
        next_producer_id=NO_PRODUCER_ID,
        now_ms=now_ms,
    )


def fence(
    entry: TransactionalId,
    *,
    transaction_version: int,
    draw_producer_id: DrawProducerId,
    now_ms: int,
) -> Transaction:
    """The abort of an open transaction whose producer has no say in it any more."""
    if transaction_version < FIRST_VERSION_OF_EPOCH_BUMPS:
        return fenced(entry.current, now_ms=now_ms)
    return _decided(entry, commit=False, draw_producer_id=draw_producer_id, now_ms=now_ms)


def _decided(
    entry: TransactionalId, *, commit: bool, draw_producer_id: DrawProducerId, now_ms: int
) -> Transaction:
    """The decision with the next epoch; with another producer id to come where there is none."""
    exhausted = entry.current.is_epoch_exhausted
    return decided(
        entry.current,
        _DECISIONS[commit],
        client_transaction_version=FIRST_VERSION_OF_EPOCH_BUMPS,
        next_producer_id=draw_producer_id() if exhausted else NO_PRODUCER_ID,
        now_ms=now_ms,
    )


# Which ids are due


def has_timed_out(entry: TransactionalId, now_ms: int) -> bool:
    """Whether the transaction has been open for longer than its producer wanted."""
    current = entry.current
    return (
        entry.pending is None
        and current.state is TransactionState.ONGOING
        and not current.is_two_phase_commit
        and current.start_timestamp_ms + current.timeout_ms < now_ms
    )


def has_expired(entry: TransactionalId, *, expiration_ms: int, now_ms: int) -> bool:
    """Whether the id has been idle for so long that it is to be forgotten."""
    current = entry.current
    return (
        entry.pending is None
        and current.state in IDLE
        and current.last_update_timestamp_ms <= now_ms - expiration_ms
    )


# What is told of a refusal


def _answer_to_prepared(entry: TransactionalId, *, commit: bool) -> ApiError:
    if _DECISIONS[commit] is entry.current.state:
        return _is_prepared(entry)
    return _invalid_state(entry, commit=commit)


def _is_prepared(entry: TransactionalId) -> ApiError:
    return ApiError(
        ErrorCode.concurrent_transactions,
        f"The transaction of {entry.name!r} is {entry.current.state.title}.",
    )


def _invalid_state(entry: TransactionalId, *, commit: bool) -> ApiError:
    return ApiError(
        ErrorCode.invalid_txn_state,
        f"The transaction of {entry.name!r} is {entry.current.state.title} and cannot be "
        f"{'committed' if commit else 'aborted'}.",
    )


def _wrong_producer_id(entry: TransactionalId, producer: ProducerIdAndEpoch) -> ApiError:
    return ApiError(
        ErrorCode.invalid_producer_id_mapping,
        f"The producer id of {entry.name!r} is {entry.current.producer_id}, not "
        f"{producer.producer_id}.",
    )


def _fenced(entry: TransactionalId, producer_id: int, producer_epoch: int) -> ApiError:
    current = entry.current
    return ApiError(
        ErrorCode.producer_fenced,
        f"Producer {producer_id} with epoch {producer_epoch} is fenced: {entry.name!r} has "
        f"producer {current.producer_id} with epoch {current.producer_epoch}.",
    )
