"""Heartbeat (12), versions 0 to 4: a member's sign of life.

Behaviour: REBALANCE_IN_PROGRESS asks the member to join again, ILLEGAL_GENERATION says that it
missed a rebalance, UNKNOWN_MEMBER_ID that its session has expired, FENCED_INSTANCE_ID (version 3)
that another took its place. All is well while the group is still read from the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """Which member of which generation."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """Whether it still is one."""

    error_code: ErrorCode
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep the member alive."""
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
