"""UnregisterBroker (64), version 0: remove the registration of a broker (KIP-631).

The broker is removed from all ISRs and no longer leads partitions. If the broker is running, its
heartbeats fail with STALE_BROKER_EPOCH. The error is BROKER_ID_NOT_REGISTERED if the broker is not
registered. Source: `kafka.server.ControllerApis.handleUnregisterBroker`.
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
class UnregisterBrokerRequest:
    """An UnregisterBroker request."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerResponse:
    """An UnregisterBroker response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Remove the registration of the broker."""
    del call
    try:
        context.controller.unregister_broker(request.broker_id)
    except ApiError as error:
        return UnregisterBrokerResponse(error_code=error.error_code, error_message=error.message)
    return UnregisterBrokerResponse()


API: Final = Api(
    key=64,
    versions=range(1),
    request=UnregisterBrokerRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER),),
)
