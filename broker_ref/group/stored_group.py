"""A group as the log keeps it, and the group that comes of that.

Purpose: the record that a generation is written as, and back. Invariant: a group that is Stable or
Empty comes back as it was; the protocol that was chosen is the only one that its members are known
to support. What it must not know: when either happens.
Source: Kafka's `GroupCoordinatorRecordHelpers`, `GroupMetadataManager.replay`.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_ref.group.group import Group
from broker_ref.group.members import Member, MemberProtocol
from broker_ref.group.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from broker_ref.group.shard import Change
from broker_ref.group.states import GroupState


def group_record(group: Group, assignments: Mapping[str, bytes]) -> Change:
    """The present generation, with these assignments by member id; none is an empty one."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader_id,
        state_timestamp_ms=group.state_timestamp_ms,
        members=tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name or ""),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ),
    )
    return GroupMetadataKey(group=group.group_id), value


def group_tombstone(group_id: str) -> Change:
    """What deletes a group."""
    return GroupMetadataKey(group=group_id), None


def group_from_record(group_id: str, value: GroupMetadataValue) -> Group:
    """The group that the log tells of, without any timer."""
    group = Group(
        group_id,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        state_timestamp_ms=value.state_timestamp_ms,
        generation_id=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
    )
    for stored in value.members:
        protocol = MemberProtocol(name=value.protocol or "", metadata=stored.subscription)
        rebalance_timeout_ms = stored.rebalance_timeout_ms
        if rebalance_timeout_ms == -1:
            rebalance_timeout_ms = stored.session_timeout_ms
        group.add(
            Member(
                member_id=stored.member_id,
                group_instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                session_timeout_ms=stored.session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                protocol_type=value.protocol_type,
                protocols=(protocol,),
                assignment=stored.assignment,
            )
        )
    if value.members and group.leader_id not in group.members:
        group.leader_id = next(iter(group.members))
    group.refresh_subscriptions()
    return group
