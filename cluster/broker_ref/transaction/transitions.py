"""The values of a transactional id and their transitions.

This module defines the values that the log stores, and the functions that return the next value
after a transition. The next value contains a new epoch, a new producer id, added partitions, the
prepared state or the completed state. Invariants: values are immutable, and each transition is in
the table in `states`. The epoch of a producer id never decreases. No producer receives the highest
epoch, 32767, which is reserved for fencing the producer. Source: Kafka's `TransactionMetadata` and
`TxnTransitMetadata`, KIP-360, KIP-890, KIP-939.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.states import IDLE, OUTCOMES, TARGETS, TransactionState

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
EPOCH_MAX: Final = 2**15 - 1
LAST_PRODUCERS_EPOCH: Final = EPOCH_MAX - 1
"""The highest epoch that a producer can receive. The next epoch fences the producer."""

NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of a producer with two-phase commit. Its transactions do not time out."""

FIRST_VERSION_OF_EPOCH_BUMPS: Final = 2
"""The first `transaction.version` in which each transaction has its own epoch (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id: its producer and its last transaction.

    `previous_producer_id` is the producer id before the last transition. `next_producer_id` is the
    producer id that the producer receives while the markers still contain the current id.
    `last_producer_epoch` is the previous epoch. A producer with this epoch can retry the last epoch
    bump. Missing values are -1. `partitions` contains the partitions of an open or prepared
    transaction. `client_transaction_version` is the transaction version of the last request.
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
        """Return whether the epochs of this producer id are exhausted."""
        return self.producer_epoch >= LAST_PRODUCERS_EPOCH

    @property
    def is_two_phase_commit(self) -> bool:
        """Return whether the producer uses two-phase commit (KIP-939).

        The transactions of such a producer never time out.
        """
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def bumps_epochs(self) -> bool:
        """Return whether each transaction of the client has its own epoch."""
        return self.client_transaction_version >= FIRST_VERSION_OF_EPOCH_BUMPS


def new_transactional_id(producer_id: int, *, timeout_ms: int, now_ms: int) -> Transaction:
    """Return a new transactional id with a producer id, but without a producer epoch."""
    return Transaction(
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        last_update_timestamp_ms=now_ms,
    )


def prepare_increment_producer_epoch(
    current: Transaction, *, timeout_ms: int, expected_epoch: int | None, now_ms: int
) -> Transaction:
    """Return the transactional id with the next epoch, after the producer has sent InitProducerId.

    A producer that sends the previous epoch is retrying its request, and receives the current
    epoch.

    Raises: ApiError (PRODUCER_FENCED for any other epoch, or UNKNOWN_SERVER_ERROR if the epochs are
    exhausted, as in Kafka).
    """
    if current.is_epoch_exhausted:
        raise ApiError(
            ErrorCode.unknown_server_error,
            f"The epochs of producer id {current.producer_id} are exhausted after epoch "
            f"{current.producer_epoch}.",
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
                f"Epoch {expected_epoch} of producer id {current.producer_id} is fenced. It is "
                f"neither the current epoch {current.producer_epoch} nor the previous one.",
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


def prepare_producer_id_rotation(
    current: Transaction,
    producer_id: int,
    *,
    timeout_ms: int,
    keeps_last_epoch: bool,
    now_ms: int,
) -> Transaction:
    """Return the transactional id with a new producer id, because the epochs are exhausted."""
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


def prepare_add_partitions(
    current: Transaction,
    partitions: Collection[PartitionKey],
    *,
    client_transaction_version: int,
    now_ms: int,
) -> Transaction:
    """Return the transaction with the partitions added. If no transaction is open, begin one."""
    begins = current.state in IDLE
    return _step(
        current,
        TransactionState.ONGOING,
        partitions=current.partitions.union(partitions),
        start_timestamp_ms=now_ms if begins else current.start_timestamp_ms,
        last_update_timestamp_ms=now_ms,
        client_transaction_version=client_transaction_version,
    )


def prepare_abort_or_commit(
    current: Transaction,
    state: TransactionState,
    *,
    client_transaction_version: int,
    next_producer_id: int,
    now_ms: int,
) -> Transaction:
    """Return the transaction in its prepared state.

    With transaction version 2 or later, the markers contain the next epoch, which fences producers
    that use the current epoch. If no transaction is open, the start time is the current time.
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


def prepare_fence_producer_epoch(current: Transaction, *, now_ms: int) -> Transaction:
    """Return the transaction in PrepareAbort with the next epoch (transaction version 0 or 1)."""
    epoch = min(current.producer_epoch + 1, EPOCH_MAX)
    return dataclasses.replace(
        prepare_abort_or_commit(
            current,
            TransactionState.PREPARE_ABORT,
            client_transaction_version=0,
            next_producer_id=NO_PRODUCER_ID,
            now_ms=now_ms,
        ),
        producer_epoch=epoch,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


def prepare_complete(current: Transaction, *, now_ms: int) -> Transaction:
    """Return the completed transaction, with the next producer id if there is one."""
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


def prepare_dead(current: Transaction) -> Transaction:
    """Return the transactional id in state Dead."""
    return _step(current, TransactionState.DEAD, partitions=frozenset())


def _step(current: Transaction, state: TransactionState, **changed: Any) -> Transaction:
    assert state in TARGETS[current.state], f"invalid {current.state.title} -> {state.title}"
    return dataclasses.replace(
        current, state=state, previous_producer_id=current.producer_id, **changed
    )
