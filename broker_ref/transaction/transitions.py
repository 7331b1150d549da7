"""A transactional id as its coordinator knows it, and what each step makes of it.

Purpose: the values that the log keeps, one after the other, and the functions from one to the
next: a new epoch, a new producer id, added partitions, the decision, the end. Invariants: a value
never changes; each step is a row of the table in `states`; an epoch never falls for one producer
id, and the highest one, 32767, is used by no producer, so that one can always be fenced. What it
must not know: requests, the log, and when a value counts.
Source: Kafka's `TransactionMetadata` and `TxnTransitMetadata`, KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.states import IDLE, OUTCOMES, TARGETS, TransactionState

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
EPOCH_MAX: Final = 2**15 - 1
LAST_PRODUCERS_EPOCH: Final = EPOCH_MAX - 1
"""The highest epoch that a producer gets; one more is left to fence it."""

NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a producer with two-phase commit: its transactions never time out."""

FIRST_VERSION_OF_EPOCH_BUMPS: Final = 2
"""Of `transaction.version`: each transaction has an epoch of its own (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id at one time: its producer and its last transaction.

    `previous_producer_id` is the producer id before the last step; `next_producer_id` the one that
    the producer has been told of, while the markers have the present one (-1 where there is none).
    `last_producer_epoch` is the epoch whose holder may ask again for what it has been given, -1
    for none. `partitions` are those of a transaction that is not over.
    `client_transaction_version` is that of the request which led here.
    """

    producer_id: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    producer_epoch: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[PartitionKey] = frozenset()
    start_timestamp_ms: int = NO_TIMESTAMP
    last_update_timestamp_ms: int
    client_transaction_version: int = 0

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether there is no further epoch for a producer with this id."""
        return self.producer_epoch >= LAST_PRODUCERS_EPOCH

    @property
    def is_two_phase_commit(self) -> bool:
        """Whether it never times out, because somebody else decides (KIP-939)."""
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def bumps_epochs(self) -> bool:
        """Whether the last request was of a version that has an epoch for each transaction."""
        return self.client_transaction_version >= FIRST_VERSION_OF_EPOCH_BUMPS


def unused(producer_id: int, *, timeout_ms: int, now_ms: int) -> Transaction:
    """A new transactional id that no producer has yet."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        last_update_timestamp_ms=now_ms,
    )


def with_next_epoch(
    current: Transaction, *, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> Transaction:
    """The id for a producer that starts, or goes on after an error.

    One that names the epoch before the present one asks again, and gets the present one. Any other
    epoch is PRODUCER_FENCED. UNKNOWN_SERVER_ERROR where epochs are exhausted, as Kafka says.
    """
    if current.is_epoch_exhausted:
        raise ApiError(
            ErrorCode.unknown_server_error,
            f"Producer id {current.producer_id} has no epoch after {current.producer_epoch}.",
        )
    epoch = current.producer_epoch + 1
    last_epoch = NO_PRODUCER_EPOCH
    if expected_epoch is not None:
        if current.producer_epoch in (expected_epoch, NO_PRODUCER_EPOCH):
            last_epoch = current.producer_epoch
        elif expected_epoch == current.last_producer_epoch:
            epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
        else:
            raise ApiError(
                ErrorCode.producer_fenced,
                f"Epoch {expected_epoch} of producer id {current.producer_id} is neither the "
                f"present one, {current.producer_epoch}, nor the one before.",
            )
    return _step(
        current,
        TransactionState.EMPTY,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_timestamp_ms=NO_TIMESTAMP,
        last_update_timestamp_ms=now_ms,
    )


def with_producer_id(
    current: Transaction,
    producer_id: int,
    *,
    timeout_ms: int,
    keeps_last_epoch: bool,
    now_ms: int,
) -> Transaction:
    """The id with another producer id, because the epochs of the present one are exhausted."""
    last_epoch = current.producer_epoch if keeps_last_epoch else NO_PRODUCER_EPOCH
    return _step(
        current,
        TransactionState.EMPTY,
        producer_id=producer_id,
        producer_epoch=0,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_timestamp_ms=NO_TIMESTAMP,
        last_update_timestamp_ms=now_ms,
    )


def with_partitions(
    current: Transaction,
    partitions: Collection[PartitionKey],
    *,
    client_transaction_version: int,
    now_ms: int,
) -> Transaction:
    """The transaction with these partitions as well; begun now where there was none."""
    begins = current.state in IDLE
    return _step(
        current,
        TransactionState.ONGOING,
        partitions=current.partitions.union(partitions),
        start_timestamp_ms=now_ms if begins else current.start_timestamp_ms,
        last_update_timestamp_ms=now_ms,
        client_transaction_version=client_transaction_version,
    )


def decided(
    current: Transaction,
    state: TransactionState,
    *,
    client_transaction_version: int,
    next_producer_id: int,
    now_ms: int,
) -> Transaction:
    """The transaction that is to be committed or aborted.

    From version 2 on its markers have the next epoch, which fences whoever has the present one.
    An abort where nothing was begun counts as begun now.
    """
    epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
    if client_transaction_version >= FIRST_VERSION_OF_EPOCH_BUMPS:
        epoch, last_epoch = min(epoch + 1, EPOCH_MAX), epoch
    begun = current.state is TransactionState.ONGOING
    return _step(
        current,
        state,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        next_producer_id=next_producer_id,
        start_timestamp_ms=current.start_timestamp_ms if begun else now_ms,
        last_update_timestamp_ms=now_ms,
        client_transaction_version=client_transaction_version,
    )


def fenced(current: Transaction, *, now_ms: int) -> Transaction:
    """The transaction that is to be aborted with the next epoch (before version 2)."""
    epoch = min(current.producer_epoch + 1, EPOCH_MAX)
    return dataclasses.replace(
        decided(
            current,
            TransactionState.PREPARE_ABORT,
            client_transaction_version=0,
            next_producer_id=NO_PRODUCER_ID,
            now_ms=now_ms,
        ),
        producer_epoch=epoch,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


def completed(current: Transaction, *, now_ms: int) -> Transaction:
    """The end of what was decided, with the producer id that is next where there is one."""
    rotates = current.bumps_epochs and current.next_producer_id != NO_PRODUCER_ID
    return _step(
        current,
        OUTCOMES[current.state],
        producer_id=current.next_producer_id if rotates else current.producer_id,
        producer_epoch=0 if rotates else current.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        last_update_timestamp_ms=now_ms,
    )


def expired(current: Transaction) -> Transaction:
    """The id that is to be forgotten."""
    return _step(current, TransactionState.DEAD, partitions=frozenset())


def _step(current: Transaction, state: TransactionState, **changed: Any) -> Transaction:
    assert state in TARGETS[current.state], f"{state.title} does not follow {current.state.title}"
    return dataclasses.replace(
        current, state=state, previous_producer_id=current.producer_id, **changed
    )
