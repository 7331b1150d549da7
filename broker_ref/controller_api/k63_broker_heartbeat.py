"""BrokerHeartbeat (63), versions 0 and 1: renew a broker's session or begin its shutdown (KIP-631).

Behaviour: see `broker_ref.controller.broker_heartbeats.TRANSITIONS`. STALE_BROKER_EPOCH: the broker
or this incarnation is not registered and has to register again. Source:
`kafka.server.ControllerApis.handleBrokerHeartBeatRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.broker_heartbeats import Heartbeat
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatRequest:
    """The broker's state, with the offset of the last metadata record that it has applied."""

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponse:
    """Whether the broker is caught up and fenced, and should shut down."""

    error_code: ErrorCode = ErrorCode.none
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Handle the heartbeat."""
    try:
        reply = context.controller.heartbeat(
            Heartbeat(
                broker_id=request.broker_id,
                broker_epoch=request.broker_epoch,
                current_metadata_offset=request.current_metadata_offset,
                want_fence=request.want_fence,
                want_shut_down=request.want_shut_down,
            ),
            call.now_ms,
        )
    except ApiError as error:
        return BrokerHeartbeatResponse(error_code=error.error_code)
    return BrokerHeartbeatResponse(
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
    )


API: Final = Api(key=63, versions=range(2), request=BrokerHeartbeatRequest, handle=handle)
