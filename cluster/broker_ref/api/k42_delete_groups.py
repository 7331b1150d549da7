"""DeleteGroups (42), versions 0 to 2: delete empty groups and their offsets (KIP-229).

The error is NON_EMPTY_GROUP for a group with members, and GROUP_ID_NOT_FOUND for a group that does
not exist. The response contains only one result for a group that is repeated in the request.
Pending offsets of open transactions do not prevent the deletion. They are deleted with the group,
and the transaction marker does not restore them. The broker responds when all in-sync replicas have
replicated the deletions. Source: `kafka.server.KafkaApis.handleDeleteGroupsRequest`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.coordinator_replies import NEVER_MS
from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass
from broker_ref.security.acls import AclOperation, ResourceType


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    """A DeleteGroups request."""

    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResponse:
    """The error code for a group."""

    group_id: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """A DeleteGroups response."""

    results: tuple[GroupResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDeletion:
    """A DeleteGroups request that is waiting for the coordinator's replies.

    `unauthorized` contains the groups that the client is not authorized to delete.
    """

    replies: dict[str, Reply[ErrorCode]]
    unauthorized: tuple[str, ...]

    def try_complete(self, now_ms: int) -> DeleteGroupsResponse | None:
        """Return the response if the coordinator has sent all replies."""
        del now_ms
        results = []
        for group_id, reply in self.replies.items():
            if reply.result is None:
                return None
            results.append(GroupResponse(group_id=group_id, error_code=reply.result))
        results += [
            GroupResponse(group_id=group_id, error_code=ErrorCode.group_authorization_failed)
            for group_id in self.unauthorized
        ]
        return DeleteGroupsResponse(results=tuple(results))

    def expire(self, now_ms: int) -> DeleteGroupsResponse:
        """Raise AssertionError.

        The coordinator completes every write, so the wait cannot expire.
        """
        raise AssertionError(
            f"A wait without a deadline expired at {now_ms} ms, before the groups were deleted."
        )


def handle(broker: Broker, call: Call, request: DeleteGroupsRequest) -> object:
    """Delete each group."""
    names = dict.fromkeys(request.groups_names)
    authorized = [
        name for name in names if call.auth.allows(AclOperation.DELETE, ResourceType.GROUP, name)
    ]
    replies = {name: broker.groups.delete(name, call.now_ms) for name in authorized}
    unauthorized = tuple(name for name in names if name not in replies)
    deletion = DelayedDeletion(replies=replies, unauthorized=unauthorized)
    response = deletion.try_complete(call.now_ms)
    if response is not None:
        return response
    return Wait(operation=deletion, keys=tuple(replies.values()), deadline_ms=NEVER_MS)


API: Final = Api(key=42, versions=range(3), request=DeleteGroupsRequest, handle=handle)
