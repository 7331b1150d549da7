"""JoinGroup (11), versions 0 to 9: join a group or its next generation.

A member that joins without a member id is assigned a new id. From version 4 on, the broker returns
the id with MEMBER_ID_REQUIRED, and the member rejoins with this id (KIP-394). A static member has
an instance id (version 5, KIP-345) and replaces the previous member with the same instance id. The
broker responds when all members have joined or the rebalance timeout has passed. Only the leader
receives the list of members. The first rebalance of an empty group waits for
`group.initial.rebalance.delay.ms` (KIP-134). In version 0, the session timeout is used as the
rebalance timeout. From version 9 on, a static leader that rejoins a stable group without its member
id is instructed to skip the assignment (KIP-814).

Errors are INVALID_SESSION_TIMEOUT, INVALID_GROUP_ID, INCONSISTENT_GROUP_PROTOCOL,
GROUP_MAX_SIZE_REACHED (KIP-389), UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID. Source:
`kafka.server.KafkaApis.handleJoinGroupRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, on_group
from broker_ref.api.coordinator_replies import respond_to
from broker_ref.frozen import dataclass
from broker_ref.group.members import JoinedMember, JoinRequest, JoinResult, MemberProtocol
from broker_ref.security.acls import AclOperation

FIRST_VERSION_OF_MEMBER_ID_REQUIRED: Final = 4
FIRST_VERSION_OF_NULL_PROTOCOL_NAME: Final = 7
FIRST_VERSION_OF_SKIP_ASSIGNMENT: Final = 9
AS_SESSION_TIMEOUT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol that the member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupRequest:
    """A JoinGroup request."""

    group_id: str
    session_timeout_ms: int
    member_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    rebalance_timeout_ms: int = AS_SESSION_TIMEOUT
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    """A JoinGroup response. Only the response to the leader contains the members."""

    error_code: ErrorCode
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: JoinGroupRequest) -> object:
    """Pass the request to the group coordinator. Return the response or a `Wait`."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if rebalance_timeout_ms == AS_SESSION_TIMEOUT:
        rebalance_timeout_ms = request.session_timeout_ms
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=call.client_id or "",
        client_host=f"/{call.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(
            MemberProtocol(name=protocol.name, metadata=protocol.metadata)
            for protocol in request.protocols
        ),
        requires_known_member_id=call.version >= FIRST_VERSION_OF_MEMBER_ID_REQUIRED,
        can_skip_assignment=call.version >= FIRST_VERSION_OF_SKIP_ASSIGNMENT,
    )

    def respond(result: JoinResult) -> JoinGroupResponse:
        name = result.protocol_name
        if name is None and call.version < FIRST_VERSION_OF_NULL_PROTOCOL_NAME:
            name = ""
        return JoinGroupResponse(
            error_code=result.error_code,
            generation_id=result.generation_id,
            protocol_type=result.protocol_type,
            protocol_name=name,
            leader=result.leader,
            skip_assignment=result.skip_assignment,
            member_id=result.member_id,
            members=result.members,
        )

    return respond_to(broker.groups.join(join, call.now_ms), respond)


API: Final = Api(
    key=11,
    versions=range(10),
    request=JoinGroupRequest,
    handle=handle,
    requires=(on_group(AclOperation.READ),),
)
