"""Members of a classic group, their requests and the results.

Groups, rebalances and request handlers exchange these values. Invariant: the id of a member never
changes. A static member that rejoins becomes a new `Member`. Source: Kafka's `ClassicGroupMember`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from kio.schema.errors import ErrorCode

from broker_ref.coordination.replies import Reply
from broker_ref.frozen import dataclass
from broker_ref.schedule import Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProtocol:
    """A protocol (assignor) that a member supports, and the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member in the JoinGroup response of the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. `member_id` is empty for a new member.

    The version of the request determines `requires_known_member_id` (KIP-394) and
    `can_skip_assignment` (KIP-814).
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
    """The result of JoinGroup. Only the leader receives the members."""

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
    """A SyncGroup request. In the leader's request, `assignments` is keyed by member id."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The result of SyncGroup."""

    error_code: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """A member that is leaving. Administrators can omit the member id of a static member."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResult:
    """The result of LeaveGroup. `members` contains an error code per member, in request order."""

    error_code: ErrorCode = ErrorCode.none
    members: tuple[ErrorCode, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A member with its settings, its assignment and its pending requests.

    `is_new` is True until the member's first rebalance completes. Until then, the member cannot
    send heartbeats, and a pending request does not count as a heartbeat. Each heartbeat extends
    `session_deadline_ms`. If `session_timer` fires before this deadline, the timer is restarted.
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
        """Whether the member has a `group.instance.id` (KIP-345)."""
        return self.group_instance_id is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether a pending JoinGroup or SyncGroup request of the member counts as a heartbeat."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol_name: str) -> bytes:
        """Return the metadata of the member for one of its protocols."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise LookupError(f"Member {self.member_id!r} has no protocol {protocol_name!r}.")

    def vote(self, candidates: Iterable[str]) -> str:
        """Return the candidate that comes first in the member's list of protocols.

        The member must support at least one candidate.
        """
        for protocol in self.protocols:
            if protocol.name in candidates:
                return protocol.name
        raise LookupError(f"Member {self.member_id!r} supports none of the candidate protocols.")

    def complete_sync(self, result: SyncResult) -> bool:
        """Complete the pending SyncGroup request of the member. Return whether there was one."""
        reply, self.sync = self.sync, None
        if reply is None:
            return False
        reply.complete(result)
        return True
