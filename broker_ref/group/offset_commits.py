"""Committed offsets: who may commit, what is written, and what goes.

Purpose: the rules of OffsetCommit, TxnOffsetCommit and OffsetDelete for the groups of one shard,
and what deletes offsets with their group, their topic or their time. Invariant: a refusal writes
nothing; a group whose first offset is written is there from then on, without members; offsets that
are pending in a transaction keep their group, and go when the offset is deleted. What it must not
know: requests, which broker coordinates, and who waits.
Source: Kafka's `OffsetMetadataManager`, `GroupMetadataManager.maybeDeleteGroup`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.coordination.writes import Write
from broker_ref.group.group import Group
from broker_ref.group.membership import Membership
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import OffsetCommitKey, OffsetCommitValue
from broker_ref.group.retention import expired
from broker_ref.group.shard import Change, Shard, Transaction, offset_tombstones
from broker_ref.group.states import STATES_OF_A_GENERATION, GroupState
from broker_ref.group.stored_group import group_tombstone
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetCommitValue]

_MEMBERS_STATES: Final = STATES_OF_A_GENERATION | {GroupState.PREPARING_REBALANCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits: a member of a generation, or nobody in particular (generation -1)."""

    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


class OffsetCommits:
    """The offsets of the groups of one shard."""

    def __init__(self, shard: Shard, membership: Membership) -> None:
        self._shard = shard
        self._membership = membership

    def commit(self, group_id: str, committer: Committer, offsets: Offsets, now_ms: int) -> Write:
        """Keep offsets where the committer may; GROUP_ID_NOT_FOUND for a member of no group."""
        group = self._shard.groups.get(group_id)
        if group is not None:
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
        transaction: Transaction,
        now_ms: int,
    ) -> Write:
        """Keep offsets until their transaction ends; ILLEGAL_GENERATION for a member of no group.

        As in Kafka that is no sign of life of the member, and the group's state does not count.
        """
        group = self._shard.groups.get(group_id)
        if group is not None:
            self._membership.check_transactional_committer(
                group,
                member_id=committer.member_id,
                group_instance_id=committer.group_instance_id,
                generation_id=committer.generation_id,
            )
        elif committer.generation_id >= 0:
            raise ApiError(
                ErrorCode.illegal_generation,
                f"There is no group {group_id!r}, so no generation {committer.generation_id}.",
            )
        return self._write(group_id, offsets, now_ms, transaction)

    def delete(
        self, group_id: str, offsets: Iterable[TopicPartition], now_ms: int
    ) -> tuple[Mapping[TopicPartition, ErrorCode], Write]:
        """Forget offsets of topics that no member subscribes to; the codes by partition.

        GROUP_ID_NOT_FOUND where there is no such group, NON_EMPTY_GROUP where it has members of
        which it is not known what they subscribe to.
        """
        group = self._shard.groups.get(group_id)
        if group is None:
            raise group_id_not_found(group_id)
        if group.state in _MEMBERS_STATES and not group.uses_consumer_protocol:
            raise _non_empty(group)
        codes: dict[TopicPartition, ErrorCode] = {}
        for one in offsets:
            subscribed = group.is_subscribed_to(one.topic)
            codes[one] = ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none
        known = self._known(group_id)
        gone = [one for one, code in codes.items() if code is ErrorCode.none and one in known]
        return codes, self._shard.delete(offset_tombstones(group_id, gone), now_ms)

    def delete_group(self, group_id: str, now_ms: int) -> Write:
        """Forget a group and its offsets; GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self._shard.groups.get(group_id)
        if group is None:
            raise group_id_not_found(group_id)
        if group.state is not GroupState.EMPTY:
            raise _non_empty(group)
        changes = offset_tombstones(group_id, self._known(group_id))
        changes.append(group_tombstone(group_id))
        return self._delete(group, changes, now_ms)

    def forget_topic(self, topic: str, now_ms: int) -> None:
        """Forget the offsets of a topic that is no more, whether or not the log takes it in."""
        shard = self._shard
        for group_id in dict.fromkeys((*shard.offsets.groups(), *shard.pending.groups())):
            gone = [one for one in self._known(group_id) if one.topic == topic]
            try:
                shard.delete(offset_tombstones(group_id, gone), now_ms)
            except ApiError as error:
                logger.warning(
                    "the log keeps offsets of group %.100r for the deleted topic %r: %s",
                    group_id, topic, error,
                )  # fmt: skip
                shard.forget(group_id, gone)

    def expire(self, *, retention_ms: int, now_ms: int) -> None:
        """Forget offsets and groups that have not been used for long enough."""
        for group, changes in expired(self._shard, retention_ms=retention_ms, now_ms=now_ms):
            try:
                self._delete(group, changes, now_ms)
            except ApiError as error:
                logger.warning("Group %r does not expire: %s", group.group_id, error)

    def _write(
        self,
        group_id: str,
        offsets: Offsets,
        now_ms: int,
        transaction: Transaction | None = None,
    ) -> Write:
        changes: list[Change] = [
            (OffsetCommitKey(group=group_id, topic=one.topic, partition=one.partition), value)
            for one, value in offsets.items()
        ]
        write = self._shard.write(changes, now_ms, transaction)
        if changes and group_id not in self._shard.groups:
            self._shard.groups[group_id] = Group(group_id, state_timestamp_ms=now_ms)
        return write

    def _delete(self, group: Group, changes: Sequence[Change], now_ms: int) -> Write:
        write = self._shard.delete(changes, now_ms)
        if changes and changes[-1] == group_tombstone(group.group_id):
            self._shard.remove(group, now_ms)
        return write

    def _known(self, group_id: str) -> dict[TopicPartition, None]:
        """The partitions of which the group has an offset, committed or pending."""
        latest = self._shard.offsets.latest(group_id)
        return dict.fromkeys((*latest, *self._shard.pending.of_group(group_id)))


def group_id_not_found(group_id: str) -> ApiError:
    """There is no such group."""
    return ApiError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")


def _non_empty(group: Group) -> ApiError:
    return ApiError(
        ErrorCode.non_empty_group,
        f"Group {group.group_id!r} has {len(group.members)} members: stop them first.",
    )
