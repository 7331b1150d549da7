"""LeaveGroup (13), versions 0 to 5: remove members from a group and start a rebalance.

Up to version 2, a request removes one member. From version 3 on, it can remove several members
(KIP-345). An administrator can then also remove a static member by its instance id, without its
member id. The response contains an error code for each member (UNKNOWN_MEMBER_ID or
FENCED_INSTANCE_ID). Source: `kafka.server.KafkaApis.handleLeaveGroupRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.frozen import dataclass
from broker_ref.group.members import LeaveResult, MemberIdentity
from broker_ref.security.acls import AclOperation

FIRST_VERSION_OF_MEMBERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """A member to remove."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupRequest:
    """A LeaveGroup request.

    It contains `member_id` up to version 2, and `members` from version 3 on.
    """

    group_id: str
    member_id: str = ""
    members: tuple[LeavingMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResponse:
    """The error code for a member."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """A LeaveGroup response. Up to version 2, it contains a single error code."""

    error_code: ErrorCode
    members: tuple[MemberResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: LeaveGroupRequest) -> object:
    """Remove the members from the group."""
    members = request.members
    if call.version < FIRST_VERSION_OF_MEMBERS:
        members = (LeavingMember(member_id=request.member_id, group_instance_id=None),)
    identities = [
        MemberIdentity(member_id=one.member_id, group_instance_id=one.group_instance_id)
        for one in members
    ]

    def respond(result: LeaveResult) -> LeaveGroupResponse:
        error_code = result.error_code
        if call.version < FIRST_VERSION_OF_MEMBERS and error_code is ErrorCode.none:
            (error_code,) = result.members
        return LeaveGroupResponse(
            error_code=error_code,
            members=tuple(
                MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=code,
                )
                for member, code in zip(members, result.members, strict=False)
            ),
        )

    return respond_to(broker.groups.leave(request.group_id, identities, call.now_ms), respond)


API: Final = Api(
    key=13,
    versions=range(6),
    request=LeaveGroupRequest,
    handle=handle,
    requires=(on_group(AclOperation.READ),),
)
