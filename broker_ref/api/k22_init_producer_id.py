"""InitProducerId (22), versions 0 to 5: an id for an idempotent producer.

Behaviour: an id that nobody ever had, with epoch 0. A producer that has lost its state and names
its old id and epoch gets a new id, as with Kafka where it has no transactional id (KIP-360); one
of the two alone, or an empty transactional id, is INVALID_REQUEST. A transactional id is refused
with TRANSACTIONAL_ID_AUTHORIZATION_FAILED: transactions are not served. Where the broker has yet
to get ids from the controller the answer waits for them, and says COORDINATOR_LOAD_IN_PROGRESS, on
which clients ask again, when they do not come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import (
    NO_THROTTLE_MS,
    Api,
    Broker,
    Call,
    Wait,
    transactions_refused,
)
from broker_ref.replication.producer_ids import PRODUCER_IDS, ProducerIds

WAIT_FOR_IDS_MS: Final = 1000


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedProducerId:
    """A producer that waits for the broker to have ids."""

    producer_ids: ProducerIds

    def try_complete(self, now_ms: int) -> InitProducerIdResponse | None:
        """The response once there is an id."""
        del now_ms
        producer_id = self.producer_ids.next()
        if producer_id is None:
            return None
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def expire(self, now_ms: int) -> InitProducerIdResponse:
        """The response where none has come."""
        return self.try_complete(now_ms) or InitProducerIdResponse(
            error_code=ErrorCode.coordinator_load_in_progress
        )


def handle(broker: Broker, call: Call, request: InitProducerIdRequest) -> object:
    """Draw an id, or wait for one."""
    only_one_named = (request.producer_id == -1) != (request.producer_epoch == -1)
    if request.transactional_id == "" or only_one_named:
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=transactions_refused().error_code)
    delayed = DelayedProducerId(producer_ids=broker.producer_ids)
    return delayed.try_complete(call.now_ms) or Wait(
        operation=delayed, keys=(PRODUCER_IDS,), deadline_ms=call.now_ms + WAIT_FOR_IDS_MS
    )


API: Final = Api(key=22, versions=range(6), request=InitProducerIdRequest, handle=handle)
