"""DeleteGroups (42), versions 0 to 2: delete empty groups and their offsets (KIP-229).

Behaviour: NON_EMPTY_GROUP: the group has members; GROUP_ID_NOT_FOUND: no such group. A repeated
group is answered once. Pending offsets of open transactions do not prevent the deletion; they are
deleted with the group, and the transaction's marker does not restore them. The response is sent
when all in-sync replicas have the deletion. Source:
`kafka.server.KafkaApis.handleDeleteGroupsRequest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call, Wait
from broker_ref.api.coordinator_replies import NEVER_MS
from broker_ref.coordination.replies import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    """A DeleteGroups request."""

    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """The result of a group."""

    group_id: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """A DeleteGroups response."""

    results: tuple[GroupAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDeletion:
    """Deletions that wait for their replies, by group."""

    replies: dict[str, Reply[ErrorCode]]

    def try_complete(self, now_ms: int) -> DeleteGroupsResponse | None:
        """Return the response if all replies are known."""
        del now_ms
        results = []
        for group_id, reply in self.replies.items():
            if reply.result is None:
                return None
            results.append(GroupAnswer(group_id=group_id, error_code=reply.result))
        return DeleteGroupsResponse(results=tuple(results))

    def expire(self, now_ms: int) -> DeleteGroupsResponse:
        """Never called: the coordinator completes every write."""
        raise AssertionError(f"the coordinator did not delete the group until {now_ms}")


def handle(broker: Broker, call: Call, request: DeleteGroupsRequest) -> object:
    """Delete each group."""
    names = dict.fromkeys(request.groups_names)
    replies = {name: broker.groups.delete(name, call.now_ms) for name in names}
    deletion = DelayedDeletion(replies=replies)
    response = deletion.try_complete(call.now_ms)
    if response is not None:
        return response
    return Wait(operation=deletion, keys=tuple(replies.values()), deadline_ms=NEVER_MS)


API: Final = Api(key=42, versions=range(3), request=DeleteGroupsRequest, handle=handle)
