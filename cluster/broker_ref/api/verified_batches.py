"""Verifies transactional batches with the transaction coordinator before the append (KIP-890).

If the producer has no open transaction in some partitions of a Produce request, one request to the
coordinator verifies these partitions. The result is stored for each batch. Invariants: nothing is
appended while a batch is waiting, and the append immediately follows the coordinator's reply.
Source: `kafka.server.ReplicaManager.handleProduceAppend` and
`maybeSendPartitionsToTransactionCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker, Call, Wait
from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass
from broker_ref.log.batch import BatchHeader
from broker_ref.log.errors import LogError
from broker_ref.log.verification_guards import VerificationGuard
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.add_partitions_to_txn_manager import (
    REQUEST_TIMEOUT_MS,
    PartitionErrorCodes,
)

FIRST_PRODUCE_VERSION_THAT_KNOWS_ABORTABLE: Final = 11
FIRST_PRODUCE_VERSION_THAT_ADDS: Final = 12

_RETRIABLE: Final = (
    ErrorCode.network_exception,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
"""Errors after which some producers do not retry. They are replaced with NOT_ENOUGH_REPLICAS."""


@dataclass(slots=True, kw_only=True)
class VerifiedBatch:
    """A transactional batch, with its verification guard and its verification error, if any."""

    key: PartitionKey
    header: BatchHeader
    guard: VerificationGuard | None = None
    error: ApiError | LogError | None = None


@dataclass(slots=True, kw_only=True)
class _DelayedVerification:
    """A Produce request that is waiting for the transaction coordinator's reply.

    While the coordinator is completing the producer's previous transaction, the broker repeats its
    request to the coordinator for a limited time. This is cheaper than a retry by the producer.
    """

    broker: Broker
    version: int
    transactional_id: str
    batches: Sequence[VerifiedBatch]
    then: Callable[[int], object]
    retries_until_ms: int
    reply: Reply[PartitionErrorCodes] | None = None

    @property
    def adds(self) -> bool:
        """Return whether the verification also adds the partitions to the transaction."""
        return self.version >= FIRST_PRODUCE_VERSION_THAT_ADDS

    def verify(self, now_ms: int) -> object:
        """Verify the partitions that have no open transaction. Return the response or a `Wait`."""
        for batch in self.batches:
            if batch.header.has_producer_id:
                self._begin(batch)
        to_verify = self._to_verify()
        is_on = self.adds or self.broker.config.transaction_partition_verification_enable
        if not to_verify or not is_on:
            return self.then(now_ms)
        self.reply = self.broker.verifications.add_or_verify_transaction(
            self.transactional_id,
            to_verify[0].header.producer_id,
            to_verify[0].header.producer_epoch,
            tuple(dict.fromkeys(batch.key for batch in to_verify)),
            add=self.adds,
        )
        done = self.try_complete(now_ms)
        if done is not None:
            return done
        # The verification has its own timeout and may have to wait for an earlier verification.
        deadline_ms = now_ms + 2 * REQUEST_TIMEOUT_MS + 1000
        return Wait(operation=self, keys=(self.reply,), deadline_ms=deadline_ms)

    def try_complete(self, now_ms: int) -> object | None:
        """Return the response, or a `Wait` for a retry, if the coordinator has replied."""
        error_codes = None if self.reply is None else self.reply.result
        if error_codes is None:
            return None
        is_between = ErrorCode.concurrent_transactions in error_codes.values()
        if self.adds and is_between and now_ms < self.retries_until_ms:
            again_ms = now_ms + self.broker.config.add_partitions_to_txn_retry_backoff_ms
            return Wait(operation=_DelayedRetry(verifying=self), keys=(), deadline_ms=again_ms)
        for batch in self._to_verify():
            batch.error = _error(error_codes[batch.key], batch, self.version)
        return self.then(now_ms)

    def expire(self, now_ms: int) -> object:
        """Return the response to the client if the coordinator does not reply in time."""
        for batch in self._to_verify():
            batch.error = _error(ErrorCode.network_exception, batch, self.version)
        return self.then(now_ms)

    def _to_verify(self) -> list[VerifiedBatch]:
        return [batch for batch in self.batches if batch.guard is not None]

    def _begin(self, batch: VerifiedBatch) -> None:
        batch.guard = batch.error = None
        try:
            partition = self.broker.replicas.partition(batch.key.topic, batch.key.partition)
            batch.guard = partition.maybe_start_transaction_verification(
                batch.header.producer_id,
                batch.header.producer_epoch,
                batch.header.base_sequence,
                supports_epoch_bump=self.adds,
            )
        except (ApiError, LogError) as error:
            batch.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class _DelayedRetry:
    """A verification that is retried after a backoff."""

    verifying: _DelayedVerification

    def try_complete(self, now_ms: int) -> None:
        """Return None, because the verification is retried only at the deadline."""

    def expire(self, now_ms: int) -> object:
        """Retry the verification."""
        return self.verifying.verify(now_ms)


def verify_then(
    broker: Broker,
    call: Call,
    transactional_id: str,
    batches: Sequence[VerifiedBatch],
    *,
    then: Callable[[int], object],
) -> object:
    """Verify the batches of one producer if necessary, then call `then` with the current time.

    Return the result of `then`, or a `Wait` if the coordinator must reply first.
    """
    verifying = _DelayedVerification(
        broker=broker,
        version=call.version,
        transactional_id=transactional_id,
        batches=batches,
        then=then,
        retries_until_ms=call.now_ms + broker.config.add_partitions_to_txn_retry_backoff_max_ms,
    )
    return verifying.verify(call.now_ms)


def _error(error_code: ErrorCode, batch: VerifiedBatch, version: int) -> ApiError | None:
    """Return the error that the producer receives, or None if the verification succeeded."""
    place = f"{batch.key.topic}-{batch.key.partition}"
    producer = f"producer {batch.header.producer_id} (epoch {batch.header.producer_epoch})"
    if error_code is ErrorCode.none:
        return None
    is_retriable = error_code in _RETRIABLE or (
        error_code is ErrorCode.concurrent_transactions
        and version < FIRST_PRODUCE_VERSION_THAT_ADDS
    )
    if is_retriable:
        return ApiError(
            ErrorCode.not_enough_replicas,
            f"The broker could not verify that {place} is part of the transaction of {producer}. "
            f"The verification failed with {error_code.name}. Retry later.",
        )
    if (
        error_code is ErrorCode.transaction_abortable
        and version < FIRST_PRODUCE_VERSION_THAT_KNOWS_ABORTABLE
    ):
        error_code = ErrorCode.invalid_txn_state
    return ApiError(
        error_code,
        f"Partition {place} is not part of the transaction of {producer}. The verification failed "
        f"with {error_code.name}.",
    )
