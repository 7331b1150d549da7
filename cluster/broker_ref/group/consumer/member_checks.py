"""Checks the identity and the epoch that a member sends.

Source: `throwIfInstanceIdIsFenced` and `throwIfConsumerGroupMemberEpochIsInvalid` in Kafka's
`GroupMetadataManager`.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.group.consumer.assignment import Assignment, AssignmentWithEpochs
from broker_ref.group.consumer.member import JOIN_EPOCH, ConsumerGroupMember
from broker_ref.protocol.errors import ApiError


def checked_static_member(
    member: ConsumerGroupMember | None, member_id: str, instance_id: str
) -> ConsumerGroupMember:
    """Return `member`, the static member with this instance id.

    Raises: ApiError (UNKNOWN_MEMBER_ID if `member` is None, FENCED_INSTANCE_ID if its member id is
    not `member_id`).
    """
    if member is None:
        raise ApiError(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise ApiError(
            ErrorCode.fenced_instance_id,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: Assignment | None) -> None:
    """Raise ApiError (FENCED_MEMBER_EPOCH) if a request contains an invalid member epoch.

    The current epoch and epoch 0 are valid. The previous epoch is valid if the response with the
    current epoch may have been lost.
    """
    current = member.member_epoch
    if epoch in (JOIN_EPOCH, current):
        return
    if epoch == member.previous_member_epoch < current and _is_subset(owned, member.assigned):
        return
    relation = "greater" if epoch > current else "smaller"
    raise ApiError(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({current}). The member must abandon all its partitions and "
        "rejoin.",
    )


def _is_subset(owned: Assignment | None, assigned: AssignmentWithEpochs) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic_id, {}).keys() for topic_id, partitions in owned.items()
    )
