"""InitProducerId (22), versions 0 to 6: the id of an idempotent or transactional producer.

If the request has no transactional id, the broker returns a new producer id with epoch 0. As in
Kafka, it ignores a producer id and epoch in such a request. If the request has a transactional id,
the broker returns the producer id of the transactional id with a higher epoch, which fences the
previous producer. If a transaction is open, the coordinator first aborts it and returns
CONCURRENT_TRANSACTIONS until the abort is complete. If the request contains the current producer id
and epoch, the broker returns the next epoch (KIP-360). The request is rejected with INVALID_REQUEST
if it contains only a producer id, only an epoch, or an empty transactional id.

Version 6 is not stable in Kafka 4.3 and requires `unstable.api.versions.enable`. Two-phase commit
(KIP-939) is rejected with TRANSACTIONAL_ID_AUTHORIZATION_FAILED if
`transaction.two.phase.commit.enable` is false. A request with `keep_prepared_txn` is rejected with
UNSUPPORTED_VERSION.

If the broker has run out of producer ids, the request waits until the controller has allocated a
new block. After a timeout, the broker returns COORDINATOR_LOAD_IN_PROGRESS, and clients retry.
Source: `kafka.server.KafkaApis.handleInitProducerIdRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.api.fencing import producer_fenced_code
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.replication.producer_id_manager import (
    PRODUCER_IDS,
    WAIT_FOR_IDS_MS,
    ProducerIdManager,
)
from broker_ref.security.acls import AclOperation, ResourceType
from broker_ref.transaction.coordinator import InitProducerIdArguments, InitProducerIdResult
from broker_ref.transaction.request_validation import ProducerIdAndEpoch

FIRST_UNSTABLE_VERSION: Final = 6
FIRST_VERSION_OF_PRODUCER_FENCED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """An InitProducerId request. An unknown producer id or epoch is -1."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """An InitProducerId response with the producer id and epoch."""

    error_code: ErrorCode = ErrorCode.none
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedProducerId:
    """An InitProducerId request that is waiting until the controller allocates producer ids."""

    producer_ids: ProducerIdManager

    def try_complete(self, now_ms: int) -> InitProducerIdResponse | None:
        """Return the response if a producer id is available."""
        del now_ms
        producer_id = self.producer_ids.generate_producer_id()
        if producer_id is None:
            return None
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def expire(self, now_ms: int) -> InitProducerIdResponse:
        """Return a producer id, or COORDINATOR_LOAD_IN_PROGRESS if none is available."""
        return self.try_complete(now_ms) or InitProducerIdResponse(
            error_code=ErrorCode.coordinator_load_in_progress
        )


def handle(broker: Broker, call: Call, request: InitProducerIdRequest) -> object:
    """Return a new producer id, or the id that the coordinator stores for the transactional id."""
    try:
        _authorize(call, request)
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.error_code)
    only_one_named = (request.producer_id == -1) != (request.producer_epoch == -1)
    if request.transactional_id == "" or only_one_named:
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return _initialize(broker, call, request, request.transactional_id)
    delayed = DelayedProducerId(producer_ids=broker.producer_ids)
    return delayed.try_complete(call.now_ms) or Wait(
        operation=delayed, keys=(PRODUCER_IDS,), deadline_ms=call.now_ms + WAIT_FOR_IDS_MS
    )


def _authorize(call: Call, request: InitProducerIdRequest) -> None:
    """Raise ApiError unless the client is authorized for transactional or idempotent writes."""
    name = request.transactional_id
    if name is not None:
        call.auth.check(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, name)
        if request.enable2_pc:
            call.auth.check(AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, name)
    elif not call.auth.allows_by_type(AclOperation.WRITE, ResourceType.TOPIC):
        call.auth.check(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)


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

    return respond_to(reply, respond)


API: Final = Api(
    key=22,
    versions=range(7),
    request=InitProducerIdRequest,
    handle=handle,
    unstable_from=FIRST_UNSTABLE_VERSION,
)
