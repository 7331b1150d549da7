"""The reconciliation of a member with its target assignment.

    STABLE ─ the target epoch is higher ─▶ reconcile
    UNREVOKED_PARTITIONS ─ the member no longer owns the partitions to revoke ─▶ reconcile
    UNRELEASED_PARTITIONS ─ each heartbeat ─▶ reconcile

    reconcile ─▶ UNREVOKED_PARTITIONS   partitions must be revoked; same epoch
              ─▶ UNRELEASED_PARTITIONS  other members own partitions of the target; target epoch
              ─▶ STABLE                 target epoch

The heartbeat of a member determines its next state. Invariants: a partition is assigned to a member
only if no other member owns it, so each partition has at most one owner. A member moves to the
target epoch only after it has revoked all partitions that are not in its target assignment. Source:
Kafka's `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.group.consumer.assignment import Assignment, AssignmentWithEpochs
from broker_ref.group.consumer.member import ConsumerGroupMember, MemberState
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid

_Partitions = dict[Uuid, dict[int, int]]

_NO_PARTITIONS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The input of a reconciliation.

    `subscribed` contains the existing topics to which the member subscribes. `has_owner` returns
    whether any member owns a given partition. `owned` contains the partitions that the member
    reports in its heartbeat. It is None if the heartbeat contains no list of partitions.
    """

    target_epoch: int
    target: Assignment
    subscribed: Collection[Uuid]
    subscription_changed: bool
    has_owner: Callable[[Uuid, int], bool]
    owned: Assignment | None

    def next_state(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """Return the member in its next state, or the same member if no change is possible.

        Raises: ApiError (FENCED_MEMBER_EPOCH if the state of the member is UNKNOWN).
        """
        match member.state:
            case MemberState.STABLE:
                if member.member_epoch != self.target_epoch:
                    return self._reconcile(member, member.member_epoch)
                return self._without_unsubscribed(member)
            case MemberState.UNREVOKED_PARTITIONS:
                if self._owns_any(member.pending_revocation):
                    return self._without_unsubscribed(member)
                return self._reconcile(member, member.member_epoch)
            case MemberState.UNRELEASED_PARTITIONS:
                return self._reconcile(member, member.member_epoch)
            case MemberState.UNKNOWN:
                if self.owned is None or self.owned:
                    raise ApiError(
                        ErrorCode.fenced_member_epoch,
                        "The consumer group member is in an unknown state. The member must abandon "
                        "all its partitions and rejoin.",
                    )
                return self._reconcile(member, self.target_epoch)

    def _owns_any(self, partitions: AssignmentWithEpochs) -> bool:
        """Return True unless the member reports that it owns none of `partitions`."""
        if self.owned is None:
            return True
        return any(
            partitions.get(topic_id, {}).keys() & owned for topic_id, owned in self.owned.items()
        )

    def _without_unsubscribed(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """Remove the topics to which the member no longer subscribes. The epoch stays the same."""
        gone = [topic_id for topic_id in member.assigned if topic_id not in self.subscribed]
        if not self.subscription_changed or not gone:
            return member
        assigned = {
            topic_id: partitions
            for topic_id, partitions in member.assigned.items()
            if topic_id in self.subscribed
        }
        pending: _Partitions = {
            topic_id: dict(partitions) for topic_id, partitions in member.pending_revocation.items()
        }
        for topic_id in gone:
            pending.setdefault(topic_id, {}).update(member.assigned[topic_id])
        if self._owns_any(pending):
            return member.moved_to(
                member.member_epoch, MemberState.UNREVOKED_PARTITIONS, assigned, pending
            )
        return replace(member, previous_member_epoch=member.member_epoch, assigned=assigned)

    def _reconcile(self, member: ConsumerGroupMember, epoch: int) -> ConsumerGroupMember:
        kept: _Partitions = {}
        revoked: _Partitions = {}
        new: _Partitions = {}
        is_unreleased = False
        for topic_id in dict.fromkeys((*self.target, *member.assigned)):
            target = self._target_of(topic_id)
            current = member.assigned.get(topic_id, {})
            _put(kept, topic_id, {p: e for p, e in current.items() if p in target})
            _put(revoked, topic_id, {p: e for p, e in current.items() if p not in target})
            # At this point, the member has revoked its pending partitions, so these partitions are
            # free.
            own = member.pending_revocation.get(topic_id, {})
            missing = [p for p in sorted(target) if p not in current]
            free = [p for p in missing if p in own or not self.has_owner(topic_id, p)]
            is_unreleased = is_unreleased or len(free) < len(missing)
            _put(new, topic_id, dict.fromkeys(free, self.target_epoch))
        if revoked and self._owns_any(revoked):
            return member.moved_to(epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
        for topic_id, partitions in new.items():
            kept.setdefault(topic_id, {}).update(partitions)
        state = MemberState.UNRELEASED_PARTITIONS if is_unreleased else MemberState.STABLE
        return member.moved_to(self.target_epoch, state, kept, {})

    def _target_of(self, topic_id: Uuid) -> frozenset[int]:
        if topic_id not in self.subscribed:
            return _NO_PARTITIONS
        return self.target.get(topic_id, _NO_PARTITIONS)


def _put(partitions: _Partitions, topic_id: Uuid, found: Mapping[int, int]) -> None:
    if found:
        partitions[topic_id] = dict(found)
