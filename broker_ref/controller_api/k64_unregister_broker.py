"""UnregisterBroker (64), version 0: remove the registration of a broker (KIP-631).

Behaviour: the broker is removed from all ISRs and loses its leaderships. BROKER_ID_NOT_REGISTERED:
no such broker. If it is alive, its heartbeats get STALE_BROKER_EPOCH. Source:
`kafka.server.ControllerApis.handleUnregisterBroker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRequest:
    """The broker to unregister."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerResponse:
    """The result."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Unregister the broker."""
    del call
    try:
        context.controller.unregister_broker(request.broker_id)
    except ApiError as error:
        return UnregisterBrokerResponse(error_code=error.error_code, error_message=error.message)
    return UnregisterBrokerResponse()


API: Final = Api(key=64, versions=range(1), request=UnregisterBrokerRequest, handle=handle)
