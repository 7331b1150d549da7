"""Heartbeat (12), versions 0 to 4: keep a member's session alive.

Behaviour: REBALANCE_IN_PROGRESS: the member has to rejoin; ILLEGAL_GENERATION: it missed a
rebalance; UNKNOWN_MEMBER_ID: its session has expired; FENCED_INSTANCE_ID (version 3): it was
replaced. While the group is being loaded, heartbeats succeed. Source:
`kafka.server.KafkaApis.handleHeartbeatRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A heartbeat of a member of a generation."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """The result of a heartbeat."""

    error_code: ErrorCode
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    """Renew the member's session."""
    return HeartbeatResponse(
        error_code=broker.groups.heartbeat(
            request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id,
            now_ms=call.now_ms,
        )
    )


API: Final = Api(key=12, versions=range(5), request=HeartbeatRequest, handle=handle)
