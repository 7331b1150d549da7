"""Handles consumer group members that join, send heartbeats or leave.

    1. Update the member. If its subscription has changed, bump the group epoch.
    2. If the group epoch is higher than the epoch of the target assignment, calculate a new target
       assignment for all members.
    3. Reconcile the member with its target assignment.

Validates requests and calculates the resulting records. Invariants: methods do not change a group,
except for the time of its next metadata refresh. A rejected request writes no records. Checks run
in Kafka's order. Source: KIP-848; the part of Kafka's `GroupMetadataManager` for consumer groups.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.config_keys import INT32_MAX
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.records import ConfigResourceType
from broker_ref.frozen import dataclass
from broker_ref.group.consumer.assignment import (
    NOTHING,
    Assignment,
    AssignmentWithEpochs,
    MemberSpec,
    without_epochs,
)
from broker_ref.group.consumer.assignors import ASSIGNORS, configured_assignors
from broker_ref.group.consumer.group import ConsumerGroup, ResolvedRegularExpression
from broker_ref.group.consumer.heartbeats import (
    NOT_SENT,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from broker_ref.group.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupMember,
)
from broker_ref.group.consumer.member_checks import check_epoch, checked_static_member
from broker_ref.group.consumer.reconciliation import Reconciliation
from broker_ref.group.consumer.record_helpers import (
    assignment_record,
    epoch_record,
    member_tombstones,
    regex_record,
    regex_tombstone,
    stored_topics_tombstone,
    subscription_record,
    target_epoch_record,
    target_record,
)
from broker_ref.group.consumer.records import ConsumerGroupChange
from broker_ref.group.consumer.regular_expressions import compile_regex
from broker_ref.group.consumer.topics import metadata_hash, partition_counts, topic_ids
from broker_ref.group_configs import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    effective_value,
)
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)

METADATA_REFRESH_INTERVAL_MS: Final = INT32_MAX
REGEX_REFRESH_INTERVAL_MIN_MS: Final = 10_000
"""Minimum time between two resolutions of a group's regular expressions."""
REGEX_REFRESH_INTERVAL_MS: Final = 600_000
"""Time after which regular expressions are resolved again.

The value is the default of Kafka's internal config `group.consumer.regex.refresh.interval.ms`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberUpdate:
    """The records that a heartbeat writes, and the member before and after the heartbeat.

    `is_reconciled` is True if the reconciliation with the target assignment changed the member.
    `group_epoch` is the epoch of the group after the heartbeat. `refresh` contains the regular
    expressions that must be resolved again.
    """

    changes: list[ConsumerGroupChange]
    before: ConsumerGroupMember
    member: ConsumerGroupMember
    is_reconciled: bool
    group_epoch: int
    refresh: frozenset[str] = frozenset()


class ConsumerGroupManager:
    """The rules of consumer groups. `new_id` returns a member id."""

    def __init__(
        self, *, config: BrokerConfig, metadata: ClusterMetadata, new_id: Callable[[], str]
    ) -> None:
        self.config = config
        self._metadata = metadata
        self._new_id = new_id
        # Resolve older regular expressions again, because topics may have been created while
        # another broker was the coordinator.
        self.new_topics_version = metadata.end_offset
        """The metadata offset at which the last topic was created."""

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of the members of a group."""
        return self._group_config(SESSION_TIMEOUT, group_id)

    def _group_config(self, name: str, group_id: str) -> int:
        own = self._metadata.configs(ConfigResourceType.GROUP, group_id)
        return effective_value(name, own, self.config)

    # Heartbeat

    def heartbeat(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, now_ms: int
    ) -> MemberUpdate:
        """Handle a heartbeat. A member that sends epoch 0 joins the group.

        Raises: ApiError (GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
        UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID or INVALID_REGULAR_EXPRESSION).
        """
        self.check_is_not_full(group, request.member_id)
        changes: list[ConsumerGroupChange] = []
        before = self._subscribe(group, request, changes)
        member = _updated(before, request)
        return self.update_member(
            group, before, member, changes, owned=request.topic_partitions, now_ms=now_ms
        )

    def update_member(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        member: ConsumerGroupMember,
        changes: list[ConsumerGroupChange],
        *,
        owned: Assignment | None,
        now_ms: int,
        keeps_target: bool = False,
    ) -> MemberUpdate:
        """Update a member, its target assignment and its state. Add the new records to `changes`.

        If `keeps_target` is True, the target assignment is not recalculated.
        """
        names_changed = self._store_subscription(group, before, member, changes)
        regex_changed = before.subscribed_topic_regex != member.subscribed_topic_regex
        regex_resolved = regex_changed and self._update_regex(group, before, member, changes)
        refresh = self._regexes_to_refresh(group, before, member, now_ms)
        bump = names_changed or regex_resolved
        members = _members_with(group, member)
        group_epoch = group.group_epoch
        if bump or group.has_metadata_expired(now_ms):
            group_epoch = self._update_epoch(group, members.values(), changes, bump, now_ms)
        target_epoch, target = group.assignment_epoch, group.target_of(member)
        if not keeps_target:
            target_epoch, target = self._update_target(
                group,
                group_epoch,
                before=before,
                member=member,
                members=members,
                changes=changes,
                now_ms=now_ms,
            )
        reconciled = self.reconcile(
            group,
            member,
            changes,
            target_epoch=target_epoch,
            target=target,
            subscription_changed=names_changed or regex_changed,
            owned=owned,
        )
        return MemberUpdate(
            changes=changes,
            before=before,
            member=reconciled,
            is_reconciled=reconciled != member,
            group_epoch=group_epoch,
            refresh=refresh,
        )

    def result(self, request: ConsumerHeartbeat, update: MemberUpdate) -> ConsumerHeartbeatResult:
        """Return the result of a heartbeat. Include the assignment only if the member needs it."""
        member = update.member
        is_needed = (
            request.member_epoch == JOIN_EPOCH
            or request.is_full
            or update.before.assigned != member.assigned
        )
        return ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._group_config(HEARTBEAT_INTERVAL, request.group_id),
            assignment=without_epochs(member.assigned) if is_needed else None,
        )

    def check_is_not_full(self, group: ConsumerGroup, member_id: str) -> None:
        """Raise ApiError (GROUP_MAX_SIZE_REACHED) if the group is full."""
        size_max = self.config.group_consumer_max_size
        if len(group.members) >= size_max and member_id not in group.members:
            raise ApiError(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {size_max} members.",
            )

    # Members

    def _subscribe(
        self, group: ConsumerGroup, request: ConsumerHeartbeat, changes: list[ConsumerGroupChange]
    ) -> ConsumerGroupMember:
        member_id = request.member_id or self._new_id()
        is_join = request.member_epoch == JOIN_EPOCH
        if request.instance_id is not None:
            member = self.subscribe_static(
                group, member_id, request.instance_id, changes, is_join=is_join
            )
        else:
            member = subscribe_dynamic(group, member_id, is_join=is_join)
        check_epoch(member, request.member_epoch, request.topic_partitions)
        return member

    def subscribe_static(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        changes: list[ConsumerGroupChange],
        *,
        is_join: bool,
        uses_classic_protocol: bool = False,
    ) -> ConsumerGroupMember:
        """Return a static member.

        A joining member replaces the previous member with the same instance id. If both members use
        the consumer protocol, the join is rejected unless the previous member has left.
        """
        current = group.static_member(instance_id)
        if not is_join:
            return checked_static_member(current, member_id, instance_id)
        if current is None:
            return subscribe_dynamic(group, member_id, is_join=True)
        both_use_consumer_protocol = not uses_classic_protocol and not current.uses_classic_protocol
        if both_use_consumer_protocol and current.member_epoch != LEAVE_STATIC_EPOCH:
            raise ApiError(
                ErrorCode.unreleased_instance_id,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {current.member_id} member.",
            )
        member = replace(
            current, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=JOIN_EPOCH
        )
        group_id = group.group_id
        changes += member_tombstones(group_id, current.member_id)
        changes.append(subscription_record(group_id, member))
        target = group.target.get(current.member_id, NOTHING)
        changes.append(target_record(group_id, member_id, target))
        changes.append(assignment_record(group_id, member))
        return member

    def _store_subscription(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        member: ConsumerGroupMember,
        changes: list[ConsumerGroupChange],
    ) -> bool:
        """Add a record if the member has changed.

        Return whether the names of its subscribed topics have changed.
        """
        if member == before:
            # A new member always differs from `before`, because it has a rebalance timeout.
            return False
        changes.append(subscription_record(group.group_id, member))
        return member.subscribed_topic_names != before.subscribed_topic_names

    # Regular expressions

    def _update_regex(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        member: ConsumerGroupMember,
        changes: list[ConsumerGroupChange],
    ) -> bool:
        """Handle a member's changed regular expression. Return whether the new one is resolved."""
        old, new = before.subscribed_topic_regex, member.subscribed_topic_regex
        if old and group.subscribed_regexes[old] == 1:
            changes.append(regex_tombstone(group.group_id, old))
        if not new:
            return bool(old)
        if not group.subscribed_regexes[new]:
            compile_regex(new)
            return False
        return new in group.resolved

    def _regexes_to_refresh(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        member: ConsumerGroupMember,
        now_ms: int,
    ) -> frozenset[str]:
        """Return the regular expressions that must be resolved now. The result can be empty.

        All expressions are resolved at the same time, so the group rebalances only once.
        """
        subscribed = Counter(group.subscribed_regexes)
        if before.subscribed_topic_regex:
            subscribed[before.subscribed_topic_regex] -= 1
        if member.subscribed_topic_regex:
            subscribed[member.subscribed_topic_regex] += 1
        regexes = frozenset(+subscribed)
        last = next(iter(group.resolved.values()), None)
        if last is None:
            return regexes
        age_ms = now_ms - last.timestamp_ms
        is_needed = (
            regexes != group.resolved.keys()
            or last.version < self.new_topics_version
            or age_ms > REGEX_REFRESH_INTERVAL_MS
        )
        return regexes if is_needed and age_ms > REGEX_REFRESH_INTERVAL_MIN_MS else frozenset()

    def regexes_resolved(
        self,
        group: ConsumerGroup,
        resolved: Mapping[str, ResolvedRegularExpression],
        now_ms: int,
    ) -> list[ConsumerGroupChange]:
        """Return the records for resolved regular expressions and for the new group epoch."""
        changes: list[ConsumerGroupChange] = []
        bump = False
        topics = {regex: one.topics for regex, one in group.resolved.items()}
        for regex, found in resolved.items():
            if not group.subscribed_regexes[regex]:
                continue
            bump = bump or topics.get(regex, frozenset()) != found.topics
            topics[regex] = found.topics
            changes.append(regex_record(group.group_id, regex, found))
        names = {name for one in group.members.values() for name in one.subscribed_topic_names}
        hash_ = metadata_hash(names.union(*topics.values()), self._metadata)
        if bump or hash_ != group.metadata_hash:
            epoch = group.group_epoch + 1
            changes.append(epoch_record(group.group_id, epoch, hash_))
            _postpone_metadata_refresh(group, epoch, now_ms)
        return changes

    # The group epoch and the target assignment

    def _update_epoch(
        self,
        group: ConsumerGroup,
        members: Iterable[ConsumerGroupMember],
        changes: list[ConsumerGroupChange],
        bump: bool,
        now_ms: int,
    ) -> int:
        """Return the group epoch. Bump it if `bump` is True or subscribed topics have changed."""
        epoch = group.group_epoch
        hash_ = self.metadata_hash(group, members)
        if bump or hash_ != group.metadata_hash:
            epoch += 1
            changes.append(epoch_record(group.group_id, epoch, hash_))
            logger.info("Group %r: bumped the group epoch to %d", group.group_id, epoch)
        _postpone_metadata_refresh(group, epoch, now_ms)
        if group.has_stored_topics:
            changes.append(stored_topics_tombstone(group.group_id))
        return epoch

    def metadata_hash(self, group: ConsumerGroup, members: Iterable[ConsumerGroupMember]) -> int:
        """Return the hash of the topics to which the given members of a group subscribe."""
        names: set[str] = set()
        for member in members:
            names |= group.topics_of(member)
        return metadata_hash(names, self._metadata)

    def _update_target(
        self,
        group: ConsumerGroup,
        group_epoch: int,
        *,
        before: ConsumerGroupMember,
        member: ConsumerGroupMember,
        members: Mapping[str, ConsumerGroupMember],
        changes: list[ConsumerGroupChange],
        now_ms: int,
    ) -> tuple[int, Assignment]:
        """Calculate a new target assignment if the group epoch has been bumped.

        Return the epoch of the target assignment and the partitions that it contains for the
        member. Two calculations are at least `consumer.assignment.interval.ms` apart.
        """
        interval_ms = self._group_config(ASSIGNMENT_INTERVAL, group.group_id)
        last_ms = group.assignment_timestamp_ms
        is_early = last_ms > 0 and interval_ms > 0 and now_ms < last_ms + interval_ms
        if group.assignment_epoch >= group_epoch or is_early:
            return group.assignment_epoch, group.target_of(member)
        name = self.preferred_assignor(group, before, member)
        specs = {
            one.member_id: MemberSpec(
                topic_ids=topic_ids(group.topics_of(one), self._metadata),
                instance_id=one.instance_id,
                assignment=group.target_of(one),
            )
            for one in members.values()
        }
        counts = partition_counts(
            {topic_id for spec in specs.values() for topic_id in spec.topic_ids}, self._metadata
        )
        targets = ASSIGNORS[name](specs, counts)
        group_id = group.group_id
        for member_id, target in targets.items():
            if target != group.target.get(member_id):
                changes.append(target_record(group_id, member_id, target))
        changes.append(target_epoch_record(group_id, group_epoch, now_ms))
        logger.info(
            "Group %r: calculated the target assignment for epoch %d with assignor %r",
            group_id, group_epoch, name,
        )  # fmt: skip
        return group_epoch, targets[member.member_id]

    def preferred_assignor(
        self,
        group: ConsumerGroup,
        before: ConsumerGroupMember | None = None,
        member: ConsumerGroupMember | None = None,
    ) -> str:
        """Return the assignor that most members prefer, or the default.

        `before` and `member` are the states of one member before and after an update. Only the
        preference in `member` counts.
        """
        votes = Counter(dict.fromkeys(ASSIGNORS, 0))
        votes.update(one.server_assignor for one in group.members.values() if one.server_assignor)
        if before is not None and before.server_assignor:
            votes[before.server_assignor] -= 1
        if member is not None and member.server_assignor:
            votes[member.server_assignor] += 1
        name, count = votes.most_common(1)[0]
        return name if count > 0 else configured_assignors(self.config)[0]

    # Reconciliation

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        changes: list[ConsumerGroupChange],
        *,
        target_epoch: int,
        target: Assignment,
        subscription_changed: bool,
        owned: Assignment | None,
    ) -> ConsumerGroupMember:
        """Return the member in its next state. Add a record if the state changes."""
        if not subscription_changed and member.is_reconciled_to(target_epoch):
            return member
        reconciliation = Reconciliation(
            target_epoch=target_epoch,
            target=target,
            subscribed=topic_ids(group.topics_of(member), self._metadata),
            subscription_changed=subscription_changed,
            has_owner=group.has_owner,
            owned=owned,
        )
        updated = reconciliation.next_state(member)
        if updated != member:
            changes.append(assignment_record(group.group_id, updated))
        return updated

    # Leaving

    def leave(self, group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerGroupMember:
        """Return the member that is leaving. Raises: ApiError."""
        if request.instance_id is None:
            return group.member(request.member_id)
        current = group.static_member(request.instance_id)
        return checked_static_member(current, request.member_id, request.instance_id)

    def leave_temporarily(
        self, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> list[ConsumerGroupChange]:
        """Return the record of a static member that may rejoin until its session expires."""
        left = replace(
            member,
            member_epoch=LEAVE_STATIC_EPOCH,
            pending_revocation={},
            assigned=_with_zero_epochs(member.assigned),
        )
        return [assignment_record(group.group_id, left)]

    def fence(
        self, group: ConsumerGroup, members: Collection[ConsumerGroupMember]
    ) -> list[ConsumerGroupChange]:
        """Return the records that remove members and bump the group epoch."""
        group_id = group.group_id
        changes: list[ConsumerGroupChange] = []
        for member in members:
            changes += member_tombstones(group_id, member.member_id)
        regexes = Counter(one.subscribed_topic_regex for one in members)
        changes += [
            regex_tombstone(group_id, regex)
            for regex, count in regexes.items()
            if regex and group.subscribed_regexes[regex] == count
        ]
        gone = {member.member_id for member in members}
        remaining = [one for one in group.members.values() if one.member_id not in gone]
        changes.append(
            epoch_record(group_id, group.group_epoch + 1, self.metadata_hash(group, remaining))
        )
        return changes


def subscribe_dynamic(
    group: ConsumerGroup, member_id: str, *, is_join: bool
) -> ConsumerGroupMember:
    """Return the member with this id, or a new member if a client joins with a new id.

    Raises: ApiError (UNKNOWN_MEMBER_ID) if the member does not exist and `is_join` is False.
    """
    if is_join:
        return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
    return group.member(member_id)


def _updated(member: ConsumerGroupMember, request: ConsumerHeartbeat) -> ConsumerGroupMember:
    """Return the member with the fields that the request contains."""
    names = request.subscribed_topic_names
    timeout_ms = request.rebalance_timeout_ms
    sent = {
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
        "rebalance_timeout_ms": None if timeout_ms == NOT_SENT else timeout_ms,
        "server_assignor": request.server_assignor,
        "subscribed_topic_names": None if names is None else frozenset(names),
        "subscribed_topic_regex": request.subscribed_topic_regex,
    }
    return replace(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
        **{name: value for name, value in sent.items() if value is not None},  # type: ignore[arg-type]
    )


def _members_with(
    group: ConsumerGroup, member: ConsumerGroupMember
) -> dict[str, ConsumerGroupMember]:
    """Return the group's members and `member`, without the static member that `member` replaces."""
    members = dict(group.members)
    replaced = group.static_member(member.instance_id)
    if replaced is not None:
        members.pop(replaced.member_id)
    members[member.member_id] = member
    return members


def _postpone_metadata_refresh(group: ConsumerGroup, epoch: int, now_ms: int) -> None:
    group.metadata_refresh_ms = now_ms + METADATA_REFRESH_INTERVAL_MS
    group.metadata_refresh_epoch = epoch


def _with_zero_epochs(assigned: AssignmentWithEpochs) -> AssignmentWithEpochs:
    return {
        topic_id: dict.fromkeys(partitions, JOIN_EPOCH) for topic_id, partitions in assigned.items()
    }
