"""A member of a classic group, and what its requests are answered with.

Purpose: the values that the group, its rebalances and the handlers share. Invariant: a member
never changes its id; a static member that comes back is another `Member`. What it must not know:
states, timers' meaning, bytes of requests. Source: Kafka's `ClassicGroupMember`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from broker_ref.coordination.replies import Reply
from broker_ref.schedule import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProtocol:
    """An assignor that a member can work with, and what it tells the leader under it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader is told of it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request; `member_id` is empty where the member has none yet.

    `requires_known_member_id` (KIP-394) and `can_skip_assignment` (KIP-814) come with the version.
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    requires_known_member_id: bool
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The answer to a JoinGroup request; only the leader is told the members."""

    member_id: str
    error_code: ErrorCode = ErrorCode.none
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request; assignments, by member id, count where the leader sends them."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The answer to a SyncGroup request."""

    error_code: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Who leaves: by id, or by the instance id alone as administrators do."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    """The answer to a LeaveGroup request: one error code a member, in their order."""

    error_code: ErrorCode = ErrorCode.none
    members: tuple[ErrorCode, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A member: what it asked for, what it was assigned, and which of its requests wait.

    `is_new` until its first rebalance is over: it cannot send heartbeats yet, so waiting does not
    keep it alive. `session_deadline_ms` moves with every sign of life; the timer follows it.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    join: Reply[JoinResult] | None = None
    sync: Reply[SyncResult] | None = None
    session_deadline_ms: int = 0
    session_timer: Timer | None = None
    protocol_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.protocol_names = frozenset(protocol.name for protocol in self.protocols)

    @property
    def is_static(self) -> bool:
        """Whether it has a `group.instance.id` (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether it is alive without a sign of life: it waits for the others."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """What it says under a protocol, which must be one of its own."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise LookupError(f"member {self.member_id!r} has no protocol {protocol_name!r}")

    def vote(self, candidates: Iterable[str]) -> str:
        """Its first choice among the candidates, one of which it must support."""
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise LookupError(f"member {self.member_id!r} supports no candidate")

    def complete_sync(self, result: SyncResult) -> bool:
        """Answer its SyncGroup request; whether one waited."""
        reply, self.sync = self.sync, None
        if reply is None:
            return False
        reply.complete(result)
        return True
