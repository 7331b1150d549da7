"""Transactional batches that wait until their coordinator has been asked about them (KIP-890).

Purpose: what comes between a produce request and the append: find the partitions in which the
transaction is not open, ask about them all at once, and keep what the answer means for each.
Invariant: nothing has been appended while a batch waits, and no time has passed between the last
answer and the append. What it must not know: what is done then. Source: ReplicaManager's
handleProduceAppend and maybeSendPartitionsToTransactionCoordinator of Apache Kafka.
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
from broker_ref.transaction.verification import REQUEST_TIMEOUT_MS, Answer

FIRST_PRODUCE_VERSION_THAT_KNOWS_ABORTABLE: Final = 11
FIRST_PRODUCE_VERSION_THAT_ADDS: Final = 12

_RETRIABLE: Final = (
    ErrorCode.network_exception,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
"""Answers that not every producer tries again after: they are told NOT_ENOUGH_REPLICAS instead."""


@dataclass(slots=True, kw_only=True)
class VerifiedBatch:
    """A transactional batch; once verified, it is appended with the guard, or has an error."""

    key: PartitionKey
    header: BatchHeader
    guard: VerificationGuard | None = None
    error: ApiError | LogError | None = None


@dataclass(slots=True, kw_only=True)
class _Verifying:
    """Waits for the coordinator's answer, and then does what was to be done."""

    reply: Reply[Answer]
    asked: Sequence[VerifiedBatch]
    version: int
    then: Callable[[int], object]

    def try_complete(self, now_ms: int) -> object | None:
        """What comes then, once there is an answer."""
        if self.reply.result is None:
            return None
        for batch in self.asked:
            batch.error = _error(self.reply.result[batch.key], batch, self.version)
        return self.then(now_ms)

    def expire(self, now_ms: int) -> object:
        """What comes then, without an answer."""
        for batch in self.asked:
            batch.error = _error(ErrorCode.network_exception, batch, self.version)
        return self.then(now_ms)


def verify_and(
    broker: Broker,
    call: Call,
    transactional_id: str,
    batches: Sequence[VerifiedBatch],
    *,
    then: Callable[[int], object],
) -> object:
    """Ask about batches of one producer, where that is needed, and then do `then` with the time.

    What that returns, or a `Wait` for it.
    """
    adds = call.version >= FIRST_PRODUCE_VERSION_THAT_ADDS
    for batch in batches:
        if batch.header.has_producer_id:
            _begin(broker, batch, supports_epoch_bump=adds)
    asked = [batch for batch in batches if batch.guard is not None]
    if not asked or not (adds or broker.config.transaction_partition_verification_enable):
        return then(call.now_ms)
    reply = broker.verifications.verify(
        transactional_id,
        asked[0].header.producer_id,
        asked[0].header.producer_epoch,
        tuple(dict.fromkeys(batch.key for batch in asked)),
        add=adds,
        now_ms=call.now_ms,
        retries=adds,
    )
    verifying = _Verifying(reply=reply, asked=asked, version=call.version, then=then)
    done = verifying.try_complete(call.now_ms)
    if done is not None:
        return done
    # The question has a time limit of its own, and may have to wait for another one.
    deadline_ms = call.now_ms + 2 * REQUEST_TIMEOUT_MS + 1000
    return Wait(operation=verifying, keys=(reply,), deadline_ms=deadline_ms)


def _begin(broker: Broker, batch: VerifiedBatch, *, supports_epoch_bump: bool) -> None:
    try:
        partition = broker.replicas.partition(batch.key.topic, batch.key.partition)
        batch.guard = partition.begin_verification(
            batch.header.producer_id,
            batch.header.producer_epoch,
            batch.header.base_sequence,
            supports_epoch_bump=supports_epoch_bump,
        )
    except (ApiError, LogError) as error:
        batch.error = error


def _error(said: ErrorCode, batch: VerifiedBatch, version: int) -> ApiError | None:
    """What a producer is told where its coordinator has said this; None where it is verified."""
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
            f"Unable to verify that {place} has been added to the transaction of {producer}: "
            f"{said.name}.",
        )
    if (
        said is ErrorCode.transaction_abortable
        and version < FIRST_PRODUCE_VERSION_THAT_KNOWS_ABORTABLE
    ):
        said = ErrorCode.invalid_txn_state
    return ApiError(said, f"{place} is not part of the transaction of {producer}: {said.name}.")
