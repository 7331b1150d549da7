"""A classic group: its members, generation, protocol and leader.

Implements the rules for protocol selection, leader election, static members and pending members.
Invariants: the state changes only as the table in `states` allows, the generation never decreases,
and the leader of a group with members is one of its members. Counts are updated incrementally, so
handling a request does not require iterating over all members. Source: Kafka's `ClassicGroup`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Set

from kio.schema.errors import ErrorCode

from broker_ref.coordination.replies import Reply
from broker_ref.group.consumer_protocol import CONSUMER_PROTOCOL_TYPE, read_topics
from broker_ref.group.members import JoinedMember, JoinResult, Member, MemberProtocol, SyncResult
from broker_ref.group.states import TARGETS, GroupState
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.reader import MalformedRequestError
from broker_ref.schedule import Timer

logger = logging.getLogger(__name__)


class ClassicGroup:
    """A group, initially in the Empty state with generation 0.

    `protocol_type` is None for a simple group, which has committed offsets but never had members.
    `subscribed_topics` is None if the members do not report their topics.
    """

    def __init__(
        self,
        group_id: str,
        *,
        state_timestamp_ms: int,
        state: GroupState = GroupState.EMPTY,
        generation_id: int = 0,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        leader_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = state_timestamp_ms
        self.generation_id = generation_id
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.leader_id = leader_id
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, Timer] = {}
        self.pending_syncs: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_added = False
        self.join_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self._supporters: Counter[str] = Counter()
        self._awaiting_join = 0

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Change the state. The table in `states` must allow the transition."""
        assert state in TARGETS[self.state], f"{self.group_id}: {self.state} to {state}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    # Members

    def add(self, member: Member, join: Reply[JoinResult] | None = None) -> None:
        """Add a member, with the pending reply to its JoinGroup request.

        The first member becomes the leader.
        """
        assert member.group_instance_id not in self.static_members
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._supporters.update(member.protocol_names)
        self.await_join(member, join)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member.

        If the leader is removed, the oldest remaining member becomes the leader. Pending requests
        of the member complete with UNKNOWN_MEMBER_ID.
        """
        member = self.members.pop(member_id, None)
        if member is not None:
            self._withdraw_support(member)
            unknown = ErrorCode.unknown_member_id
            self.complete_join(member, JoinResult(member_id="", error_code=unknown))
            member.complete_sync(SyncResult(error_code=unknown))
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
            if member.session_timer is not None:
                member.session_timer.cancel()
        if self.is_leader(member_id):
            self.leader_id = next(iter(self.members), None)
        self.remove_pending_member(member_id)
        self.pending_syncs.discard(member_id)

    def remove_pending_member(self, member_id: str) -> None:
        """Remove a pending member, which has received a member id but has not yet joined."""
        timer = self.pending_members.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def update(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        """Change the protocols of a member."""
        self._withdraw_support(member)
        member.protocols = protocols
        member.protocol_names = frozenset(protocol.name for protocol in protocols)
        self._supporters.update(member.protocol_names)

    def replace_static(self, old: Member, new_id: str) -> Member:
        """Replace the member id of a static member.

        Pending requests with the old member id fail with FENCED_INSTANCE_ID.
        """
        assert old.group_instance_id is not None
        fenced = ErrorCode.fenced_instance_id
        self.complete_join(old, JoinResult(member_id=old.member_id, error_code=fenced))
        old.complete_sync(SyncResult(error_code=fenced))
        if old.session_timer is not None:
            old.session_timer.cancel()
        del self.members[old.member_id]
        member = Member(
            member_id=new_id,
            group_instance_id=old.group_instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            session_timeout_ms=old.session_timeout_ms,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            protocol_type=old.protocol_type,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members[new_id] = member
        self.static_members[old.group_instance_id] = new_id
        if self.is_leader(old.member_id):
            self.leader_id = new_id
        return member

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member, or raise UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.

        FENCED_INSTANCE_ID means that another member now uses the instance id.
        """
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is not None and current != member_id:
                raise ApiError(
                    ErrorCode.fenced_instance_id,
                    f"Member {member_id!r} of group {self.group_id!r} is fenced, because member "
                    f"{current!r} now uses the instance id {group_instance_id!r}.",
                )
        if member_id not in self.members or (
            group_instance_id is not None and group_instance_id not in self.static_members
        ):
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Group {self.group_id!r} has no member {member_id!r} with instance id "
                f"{group_instance_id!r}. Rejoin without a member id.",
            )
        return self.members[member_id]

    def is_leader(self, member_id: str) -> bool:
        """Return whether the member is the leader, which computes the assignments."""
        return self.leader_id == member_id

    # Joining

    def await_join(self, member: Member, join: Reply[JoinResult] | None) -> None:
        """Set or clear the pending JoinGroup request of a member."""
        self._awaiting_join += (join is not None) - (member.join is not None)
        member.join = join

    def complete_join(self, member: Member, result: JoinResult) -> None:
        """Complete the pending JoinGroup request of a member, if any."""
        reply = member.join
        if reply is not None:
            self.await_join(member, None)
            reply.complete(result)

    def fail_requests(self, error_code: ErrorCode) -> None:
        """Complete all pending requests of the members with an error."""
        for member in self.members.values():
            failed = JoinResult(member_id=member.member_id, error_code=error_code)
            self.complete_join(member, failed)
            member.complete_sync(SyncResult(error_code=error_code))

    @property
    def awaiting_join(self) -> int:
        """The number of members with a pending JoinGroup request."""
        return self._awaiting_join

    @property
    def has_all_members_joined(self) -> bool:
        """Whether all members and pending members have joined."""
        return self._awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members, in milliseconds."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Replace a leader that has not joined. Return False if no member has joined."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].join is not None:
            return True
        joined = (member for member in self.members.values() if member.join is not None)
        leader = next(joined, None)
        if leader is not None:
            logger.info(
                "Group %r: leader %r did not rejoin in time. The new leader is %r",
                self.group_id, self.leader_id, leader.member_id,
            )  # fmt: skip
            self.leader_id = leader.member_id
        return leader is not None

    def next_generation(self, now_ms: int) -> None:
        """Select a protocol, and start the next generation with the current members."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._subscriptions()
        self.transition_to(
            GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms
        )
        self.pending_syncs.clear()

    def current_members(self) -> tuple[JoinedMember, ...]:
        """Return the members for the JoinGroup response of the leader."""
        assert self.protocol_name is not None
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )

    # Protocols

    def supports(self, protocol_type: str, protocol_names: Iterable[str]) -> bool:
        """Return whether a member with these protocols can join the group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocol_names)
        return self.protocol_type == protocol_type and any(
            self._supporters[name] == len(self.members) for name in protocol_names
        )

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among the protocols that all members support."""
        size = len(self.members)
        candidates = {name for name, count in self._supporters.items() if count == size}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _withdraw_support(self, member: Member) -> None:
        for name in member.protocol_names:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members report their subscribed topics."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed_of(self, topics: Set[str]) -> Set[str]:
        """Return the topics in `topics` to which a member subscribes or may subscribe."""
        if self.subscribed_topics is None:
            return topics if self.uses_consumer_protocol else frozenset()
        return self.subscribed_topics & topics

    def refresh_subscriptions(self) -> None:
        """Read the subscribed topics of all members after the group has been loaded."""
        self.subscribed_topics = self._subscriptions()

    def _subscriptions(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(read_topics(member.metadata(self.protocol_name)))
        except MalformedRequestError as error:
            logger.warning(
                "Group %r: a member's subscription for protocol %r is invalid, so committed "
                "offsets will not expire while the group has members: %s",
                self.group_id, self.protocol_name, error,
            )  # fmt: skip
            return None
        return frozenset(topics)

    def cancel_timers(self) -> None:
        """Cancel all timers of the group."""
        for member in self.members.values():
            if member.session_timer is not None:
                member.session_timer.cancel()
        for member_id in list(self.pending_members):
            self.remove_pending_member(member_id)
        for timer in (self.join_timer, self.sync_timer):
            if timer is not None:
                timer.cancel()
