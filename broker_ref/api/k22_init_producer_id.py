"""InitProducerId (22), versions 0 to 6: the id of an idempotent or transactional producer.

Behaviour: without a transactional id, the response is an unused id with epoch 0; as in Kafka, a
producer that names its old id and epoch also gets a new id. With a transactional id, it is that
id's producer id with a bumped epoch, which fences the previous producer; an open transaction is
aborted first, with CONCURRENT_TRANSACTIONS until then. A producer that names its id and epoch gets
the next epoch (KIP-360). INVALID_REQUEST: only one of the two, or an empty transactional id.
Version 6 is not stable in Kafka 4.3 and requires `unstable.api.versions.enable`: two-phase commit
(KIP-939) requires `transaction.two.phase.commit.enable`, otherwise it is
TRANSACTIONAL_ID_AUTHORIZATION_FAILED; KeepPreparedTxn is UNSUPPORTED_VERSION. While the broker
waits for a block of ids from the controller, the response waits; after a timeout it is
COORDINATOR_LOAD_IN_PROGRESS, which clients retry. Source:
`kafka.server.KafkaApis.handleInitProducerIdRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.coordinator_replies import answer
from broker_ref.api.fencing import producer_fenced_code
from broker_ref.replication.producer_id_manager import (
    PRODUCER_IDS,
    WAIT_FOR_IDS_MS,
    ProducerIdManager,
)
from broker_ref.transaction.coordinator import InitProducerIdArguments, InitProducerIdResult
from broker_ref.transaction.request_validation import ProducerIdAndEpoch

FIRST_UNSTABLE_VERSION: Final = 6
FIRST_VERSION_OF_PRODUCER_FENCED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """An InitProducerId request; -1 for an unknown producer id or epoch."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """The producer id and epoch."""

    error_code: ErrorCode = ErrorCode.none
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedProducerId:
    """A request that waits for the broker to get producer ids."""

    producer_ids: ProducerIdManager

    def try_complete(self, now_ms: int) -> InitProducerIdResponse | None:
        """Return the response if an id is available."""
        del now_ms
        producer_id = self.producer_ids.generate_producer_id()
        if producer_id is None:
            return None
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def expire(self, now_ms: int) -> InitProducerIdResponse:
        """Return the response if no id became available."""
        return self.try_complete(now_ms) or InitProducerIdResponse(
            error_code=ErrorCode.coordinator_load_in_progress
        )


def handle(broker: Broker, call: Call, request: InitProducerIdRequest) -> object:
    """Return an unused id, or the transactional id's from its coordinator."""
    only_one_named = (request.producer_id == -1) != (request.producer_epoch == -1)
    if request.transactional_id == "" or only_one_named:
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return _initialize(broker, call, request, request.transactional_id)
    delayed = DelayedProducerId(producer_ids=broker.producer_ids)
    return delayed.try_complete(call.now_ms) or Wait(
        operation=delayed, keys=(PRODUCER_IDS,), deadline_ms=call.now_ms + WAIT_FOR_IDS_MS
    )


def _initialize(
    broker: Broker, call: Call, request: InitProducerIdRequest, transactional_id: str
) -> object:
    expected = None
    if request.producer_id != -1:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    reply = broker.transactions.handle_init_producer_id(
        InitProducerIdArguments(
            transactional_id=transactional_id,
            timeout_ms=request.transaction_timeout_ms,
            expected=expected,
            enables_two_phase_commit=request.enable2_pc,
            keeps_prepared_transaction=request.keep_prepared_txn,
        ),
        call.now_ms,
    )

    def respond(result: InitProducerIdResult) -> InitProducerIdResponse:
        return InitProducerIdResponse(
            error_code=producer_fenced_code(
                result.error_code,
                version=call.version,
                first_version=FIRST_VERSION_OF_PRODUCER_FENCED,
            ),
            producer_id=result.producer_id,
            producer_epoch=result.producer_epoch,
        )

    return answer(reply, respond)


API: Final = Api(
    key=22,
    versions=range(7),
    request=InitProducerIdRequest,
    handle=handle,
    unstable_from=FIRST_UNSTABLE_VERSION,
)
