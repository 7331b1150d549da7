"""Group members that send single requests.

A member joins, syncs and sends heartbeats with fields that the test chooses. A test can send a
request and receive the response later. Each member has its own connection, because a broker reads
the next request of a connection only after it has sent the previous response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from kio.schema.errors import ErrorCode

from integration.raw import RawConnection, request
from tests.conformance.eventually import eventually

SESSION_TIMEOUT_MS = 30_000
REBALANCE_TIMEOUT_MS = 30_000
PROTOCOLS = {"range": b"m"}
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 9, 5, 4, 5


def subscription(*topics: str) -> bytes:
    """Encode the subscription of a consumer (ConsumerProtocolSubscription version 0)."""
    names = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class GroupMember:
    """A member of `group` with its own connection, as a context manager."""

    def __init__(
        self,
        address: str,
        group: str,
        *,
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
    ) -> None:
        self.raw = RawConnection(address)
        self.group = group
        self.instance_id = instance_id
        self.protocols = dict(PROTOCOLS if protocols is None else protocols)
        self.protocol_type = protocol_type
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation_id = -1
        self._sent: Any = None

    def join_only(self, *, version: int = JOIN_VERSION) -> None:
        fields: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "session_timeout": self.session_timeout_ms,
            "protocol_type": self.protocol_type,
            "protocols": [{"name": n, "metadata": m} for n, m in self.protocols.items()],
        }
        if version >= 1:
            fields["rebalance_timeout"] = self.rebalance_timeout_ms
        if version >= 5:
            fields["group_instance_id"] = self.instance_id
        self._sent = request("join_group", version, **fields)
        self.raw.send_only(self._sent)

    def joined(self) -> Any:
        """Return the response to JoinGroup, and store its member id and generation."""
        response = self.raw.receive(self._sent)
        if response.error_code in {ErrorCode.none, ErrorCode.member_id_required}:
            self.member_id = response.member_id
            self.generation_id = response.generation_id
        return response

    def join(self, *, version: int = JOIN_VERSION) -> Any:
        """Join the group and return the last response.

        If the broker requires a member id, join again with the id from its response.
        """
        self.join_only(version=version)
        response = self.joined()
        if response.error_code == ErrorCode.member_id_required:
            self.join_only(version=version)
            response = self.joined()
        return response

    def request_member_id(self) -> None:
        self.join_only()
        assert self.joined().error_code == ErrorCode.member_id_required

    def sync_only(self, assignments: Mapping[str, bytes] | None = None, **changed: Any) -> None:
        """Send SyncGroup without waiting for the response; `changed` overrides fields."""
        fields: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            "protocol_type": self.protocol_type,
            "protocol_name": next(iter(self.protocols)),
            "assignments": [
                {"member_id": m, "assignment": a} for m, a in (assignments or {}).items()
            ],
        }
        self._sent = request("sync_group", SYNC_VERSION, **(fields | changed))
        self.raw.send_only(self._sent)

    def synced(self) -> Any:
        return self.raw.receive(self._sent)

    def sync(self, assignments: Mapping[str, bytes] | None = None, **changed: Any) -> Any:
        """Send SyncGroup and return the response; the leader passes `assignments`."""
        self.sync_only(assignments, **changed)
        return self.synced()

    def heartbeat(self, **changed: Any) -> ErrorCode:
        """Send Heartbeat and return the error code; `changed` overrides fields."""
        fields: dict[str, Any] = {
            "group_id": self.group,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        code = self.raw.call("heartbeat", HEARTBEAT_VERSION, **(fields | changed)).error_code
        assert isinstance(code, ErrorCode)
        return code

    def leave(self) -> ErrorCode:
        (code,) = leave(self.raw, self.group, (self.member_id, self.instance_id))
        return code

    def identity(self) -> dict[str, Any]:
        return {
            "generation_id_or_member_epoch": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.raw.close()


def leave(raw: RawConnection, group: str, *members: tuple[str, str | None]) -> Sequence[ErrorCode]:
    """Remove members, given as (member id, instance id), and return their error codes."""
    requested = [{"member_id": m, "group_instance_id": i} for m, i in members]
    response = raw.call("leave_group", LEAVE_VERSION, group_id=group, members=requested)
    assert response.error_code == ErrorCode.none
    return [member.error_code for member in response.members]


def stable_alone(member: GroupMember) -> GroupMember:
    assert member.join().error_code == ErrorCode.none
    assert member.sync({member.member_id: b"all"}).error_code == ErrorCode.none
    return member


def rejoin_together(leader: GroupMember, newcomer: GroupMember) -> None:
    """Add a new member to a stable group of one member, and complete the rebalance."""
    if newcomer.instance_id is None:
        newcomer.request_member_id()
    newcomer.join_only()
    eventually(lambda: leader.heartbeat() == ErrorCode.rebalance_in_progress)
    leader.join_only()
    for member in (leader, newcomer):
        assert member.joined().error_code == ErrorCode.none
    assert leader.generation_id == newcomer.generation_id


def stable_pair(leader: GroupMember, other: GroupMember) -> None:
    """Form a stable group of two members; the assignment of each member is its own id."""
    stable_alone(leader)
    rejoin_together(leader, other)
    sync_all(leader, other)


def sync_all(leader: GroupMember, *others: GroupMember) -> None:
    """Complete SyncGroup for all members; the assignment of each member is its own id."""
    for other in others:
        other.sync_only()
    parts = {m.member_id: m.member_id.encode() for m in (leader, *others)}
    assert leader.sync(parts).error_code == ErrorCode.none
    for other in others:
        assert other.synced().assignment == other.member_id.encode()
