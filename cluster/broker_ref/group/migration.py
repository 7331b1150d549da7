"""Conversion of classic groups to consumer groups and back, while they have members.

    upgrade    a member that uses the consumer protocol joins a classic group
    downgrade  members leave a consumer group, and only members that use the classic protocol
               remain; or a static member that uses the classic protocol replaces the last member
               that uses the consumer protocol

Decides whether a group is converted, and creates the new group. Invariants: the members, their
assignments and the generation or epoch of the group stay the same, so a member that keeps its
protocol does not lose its partitions. Source: KIP-848; Kafka's `ConsumerGroup.fromClassicGroup`,
`ClassicGroup.fromConsumerGroup` and the checks in `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.assignment import NOTHING, Assignment, with_epoch
from broker_ref.group.consumer.group import FIRST_EPOCH, ConsumerGroup
from broker_ref.group.consumer.member import ClassicMetadata, ConsumerGroupMember
from broker_ref.group.consumer.record_helpers import group_records
from broker_ref.group.consumer.records import ConsumerGroupChange
from broker_ref.group.consumer.topics import metadata_hash
from broker_ref.group.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    EmbeddedAssignment,
    encode_assignment,
    read_assignment,
    read_subscription,
    read_version,
)
from broker_ref.group.members import Member
from broker_ref.group.states import GroupState
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.reader import MalformedRequestError

_WITH_UPGRADE: Final = ("upgrade", "bidirectional")
_WITH_DOWNGRADE: Final = ("downgrade", "bidirectional")
"""The values of `group.consumer.migration.policy` that allow each conversion."""


def check_upgrade(group: ClassicGroup, config: BrokerConfig) -> None:
    """Raise ApiError (GROUP_ID_NOT_FOUND) if a classic group must not be converted."""
    if config.group_consumer_migration_policy not in _WITH_UPGRADE:
        raise _not_upgraded(group, "group.consumer.migration.policy does not allow upgrades")
    if not group.uses_consumer_protocol:
        raise _not_upgraded(group, f"the protocol type is not {CONSUMER_PROTOCOL_TYPE!r}")
    if len(group.members) > config.group_consumer_max_size:
        raise _not_upgraded(group, "the number of members exceeds group.consumer.max.size")


def upgraded_records(group: ClassicGroup, metadata: ClusterMetadata) -> list[ConsumerGroupChange]:
    """Return the records of a consumer group that replaces a classic group.

    The generation of the classic group becomes the epoch of the new group and of its members. If
    the classic group has not completed a rebalance, its generation is 0, and the new epoch is 1,
    because 0 is not a valid epoch for a member.

    If the classic group is rebalancing, its assignments are out of date. The records then contain a
    wrong metadata hash, so the next heartbeat bumps the group epoch and all members get a new
    target assignment.

    Raises: ApiError (GROUP_ID_NOT_FOUND if the metadata of a member is invalid, a partition is
    assigned to two members, or an assignment contains user data from a client-side assignor, which
    the conversion would lose).
    """
    epoch = max(group.generation_id, FIRST_EPOCH)
    try:
        members = [_consumer_member(group, one, epoch, metadata) for one in group.members.values()]
    except MalformedRequestError as error:
        raise _not_upgraded(group, f"the metadata of a member is invalid: {error}") from error
    _check_owners(group, members, metadata)
    names = {name for member in members for name in member.subscribed_topic_names}
    hash_ = metadata_hash(names, metadata)
    if members and group.state is not GroupState.STABLE:
        hash_ = ~hash_
    return group_records(group.group_id, members, epoch=epoch, metadata_hash=hash_)


def _consumer_member(
    group: ClassicGroup, member: Member, epoch: int, metadata: ClusterMetadata
) -> ConsumerGroupMember:
    protocol = group.protocol_name
    if protocol not in member.protocol_names:
        # The group has no protocol yet, or the member has joined since the last generation.
        protocol = member.protocols[0].name
    subscription = read_subscription(member.metadata(protocol))
    assignment = read_assignment(member.assignment)
    if assignment.user_data:
        raise _not_upgraded(group, "the assignments contain data from a custom assignor")
    return ConsumerGroupMember(
        member_id=member.member_id,
        member_epoch=epoch,
        previous_member_epoch=epoch,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        assigned=with_epoch(_by_topic_id(assignment, metadata), epoch),
        classic=ClassicMetadata(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
    )


def _check_owners(
    group: ClassicGroup, members: Iterable[ConsumerGroupMember], metadata: ClusterMetadata
) -> None:
    """Raise ApiError if a partition is assigned to two members (`addPartitionEpochs`)."""
    owned: set[tuple[Uuid, int]] = set()
    for member in members:
        for topic_id, partitions in member.assigned.items():
            for partition in partitions:
                if (topic_id, partition) in owned:
                    name = metadata.topics_by_id[topic_id].name
                    raise _not_upgraded(
                        group, f"partition {partition} of topic {name} is assigned to two members"
                    )
                owned.add((topic_id, partition))


def is_downgraded_by_leaving(
    group: ConsumerGroup, leaving: Collection[ConsumerGroupMember], config: BrokerConfig
) -> bool:
    """Return whether a group is converted to a classic group when the given members leave."""
    remaining = len(group.members) - len(leaving)
    return (
        remaining > 0
        and _has_only_classic_members(group, except_for=leaving)
        and _allows_downgrade(remaining, config)
    )


def is_downgraded_by_replacing(
    group: ConsumerGroup, replaced: ConsumerGroupMember, config: BrokerConfig
) -> bool:
    """Return whether a group is converted when a classic member replaces the given member."""
    return (
        not replaced.uses_classic_protocol
        and _has_only_classic_members(group, except_for=(replaced,))
        and _allows_downgrade(len(group.members), config)
    )


def downgraded_group(
    group: ConsumerGroup,
    metadata: ClusterMetadata,
    now_ms: int,
    *,
    leaving: Collection[ConsumerGroupMember] = (),
    joining: ConsumerGroupMember | None = None,
) -> ClassicGroup:
    """Return a classic group in the Stable state that replaces a consumer group.

    If `joining` is set, it replaces the static member with the same instance id and receives its
    target assignment.

    Raises: ApiError (GROUP_ID_NOT_FOUND if the version of a member's subscription is invalid).
    """
    classic = ClassicGroup(
        group.group_id,
        state=GroupState.STABLE,
        state_timestamp_ms=now_ms,
        generation_id=group.group_epoch,
    )
    gone = {member.member_id for member in leaving}
    replaced = None if joining is None else group.static_member(joining.instance_id)
    members = {one.member_id: one for one in group.members.values() if one.member_id not in gone}
    if replaced is not None:
        del members[replaced.member_id]
    if joining is not None:
        members[joining.member_id] = joining
    for member in members.values():
        classic.add(_classic_member(member))
    classic.protocol_name = classic.select_protocol()
    classic.refresh_subscriptions()
    for one in classic.members.values():
        target = group.target_of(members[one.member_id])
        subscription = one.metadata(classic.protocol_name)
        try:
            one.assignment = embedded_assignment(target, subscription, metadata)
        except MalformedRequestError as error:
            raise ApiError(
                ErrorCode.group_id_not_found,
                f"Group {group.group_id} cannot be converted to a classic group, because the "
                f"subscription of member {one.member_id} is invalid: {error}.",
            ) from error
    return classic


def embedded_assignment(
    assignment: Assignment, subscription: bytes, metadata: ClusterMetadata
) -> bytes:
    """Encode an assignment in the same version as a member's subscription.

    Topics that do not exist are omitted. Raises: MalformedRequestError if the version of the
    subscription is invalid.
    """
    topics = metadata.topics_by_id
    return encode_assignment(
        {topics[one].name: partitions for one, partitions in assignment.items() if one in topics},
        read_version(subscription),
    )


def _classic_member(member: ConsumerGroupMember) -> Member:
    assert member.classic is not None
    return Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocols=member.classic.protocols,
    )


def _has_only_classic_members(
    group: ConsumerGroup, *, except_for: Collection[ConsumerGroupMember]
) -> bool:
    omitted = {member.member_id for member in except_for}
    return all(
        member.uses_classic_protocol
        for member in group.members.values()
        if member.member_id not in omitted
    )


def _allows_downgrade(size: int, config: BrokerConfig) -> bool:
    is_allowed = config.group_consumer_migration_policy in _WITH_DOWNGRADE
    return is_allowed and size <= config.group_max_size


def _by_topic_id(assignment: EmbeddedAssignment, metadata: ClusterMetadata) -> Assignment:
    return {
        metadata.topics[name].topic_id: partitions
        for name, partitions in assignment.partitions.items()
        if name in metadata.topics and partitions
    } or NOTHING


def _not_upgraded(group: ClassicGroup, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.group_id_not_found,
        f"Group {group.group_id} cannot be converted to a consumer group, because {reason}.",
    )
