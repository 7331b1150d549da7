"""DeleteGroups (42), versions 0 to 2: forget groups without members, and their offsets (KIP-229).

Behaviour: NON_EMPTY_GROUP where there are members, GROUP_ID_NOT_FOUND where there is no group. A
group named twice is answered once. Offsets that are pending in an open transaction do not keep a
group: they go with it, and its end brings none of them back. The answer comes when every in-sync
replica knows.
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
    """Which groups."""

    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """Whether one is gone."""

    group_id: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """Whether they are gone."""

    results: tuple[GroupAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDeletion:
    """Deletions by group, until all are done."""

    replies: dict[str, Reply[ErrorCode]]

    def try_complete(self, now_ms: int) -> DeleteGroupsResponse | None:
        """The response once there is every reply."""
        del now_ms
        results = []
        for group_id, reply in self.replies.items():
            if reply.result is None:
                return None
            results.append(GroupAnswer(group_id=group_id, error_code=reply.result))
        return DeleteGroupsResponse(results=tuple(results))

    def expire(self, now_ms: int) -> DeleteGroupsResponse:
        """Not before the end of time: the coordinator ends every write."""
        raise AssertionError(f"a group's deletion was waited for until {now_ms}")


def handle(broker: Broker, call: Call, request: DeleteGroupsRequest) -> object:
    """Delete each."""
    names = dict.fromkeys(request.groups_names)
    replies = {name: broker.groups.delete(name, call.now_ms) for name in names}
    deletion = DelayedDeletion(replies=replies)
    response = deletion.try_complete(call.now_ms)
    if response is not None:
        return response
    return Wait(operation=deletion, keys=tuple(replies.values()), deadline_ms=NEVER_MS)


API: Final = Api(key=42, versions=range(3), request=DeleteGroupsRequest, handle=handle)
