"""AllocateProducerIds (67), version 0: a block of unused producer ids for a broker (KIP-730).

Behaviour: STALE_BROKER_EPOCH if the broker's registration is not current. Source:
`kafka.server.ControllerApis.handleAllocateProducerIdsRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """The broker that needs ids."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """The first id of the block and its length."""

    error_code: ErrorCode = ErrorCode.none
    producer_id_start: int = -1
    producer_id_len: int = 0
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocate a block."""
    del call
    try:
        context.controller.check_broker_epoch(request.broker_id, request.broker_epoch)
        block = context.controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.error_code)
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))


API: Final = Api(key=67, versions=range(1), request=AllocateProducerIdsRequest, handle=handle)
