"""AllocateProducerIds (67), version 0: allocate a block of producer ids to a broker (KIP-730).

The error is STALE_BROKER_EPOCH if the broker epoch in the request is not the registered epoch.
Source: `kafka.server.ControllerApis.handleAllocateProducerIdsRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsRequest:
    """An AllocateProducerIds request from a broker."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIdsResponse:
    """An allocated block of producer ids: the first id and the number of ids."""

    error_code: ErrorCode = ErrorCode.none
    producer_id_start: int = -1
    producer_id_len: int = 0
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocate a block of producer ids."""
    del call
    try:
        context.controller.check_broker_epoch(request.broker_id, request.broker_epoch)
        block = context.controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.error_code)
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))


API: Final = Api(
    key=67,
    versions=range(1),
    request=AllocateProducerIdsRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)
