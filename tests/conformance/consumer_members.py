"""Members of consumer groups (KIP-848) that send single heartbeats.

A test chooses the fields of each heartbeat. By default, a member reports its epoch and the
partitions that it owns. Assignments are mappings of topic ids to sets of partitions.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection
from tests.conformance.eventually import eventually
from tests.conformance.wire import only

Assignment = dict[uuid.UUID, set[int]]

VERSION = 1
JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2
REBALANCE_TIMEOUT_MS = 30_000
SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
}
"""Broker configs with which groups rebalance fast."""


class ConsumerMember:
    """A member of `group`, which `raw`'s broker coordinates."""

    def __init__(self, raw: RawConnection, group: str, *topics: str, **fields: Any) -> None:
        """Create a member that subscribes to `topics`. It joins with `fields`."""
        self.raw = raw
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.epoch = JOIN
        self.owned: Assignment = {}
        self._fields = {
            "rebalance_timeout": REBALANCE_TIMEOUT_MS,
            "subscribed_topic_names": list(topics),
            **fields,
        }

    def join(self, **changed: Any) -> Any:
        """Join the group, which must succeed, and return the response."""
        self.epoch, self.owned = JOIN, {}
        response = self.send(**{"topic_partitions": [], **self._fields, **changed})
        assert response.error_code == ErrorCode.none, response
        return response

    def heartbeat(self, **changed: Any) -> Any:
        """Send a heartbeat, which must succeed, and return the response."""
        response = self.send(**changed)
        assert response.error_code == ErrorCode.none, response
        return response

    def send(self, **changed: Any) -> Any:
        """Send a heartbeat. If it succeeds, take the epoch and the assignment from the response."""
        fields: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "topic_partitions": partitions_of(self.owned),
        }
        response = self.raw.call("consumer_group_heartbeat", VERSION, **(fields | changed))
        if response.error_code == ErrorCode.none:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = assignment_of(response.assignment)
        return response

    def code(self, **changed: Any) -> ErrorCode:
        """Send a heartbeat and return the error code."""
        code = self.send(**changed).error_code
        assert isinstance(code, ErrorCode)
        return code

    def leave(self, epoch: int = LEAVE, **changed: Any) -> Any:
        response = self.send(member_epoch=epoch, **changed)
        assert response.error_code == ErrorCode.none, response
        return response

    def identity(self) -> dict[str, Any]:
        """Return the fields of an OffsetCommit request."""
        return {"member_id": self.member_id, "generation_id_or_member_epoch": self.epoch}


def partitions_of(assignment: Mapping[uuid.UUID, set[int]]) -> list[dict[str, Any]]:
    return [{"topic_id": t, "partitions": sorted(p)} for t, p in assignment.items()]


def assignment_of(assignment: Any) -> Assignment:
    return {one.topic_id: set(one.partitions) for one in assignment.topic_partitions}


def describe(raw: RawConnection, group: str, version: int = 1) -> Any:
    return only(raw.call("consumer_group_describe", version, group_ids=[group]).groups)


def is_stable(raw: RawConnection, group: str) -> bool:
    return bool(describe(raw, group).group_state == "Stable")


def settle(*members: ConsumerMember) -> None:
    """Send heartbeats until each member has its target assignment."""

    def settled() -> bool:
        for member in members:
            member.heartbeat()
        return is_stable(members[0].raw, members[0].group)

    eventually(settled)
