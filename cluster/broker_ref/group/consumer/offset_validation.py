"""Validates the member epochs of OffsetCommit, TxnOffsetCommit and OffsetFetch requests.

A member that sends its current epoch may commit offsets. A member that sends an older epoch may
commit offsets only for the partitions that it has owned since that epoch. Invariant: a member never
commits offsets for a partition that another member owns. Source: KIP-848, KIP-1251; Kafka's
`ConsumerGroup.validateOffsetCommit` and `validateOffsetFetch`.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer.member import ConsumerGroupMember
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid


def check_offset_commit(
    group: ConsumerGroup,
    *,
    member_id: str,
    instance_id: str | None,
    member_epoch: int,
    partitions: Iterable[tuple[Uuid | None, int]],
    is_transactional: bool,
    knows_member_epochs: bool,
) -> None:
    """Check whether a member may commit offsets for `partitions`.

    A topic id is None if the topic no longer exists. `knows_member_epochs` is False for request
    versions that precede KIP-848. Raises: ApiError (UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION or
    STALE_MEMBER_EPOCH). For transactional commits and for members that use the classic protocol,
    the error code is ILLEGAL_GENERATION instead of STALE_MEMBER_EPOCH.
    """
    if member_epoch < 0 and not group.members:
        return
    if is_transactional and member_epoch == -1 and not member_id and instance_id is None:
        return
    member = group.member(member_id)
    if not (is_transactional or member.uses_classic_protocol or knows_member_epochs):
        raise ApiError(
            ErrorCode.unsupported_version,
            "OffsetCommit version 9 or above must be used by members using the consumer group "
            "protocol.",
        )
    if member_epoch == member.member_epoch:
        return
    is_illegal = is_transactional or member.uses_classic_protocol
    code = ErrorCode.illegal_generation if is_illegal else ErrorCode.stale_member_epoch
    if member_epoch > member.member_epoch:
        raise ApiError(
            code,
            f"Received member epoch {member_epoch} is newer than current member epoch "
            f"{member.member_epoch}.",
        )
    for topic_id, partition in partitions:
        since = None if topic_id is None else member.assignment_epoch(topic_id, partition)
        if since is None or member_epoch < since:
            raise ApiError(code, _not_assigned(member, member_epoch, topic_id, partition))


def check_offset_fetch(group: ConsumerGroup, *, member_id: str | None, member_epoch: int) -> None:
    """Check the member id and the member epoch of an OffsetFetch request, if they are set.

    Raises: ApiError (UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH or ILLEGAL_GENERATION).
    """
    if member_id is None and member_epoch < 0:
        return
    member = group.member(member_id or "")
    if member_epoch != member.member_epoch:
        is_classic = member.uses_classic_protocol
        raise ApiError(
            ErrorCode.illegal_generation if is_classic else ErrorCode.stale_member_epoch,
            f"The received member epoch {member_epoch} does not match the expected member epoch "
            f"{member.member_epoch}.",
        )


def _not_assigned(
    member: ConsumerGroupMember, epoch: int, topic_id: Uuid | None, partition: int
) -> str:
    return (
        f"Member {member.member_id} does not own partition {partition} of topic {topic_id} since "
        f"epoch {epoch}."
    )
