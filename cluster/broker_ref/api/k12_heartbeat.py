"""Heartbeat (12), versions 0 to 4: keep the session of a member alive.

The errors are:

- REBALANCE_IN_PROGRESS: the member must rejoin.
- ILLEGAL_GENERATION: the member missed a rebalance.
- UNKNOWN_MEMBER_ID: the session of the member has expired.
- FENCED_INSTANCE_ID (version 3): another member with the same instance id has replaced the member.

Heartbeats succeed while the group is being loaded. Source:
`kafka.server.KafkaApis.handleHeartbeatRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A Heartbeat request from a group member."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """A Heartbeat response."""

    error_code: ErrorCode
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    """Renew the session of the member."""
    return HeartbeatResponse(
        error_code=broker.groups.heartbeat(
            request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
            now_ms=call.now_ms,
        )
    )


API: Final = Api(
    key=12,
    versions=range(5),
    request=HeartbeatRequest,
    handle=handle,
    requires=(on_group(AclOperation.READ),),
)
