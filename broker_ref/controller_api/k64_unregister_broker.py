"""UnregisterBroker (64), version 0: forget a broker that will not come back (KIP-631).

Behaviour: it leaves every ISR and leads no more. One that is not registered:
BROKER_ID_NOT_REGISTERED. A broker that is alive after all hears STALE_BROKER_EPOCH.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRequest:
    """The broker to forget."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerResponse:
    """Whether it is forgotten."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Forget the broker."""
    del call
    try:
        context.controller.unregister_broker(request.broker_id)
    except ApiError as error:
        return UnregisterBrokerResponse(error_code=error.error_code, error_message=error.message)
    return UnregisterBrokerResponse()


API: Final = Api(key=64, versions=range(1), request=UnregisterBrokerRequest, handle=handle)
