"""SyncGroup (14), versions 0 to 5: distribute the leader's assignments to all members.

Members wait until the leader has sent the assignments and the replicas of `__consumer_offsets` have
stored them. In a stable group, a member receives its current assignment immediately. The error is
REBALANCE_IN_PROGRESS if another rebalance starts during the wait. From version 5 on, the protocol
type and name must match those of the group (KIP-559). Otherwise, the error is
INCONSISTENT_GROUP_PROTOCOL. Source: `kafka.server.KafkaApis.handleSyncGroupRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.frozen import dataclass
from broker_ref.group.members import SyncRequest, SyncResult
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_OF_PROTOCOL: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The assignment of a member."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupRequest:
    """A SyncGroup request. Only the leader's request contains assignments."""

    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[Assignment, ...]
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    """A SyncGroup response with the assignment of the member."""

    error_code: ErrorCode
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: SyncGroupRequest) -> object:
    """Pass the assignments to the group coordinator and return the member's assignment."""
    if call.version >= FIRST_VERSION_OF_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return _respond(SyncResult(error_code=ErrorCode.inconsistent_group_protocol))
    if not call.auth.allows(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return _respond(SyncResult(error_code=ErrorCode.group_authorization_failed))
    sync = SyncRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={one.member_id: one.assignment for one in request.assignments},
    )
    return respond_to(broker.groups.sync(sync, call.now_ms), _respond)


def _respond(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error_code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API: Final = Api(key=14, versions=range(6), request=SyncGroupRequest, handle=handle)
