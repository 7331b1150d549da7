"""Converts a group to a `__consumer_offsets` record and back.

The record contains the current generation of the group. Invariant: a group in state Stable or Empty
is restored unchanged, except that its members support only the selected protocol. Source: Kafka's
`GroupCoordinatorRecordHelpers` and `GroupMetadataManager.replay`.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.record_helpers import group_tombstones
from broker_ref.group.members import Member, MemberProtocol
from broker_ref.group.records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from broker_ref.group.shard import Change, Group
from broker_ref.group.states import GroupState


def group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> Change:
    """Return the record of the current generation. `assignments` is keyed by member id."""
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
    """Return the tombstone of a group."""
    return GroupMetadataKey(group=group_id), None


def tombstones_of(group: Group) -> list[Change]:
    """Return the tombstones of a classic or consumer group. The last one deletes the group."""
    if isinstance(group, ClassicGroup):
        return [group_tombstone(group.group_id)]
    return list(group_tombstones(group))


def group_from_record(group_id: str, value: GroupMetadataValue) -> ClassicGroup:
    """Return the group that a record describes, without timers."""
    group = ClassicGroup(
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
