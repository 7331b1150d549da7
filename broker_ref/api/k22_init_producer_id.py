"""InitProducerId (22), versions 0 to 5: an id for an idempotent producer.

Behaviour: an id that nobody ever had, with epoch 0. A producer that has lost its state and names
its old id and epoch gets a new id, as with Kafka where it has no transactional id (KIP-360); one
of the two alone, or an empty transactional id, is INVALID_REQUEST. A transactional id is refused
with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: transactions are not served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, transactions_refused
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """Who asks: -1 for a producer id or epoch that it has not."""

    transactional_id: str | None
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """The id and epoch."""

    error_code: ErrorCode = ErrorCode.none
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Draw an id."""
    del call
    only_one_named = (request.producer_id == -1) != (request.producer_epoch == -1)
    if request.transactional_id == "" or only_one_named:
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=transactions_refused().error_code)
    try:
        producer_id = broker.producer_ids.next()
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.error_code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


API: Final = Api(key=22, versions=range(6), request=InitProducerIdRequest, handle=handle)
