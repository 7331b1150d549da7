"""Commits, deletes and expires offsets.

Handles OffsetCommit, TxnOffsetCommit and OffsetDelete for the groups of a shard. Deletes the
offsets of deleted groups and topics, and the offsets whose retention time has passed. Invariants: a
rejected request writes no records. The first commit creates a group without members. A group with
pending offsets does not expire. Deleting an offset also removes the pending offsets for its
partition. Source: Kafka's `OffsetMetadataManager` and `GroupMetadataManager.maybeDeleteGroup`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.partition_writer import PendingWrite
from broker_ref.frozen import dataclass
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer.offset_validation import check_offset_commit, check_offset_fetch
from broker_ref.group.consumer.records import ConsumerGroupMetadataKey
from broker_ref.group.group_record import tombstones_of
from broker_ref.group.membership import Membership
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from broker_ref.group.retention import expired
from broker_ref.group.shard import (
    Change,
    Group,
    Shard,
    TransactionalProducer,
    is_empty,
    offset_tombstones,
)
from broker_ref.group.states import STATES_OF_A_GENERATION, GroupState
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetCommitValue]

_MEMBERS_STATES: Final = STATES_OF_A_GENERATION | {GroupState.PREPARING_REBALANCE}


def is_metadata_invalid(metadata: str | None, config: BrokerConfig) -> bool:
    """Return whether the metadata of an offset is too long. Kafka counts UTF-16 code units."""
    maximum = config.offset_metadata_max_bytes
    return metadata is not None and len(metadata.encode("utf-16-be", "surrogatepass")) > 2 * maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """The client that commits offsets.

    `generation_id` is the generation or the member epoch. It is -1 if the client is not a member.
    `knows_member_epochs` is False for OffsetCommit versions that are older than KIP-848.
    """

    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1
    knows_member_epochs: bool = True


class OffsetMetadataManager:
    """The committed offsets of the groups in a shard."""

    def __init__(self, shard: Shard, membership: Membership, *, metadata: ClusterMetadata) -> None:
        self._shard = shard
        self._metadata = metadata
        self._membership = membership

    def commit(
        self, group_id: str, committer: Committer, offsets: Offsets, now_ms: int
    ) -> PendingWrite:
        """Commit offsets. Raises: ApiError, as in `GroupCoordinator.commit`."""
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._check_member(group, committer, offsets, is_transactional=False)
        elif group is not None:
            self._membership.check_committer(
                group,
                member_id=committer.member_id,
                group_instance_id=committer.group_instance_id,
                generation_id=committer.generation_id,
                now_ms=now_ms,
            )
        elif committer.generation_id >= 0:
            raise group_id_not_found(group_id)
        return self._write(group_id, offsets, now_ms)

    def commit_transactional(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        transaction: TransactionalProducer,
        now_ms: int,
    ) -> PendingWrite:
        """Write pending offsets. Raises: ApiError (see `GroupCoordinator.commit_transactional`).

        As in Kafka, a transactional commit does not renew the session of the member, and is valid
        in every state of the group.
        """
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            self._check_member(group, committer, offsets, is_transactional=True)
        elif group is not None:
            self._membership.check_transactional_committer(
                group,
                member_id=committer.member_id,
                group_instance_id=committer.group_instance_id,
                generation_id=committer.generation_id,
            )
        elif committer.generation_id >= 0:
            raise ApiError(
                ErrorCode.illegal_generation,
                f"Generation {committer.generation_id} is invalid, because group {group_id!r} does "
                "not exist.",
            )
        return self._write(group_id, offsets, now_ms, transaction)

    def _check_member(
        self,
        group: ConsumerGroup,
        committer: Committer,
        offsets: Offsets,
        *,
        is_transactional: bool,
    ) -> None:
        topics = self._metadata.topics
        check_offset_commit(
            group,
            member_id=committer.member_id,
            instance_id=committer.group_instance_id,
            member_epoch=committer.generation_id,
            partitions=[
                (topics[one.topic].topic_id if one.topic in topics else None, one.partition)
                for one in offsets
            ],
            is_transactional=is_transactional,
            knows_member_epochs=committer.knows_member_epochs,
        )

    def check_fetch(self, group_id: str, *, member_id: str | None, member_epoch: int) -> None:
        """Check the member of an OffsetFetch request. Classic groups accept any member.

        Raises: ApiError, as in `check_offset_fetch`.
        """
        group = self._shard.consumer_group(group_id)
        if group is not None:
            check_offset_fetch(group, member_id=member_id, member_epoch=member_epoch)

    def delete(
        self, group_id: str, offsets: Iterable[TopicPartition], now_ms: int
    ) -> tuple[Mapping[TopicPartition, ErrorCode], PendingWrite]:
        """Delete offsets for topics that have no subscribers. Return an error code per partition.

        Raises: ApiError (GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP if the group has members whose
        subscriptions are unknown).
        """
        group = self._shard.groups.get(group_id)
        if group is None:
            raise group_id_not_found(group_id)
        if (
            not isinstance(group, ConsumerGroup)
            and group.state in _MEMBERS_STATES
            and not group.uses_consumer_protocol
        ):
            raise _non_empty(group)
        subscribed = group.subscribed_of({one.topic for one in offsets})
        codes = {
            one: ErrorCode.group_subscribed_to_topic if one.topic in subscribed else ErrorCode.none
            for one in offsets
        }
        known = self._partitions_with_offsets(group_id)
        gone = [one for one, code in codes.items() if code is ErrorCode.none and one in known]
        return codes, self._shard.delete(offset_tombstones(group_id, gone), now_ms)

    def delete_group(self, group_id: str, now_ms: int) -> PendingWrite:
        """Delete a group and its offsets.

        Raises: ApiError (GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP).
        """
        group = self._shard.groups.get(group_id)
        if group is None:
            raise group_id_not_found(group_id)
        if not is_empty(group):
            raise _non_empty(group)
        changes = offset_tombstones(group_id, self._partitions_with_offsets(group_id))
        changes += tombstones_of(group)
        return self._delete(group, changes, now_ms)

    def delete_topic_offsets(self, topics: Collection[str], now_ms: int) -> None:
        """Delete the offsets of deleted topics.

        If the tombstones cannot be written, the offsets are removed only from memory.
        """
        shard = self._shard
        for group_id in dict.fromkeys((*shard.offsets.groups(), *shard.pending.groups())):
            gone = [one for one in self._partitions_with_offsets(group_id) if one.topic in topics]
            if not gone:
                continue
            try:
                shard.delete(offset_tombstones(group_id, gone), now_ms)
            except ApiError as error:
                logger.warning(
                    "Failed to write tombstones for the offsets that group %.100r committed for "
                    "the deleted topics %s: %s",
                    group_id, sorted({one.topic for one in gone}), error,
                )  # fmt: skip
                shard.remove_offsets(group_id, gone)

    def expire(self, *, retention_ms: int, now_ms: int) -> None:
        """Delete expired offsets and groups."""
        for group, changes in expired(self._shard, retention_ms=retention_ms, now_ms=now_ms):
            try:
                self._delete(group, changes, now_ms)
            except ApiError as error:
                logger.warning(
                    "Failed to delete expired offsets of group %r: %s", group.group_id, error
                )

    def _write(
        self,
        group_id: str,
        offsets: Offsets,
        now_ms: int,
        transaction: TransactionalProducer | None = None,
    ) -> PendingWrite:
        changes: list[Change] = [
            (OffsetCommitKey(group=group_id, topic=one.topic, partition=one.partition), value)
            for one, value in offsets.items()
        ]
        write = self._shard.write(changes, now_ms, transaction)
        if changes and group_id not in self._shard.groups:
            self._shard.groups[group_id] = ClassicGroup(group_id, state_timestamp_ms=now_ms)
        return write

    def _delete(self, group: Group, changes: Sequence[Change], now_ms: int) -> PendingWrite:
        write = self._shard.delete(changes, now_ms)
        if changes and isinstance(changes[-1][0], (GroupMetadataKey, ConsumerGroupMetadataKey)):
            self._shard.remove(group, now_ms)
        return write

    def _partitions_with_offsets(self, group_id: str) -> dict[TopicPartition, None]:
        """Return the partitions for which the group has a committed or pending offset."""
        latest = self._shard.offsets.latest(group_id)
        return dict.fromkeys((*latest, *self._shard.pending.of_group(group_id)))


def group_id_not_found(group_id: str) -> ApiError:
    """Return a GROUP_ID_NOT_FOUND error."""
    return ApiError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")


def _non_empty(group: Group) -> ApiError:
    return ApiError(
        ErrorCode.non_empty_group,
        f"Group {group.group_id!r} is not empty (members: {len(group.members)}). Stop the members "
        "first.",
    )
