"""Verifies transactional batches with the transaction coordinator before the append (KIP-890).

Purpose: between a produce request and its append, find the partitions in which the transaction is
not open, verify them in one request, and store each result. Invariant: nothing is appended while a
batch waits, and no time passes between the last reply and the append. Must not know: what happens
then. Source: `kafka.server.ReplicaManager.handleProduceAppend` and
`maybeSendPartitionsToTransactionCoordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker, Call, Wait
from broker_ref.coordination.replies import Reply
from broker_ref.log.batch import BatchHeader
from broker_ref.log.errors import LogError
from broker_ref.log.verification_guards import VerificationGuard
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.partition import PartitionKey
from broker_ref.transaction.add_partitions_to_txn_manager import REQUEST_TIMEOUT_MS, Answer

FIRST_PRODUCE_VERSION_THAT_KNOWS_ABORTABLE: Final = 11
FIRST_PRODUCE_VERSION_THAT_ADDS: Final = 12

_RETRIABLE: Final = (
    ErrorCode.network_exception,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
"""Errors that not all producers retry; they are replaced by NOT_ENOUGH_REPLICAS."""


@dataclass(slots=True, kw_only=True)
class VerifiedBatch:
    """A transactional batch; after verification it has a guard or an error."""

    key: PartitionKey
    header: BatchHeader
    guard: VerificationGuard | None = None
    error: ApiError | LogError | None = None


@dataclass(slots=True, kw_only=True)
class _DelayedVerification:
    """A produce request that waits for the coordinator's reply.

    If the previous transaction of the producer is still completing, it retries for a while, which
    is cheaper than a retry by the producer.
    """

    broker: Broker
    version: int
    transactional_id: str
    batches: Sequence[VerifiedBatch]
    then: Callable[[int], object]
    retries_until_ms: int
    reply: Reply[Answer] | None = None

    @property
    def adds(self) -> bool:
        """Return whether partitions are added to the transaction."""
        return self.version >= FIRST_PRODUCE_VERSION_THAT_ADDS

    def ask(self, now_ms: int) -> object:
        """Verify the partitions without an open transaction; return the response or a wait."""
        for batch in self.batches:
            if batch.header.has_producer_id:
                self._begin(batch)
        asked = self._asked()
        is_on = self.adds or self.broker.config.transaction_partition_verification_enable
        if not asked or not is_on:
            return self.then(now_ms)
        self.reply = self.broker.verifications.add_or_verify_transaction(
            self.transactional_id,
            asked[0].header.producer_id,
            asked[0].header.producer_epoch,
            tuple(dict.fromkeys(batch.key for batch in asked)),
            add=self.adds,
        )
        done = self.try_complete(now_ms)
        if done is not None:
            return done
        # The verification has its own timeout, and may wait for an earlier one.
        deadline_ms = now_ms + 2 * REQUEST_TIMEOUT_MS + 1000
        return Wait(operation=self, keys=(self.reply,), deadline_ms=deadline_ms)

    def try_complete(self, now_ms: int) -> object | None:
        """Return the response if the coordinator has replied."""
        answer = None if self.reply is None else self.reply.result
        if answer is None:
            return None
        is_between = ErrorCode.concurrent_transactions in answer.values()
        if self.adds and is_between and now_ms < self.retries_until_ms:
            again_ms = now_ms + self.broker.config.add_partitions_to_txn_retry_backoff_ms
            return Wait(operation=_DelayedRetry(verifying=self), keys=(), deadline_ms=again_ms)
        for batch in self._asked():
            batch.error = _error(answer[batch.key], batch, self.version)
        return self.then(now_ms)

    def expire(self, now_ms: int) -> object:
        """Return the response without a reply."""
        for batch in self._asked():
            batch.error = _error(ErrorCode.network_exception, batch, self.version)
        return self.then(now_ms)

    def _asked(self) -> list[VerifiedBatch]:
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
        """Return None: only the deadline completes it."""

    def expire(self, now_ms: int) -> object:
        """Retry the verification."""
        return self.verifying.ask(now_ms)


def verify_then(
    broker: Broker,
    call: Call,
    transactional_id: str,
    batches: Sequence[VerifiedBatch],
    *,
    then: Callable[[int], object],
) -> object:
    """Verify the batches of one producer if needed, then call `then` with the time.

    Returns the result of `then`, or a `Wait` for it.
    """
    verifying = _DelayedVerification(
        broker=broker,
        version=call.version,
        transactional_id=transactional_id,
        batches=batches,
        then=then,
        retries_until_ms=call.now_ms + broker.config.add_partitions_to_txn_retry_backoff_max_ms,
    )
    return verifying.ask(call.now_ms)


def _error(said: ErrorCode, batch: VerifiedBatch, version: int) -> ApiError | None:
    """Return the producer's error for the coordinator's error code, or None if verified."""
    place = f"{batch.key.topic}-{batch.key.partition}"
    producer = f"producer {batch.header.producer_id} (epoch {batch.header.producer_epoch})"
    if said is ErrorCode.none:
        return None
    is_retriable = said in _RETRIABLE or (
        said is ErrorCode.concurrent_transactions and version < FIRST_PRODUCE_VERSION_THAT_ADDS
    )
    if is_retriable:
        return ApiError(
            ErrorCode.not_enough_replicas,
            f"Unable to verify that {place} is part of the transaction of {producer}: {said.name}.",
        )
    if (
        said is ErrorCode.transaction_abortable
        and version < FIRST_PRODUCE_VERSION_THAT_KNOWS_ABORTABLE
    ):
        said = ErrorCode.invalid_txn_state
    return ApiError(said, f"{place} is not part of the transaction of {producer}: {said.name}.")
