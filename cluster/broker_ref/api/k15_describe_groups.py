"""DescribeGroups (15), versions 0 to 6: the state and the members of groups.

The metadata of members is returned only for groups in the Stable state. A group that does not exist
is reported in the Dead state. From version 6 on, its error is GROUP_ID_NOT_FOUND, with a message
(KIP-1043). Source: `kafka.server.KafkaApis.handleDescribeGroupsRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import (
    NO_THROTTLE_MS,
    OPERATIONS_NOT_REQUESTED,
    Api,
    Broker,
    Call,
)
from broker_ref.frozen import dataclass
from broker_ref.group.coordinator import DescribedGroup, DescribedMember
from broker_ref.group.states import GroupState
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType

FIRST_VERSION_OF_GROUP_ID_NOT_FOUND: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    """A DescribeGroups request."""

    groups: tuple[str, ...]
    include_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResponse:
    """The description of a group."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()
    authorized_operations: int = OPERATIONS_NOT_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """A DescribeGroups response."""

    groups: tuple[GroupResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe each group once, even if the request repeats it."""
    return DescribeGroupsResponse(
        groups=tuple(
            _describe(broker, call, request, group_id) for group_id in dict.fromkeys(request.groups)
        )
    )


def _describe(
    broker: Broker, call: Call, request: DescribeGroupsRequest, group_id: str
) -> GroupResponse:
    operations = OPERATIONS_NOT_REQUESTED
    if request.include_authorized_operations:
        operations = call.auth.authorized_operations(ResourceType.GROUP, group_id)
    try:
        call.auth.check(AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
        found = broker.groups.describe(group_id)
    except ApiError as error:
        if error.error_code is not ErrorCode.group_id_not_found:
            return GroupResponse(group_id=group_id, error_code=error.error_code)
        if call.version >= FIRST_VERSION_OF_GROUP_ID_NOT_FOUND:
            return GroupResponse(
                group_id=group_id,
                error_code=error.error_code,
                error_message=error.message,
                group_state=GroupState.DEAD.value,
            )
        found = DescribedGroup(
            group_id=group_id, group_state=GroupState.DEAD.value, protocol_type=""
        )
    return GroupResponse(
        group_id=group_id,
        group_state=found.group_state,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol_data,
        members=found.members,
        authorized_operations=operations,
    )


API: Final = Api(key=15, versions=range(7), request=DescribeGroupsRequest, handle=handle)
