"""BrokerHeartbeat (63), versions 0 and 1: renew a broker's session or start its shutdown (KIP-631).

`broker_ref.controller.broker_heartbeats.TRANSITIONS` defines the state changes. The error is
STALE_BROKER_EPOCH if this incarnation of the broker is not registered. Source:
`kafka.server.ControllerApis.handleBrokerHeartBeatRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.broker_heartbeats import Heartbeat
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
class BrokerHeartbeatRequest:
    """A BrokerHeartbeat request.

    `current_metadata_offset` is the offset of the last metadata record that the broker has applied.
    """

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeatResponse:
    """A BrokerHeartbeat response with the broker's state, as recorded by the controller."""

    error_code: ErrorCode = ErrorCode.none
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Process the heartbeat."""
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


API: Final = Api(
    key=63,
    versions=range(2),
    request=BrokerHeartbeatRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)
