"""ListGroups (16), versions 0 to 5: the groups that this broker coordinates.

Requests can filter by state from version 4 on (KIP-518) and by type from version 5 on (KIP-848).
Filters are case-insensitive. An unknown state or type matches no group. The error is
COORDINATOR_LOAD_IN_PROGRESS while groups are being loaded. Source:
`kafka.server.KafkaApis.handleListGroupsRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.frozen import dataclass
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.shard import Group
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation, ResourceType

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
"""The group types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    """A ListGroups request. An empty filter matches all groups."""

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group with its protocol type, its state and its type."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """A ListGroups response."""

    error_code: ErrorCode = ErrorCode.none
    groups: tuple[ListedGroup, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(broker: Broker, call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups that match the filters and that the client may describe."""
    describes_all = call.auth.allows(AclOperation.DESCRIBE, ResourceType.CLUSTER)
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    try:
        groups = [_listed(group) for group in broker.groups.groups()]
    except ApiError as error:
        return ListGroupsResponse(error_code=error.error_code)
    return ListGroupsResponse(
        groups=tuple(
            group
            for group in groups
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
            and (
                describes_all
                or call.auth.allows(AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id)
            )
        )
    )


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC,
    )


API: Final = Api(key=16, versions=range(6), request=ListGroupsRequest, handle=handle)
