"""ConsumerGroupHeartbeat and ConsumerGroupDescribe for the groups of a shard.

Applies the rules of `ConsumerGroupManager`, writes the resulting records, and replies after the
records are replicated. Removes members whose session or rebalance timeout expires, and converts
groups to the other protocol. Invariants: a group changes only after its records have been appended.
A reply never contains state that is not replicated. Source: KIP-848; the part of Kafka's
`GroupMetadataManager` for consumer groups, and `CoordinatorRuntime`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.partition_writer import NOTHING_WRITTEN, PendingWrite
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer.heartbeats import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from broker_ref.group.consumer.manager import ConsumerGroupManager, MemberUpdate
from broker_ref.group.consumer.member import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupMember,
    MemberState,
)
from broker_ref.group.consumer.record_helpers import group_tombstones
from broker_ref.group.consumer.regular_expressions import IsVisible, Resolution
from broker_ref.group.group_record import group_record, group_tombstone, tombstones_of
from broker_ref.group.member_timers import MemberTimers, TimerKind
from broker_ref.group.migration import (
    check_upgrade,
    downgraded_group,
    is_downgraded_by_leaving,
    upgraded_records,
)
from broker_ref.group.shard import Change, Shard, ShardState
from broker_ref.group.states import GroupState
from broker_ref.protocol.errors import ApiError
from broker_ref.schedule import Schedule

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS: Final = 500
"""The time until a retry if the records for an expired timer could not be written."""


Adopt = Callable[[ClassicGroup, str | None, int], None]
"""Takes over a classic group. The second argument is the reason for a rebalance, or None."""


class ConsumerMembership:
    """The members of the consumer groups in a shard.

    `new_id` returns a member id. `adopt` is called for each group that becomes a classic group.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        schedule: Schedule,
        wake: Wake,
        new_id: Callable[[], str],
        adopt: Adopt,
    ) -> None:
        self._shard = shard
        self._metadata = metadata
        self._schedule = schedule
        self._wake = wake
        self._adopt = adopt
        self.manager = ConsumerGroupManager(config=config, metadata=metadata, new_id=new_id)
        self._timers = MemberTimers(schedule)
        self._resolving: set[str] = set()

    def loaded(self, group: ConsumerGroup, now_ms: int) -> None:
        """Start the timers of a loaded group."""
        for member in group.members.values():
            self.start_session(group.group_id, member, now_ms)
            if not member.uses_classic_protocol:
                self._update_rebalance_timer(group.group_id, member, now_ms)

    def unload(self) -> None:
        """Cancel all timers."""
        self._timers.cancel_all()

    def update_config(self, config: BrokerConfig) -> None:
        """Use the current dynamic configs of the broker."""
        self.manager.config = config

    def topics_changed(self, names: Set[str], *, created_at: int | None) -> None:
        """Request a metadata refresh for all groups that subscribe to one of these topics.

        `created_at` is the offset of the metadata log at which topics were created, or None if no
        topics were created.
        """
        if created_at is not None:
            self.manager.new_topics_version = created_at
        for group in self._shard.groups.values():
            if isinstance(group, ConsumerGroup) and group.subscribes_to_any(names):
                group.request_metadata_refresh()

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Return the assignor of a group."""
        return self.manager.preferred_assignor(group)

    # Heartbeat

    def heartbeat(
        self, request: ConsumerHeartbeat, is_visible: IsVisible, now_ms: int
    ) -> Reply[ConsumerHeartbeatResult]:
        """Handle a valid heartbeat. The reply completes when the resulting records are replicated.

        `is_visible` returns whether the client may describe a topic.
        """
        reply: Reply[ConsumerHeartbeatResult] = Reply(self._wake)
        try:
            if request.is_leave:
                result, write = self._leave(request, now_ms)
            else:
                result, write = self._heartbeat(request, is_visible, now_ms)
        except ApiError as error:
            reply.complete(_failed(error.error_code, error.message))
            return reply

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            del time_ms
            reply.complete(result if outcome is ErrorCode.none else _failed(outcome))

        write.when_done(stored, now_ms)
        return reply

    def _heartbeat(
        self, request: ConsumerHeartbeat, is_visible: IsVisible, now_ms: int
    ) -> tuple[ConsumerHeartbeatResult, PendingWrite]:
        changes: list[Change] = []
        classic = self._shard.classic_group(request.group_id)
        group = self._group_for(request, changes)
        update = self.manager.heartbeat(group, request, now_ms)
        write = self.write([*changes, *update.changes], now_ms)
        if classic is not None:
            classic.fail_requests(ErrorCode.rebalance_in_progress)
            for member in group.members.values():
                self.start_session(request.group_id, member, now_ms)
        self._start_timers(request.group_id, update, now_ms)
        if update.refresh:
            self._schedule_resolution(request.group_id, update.refresh, is_visible, now_ms)
        return self.manager.result(request, update), write

    def _group_for(self, request: ConsumerHeartbeat, changes: list[Change]) -> ConsumerGroup:
        """Return the group to which a heartbeat was sent. A joining member can create the group.

        A classic group is deleted if it is empty, and converted if it has members. The records for
        the deletion or conversion are added to `changes`.
        """
        group_id = request.group_id
        group = self._shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        is_join = request.member_epoch == JOIN_EPOCH
        created = ConsumerGroup(group_id)
        if group is None:
            if not is_join:
                raise _not_found(f"Consumer group {group_id} not found.")
            return created
        if not is_join:
            raise _not_found(f"Group {group_id} is not a consumer group.")
        changes.append(group_tombstone(group_id))
        if group.state is not GroupState.EMPTY:
            check_upgrade(group, self.manager.config)
            logger.info(
                "Converting group %r to a consumer group, because a consumer joined", group_id
            )
            for key, value in upgraded_records(group, self._metadata):
                created.replay(key, value)
                changes.append((key, value))
        return created

    def _leave(
        self, request: ConsumerHeartbeat, now_ms: int
    ) -> tuple[ConsumerHeartbeatResult, PendingWrite]:
        group = self.consumer_group(request.group_id)
        member = self.manager.leave(group, request)
        if request.instance_id is not None and request.member_epoch == LEAVE_STATIC_EPOCH:
            write = self.write(self.manager.leave_temporarily(group, member), now_ms)
        else:
            write = self.fence(group, [member], now_ms)
        result = ConsumerHeartbeatResult(
            member_id=member.member_id, member_epoch=request.member_epoch
        )
        return result, write

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return a consumer group. Raises: ApiError (GROUP_ID_NOT_FOUND)."""
        group = self._shard.groups.get(group_id)
        if group is None:
            raise _not_found(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise _not_found(f"Group {group_id} is not a consumer group.")
        return group

    def fence(
        self, group: ConsumerGroup, members: Sequence[ConsumerGroupMember], now_ms: int
    ) -> PendingWrite:
        """Remove members. Convert the group if only members that use the classic protocol remain.

        The group is converted only if `group.consumer.migration.policy` allows the conversion.
        Raises: ApiError if the records cannot be written.
        """
        if is_downgraded_by_leaving(group, members, self.manager.config):
            return self.downgrade(group, now_ms, leaving=members, rebalances=True)
        write = self.write(self.manager.fence(group, members), now_ms)
        for member in members:
            self._timers.cancel_member(group.group_id, member.member_id)
        return write

    def downgrade(
        self,
        group: ConsumerGroup,
        now_ms: int,
        *,
        changes: Iterable[Change] = (),
        leaving: Sequence[ConsumerGroupMember] = (),
        joining: ConsumerGroupMember | None = None,
        rebalances: bool,
    ) -> PendingWrite:
        """Convert a group to a classic group.

        If `joining` is set, `changes` contains the records that add this member.

        Raises: ApiError (GROUP_ID_NOT_FOUND if a subscription has an invalid version, or another
        error code if the records cannot be written).
        """
        classic = downgraded_group(group, self._metadata, now_ms, leaving=leaving, joining=joining)
        assignments = {one.member_id: one.assignment for one in classic.members.values()}
        before = tuple(group.members)
        # `changes` already contains the tombstones of the member that `joining` replaces.
        tombstones = group_tombstones(group, before if joining is None else classic.members)
        write = self.write([*changes, *tombstones, group_record(classic, assignments)], now_ms)
        logger.info(
            "Converted group %r to a classic group, because all its members use the classic "
            "protocol",
            group.group_id,
        )
        for member_id in (*before, *classic.members):
            self._timers.cancel_member(group.group_id, member_id)
        self._adopt(classic, "it became a classic group" if rebalances else None, now_ms)
        return write

    def delete_empty(self, group_id: str, now_ms: int) -> None:
        """Delete a consumer group without members. Raises: ApiError."""
        group = self._shard.consumer_group(group_id)
        if group is not None and not group.members:
            self.write(tombstones_of(group), now_ms)

    # Writes

    def write(self, changes: Sequence[Change], now_ms: int) -> PendingWrite:
        """Append and apply records. A write without records waits for the previous write."""
        if not changes:
            return self.last_write(now_ms)
        write = self._shard.write(changes, now_ms)
        for change in changes:
            self._shard.replay_group(change, now_ms)
        return write

    def last_write(self, now_ms: int) -> PendingWrite:
        """Return the latest write to the partition of the shard. The write may already be complete.

        If nothing was written since the shard was loaded, return a write that completes when the
        loaded records are replicated.
        """
        last = self._shard.writes.last
        return self._shard.await_loaded_records(now_ms) if last is NOTHING_WRITTEN else last

    # Timers

    def _start_timers(self, group_id: str, update: MemberUpdate, now_ms: int) -> None:
        member = update.member
        self.start_session(group_id, member, now_ms)
        if not member.uses_classic_protocol and update.is_reconciled:
            self._update_rebalance_timer(group_id, member, now_ms)

    def joined_with_classic_protocol(
        self, group_id: str, member: ConsumerGroupMember, now_ms: int
    ) -> None:
        """Wait until a member that has joined sends SyncGroup."""
        self._timers.cancel(TimerKind.JOIN, group_id, member.member_id)
        self.start_session(group_id, member, now_ms)
        self._start(
            TimerKind.SYNC,
            group_id,
            member,
            timeout_ms=member.rebalance_timeout_ms,
            reason="the member did not send SyncGroup in time",
            now_ms=now_ms,
        )

    def synced(self, group_id: str, member: ConsumerGroupMember, now_ms: int) -> None:
        """Renew the session of a member that has sent SyncGroup."""
        self._timers.cancel(TimerKind.SYNC, group_id, member.member_id)
        self.start_session(group_id, member, now_ms)

    def wait_for_join(self, group_id: str, member: ConsumerGroupMember, now_ms: int) -> None:
        """Wait until a member that uses the classic protocol rejoins."""
        if self._timers.is_running(TimerKind.JOIN, group_id, member.member_id):
            return
        self._start(
            TimerKind.JOIN,
            group_id,
            member,
            timeout_ms=member.rebalance_timeout_ms,
            reason="the member did not rejoin in time",
            now_ms=now_ms,
        )

    def start_session(self, group_id: str, member: ConsumerGroupMember, now_ms: int) -> None:
        """Start or renew the session of a member."""
        timeout_ms = self.manager.session_timeout_ms(group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._start(
            TimerKind.SESSION,
            group_id,
            member,
            timeout_ms=timeout_ms,
            reason="the member session expired",
            now_ms=now_ms,
        )

    def _update_rebalance_timer(
        self, group_id: str, member: ConsumerGroupMember, now_ms: int
    ) -> None:
        """Start the rebalance timer if the member must revoke partitions. Otherwise, cancel it."""
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._timers.cancel(TimerKind.REBALANCE, group_id, member.member_id)
            return
        epoch = member.member_epoch

        def is_due(current: ConsumerGroupMember) -> bool:
            return current.member_epoch == epoch

        self._start(
            TimerKind.REBALANCE,
            group_id,
            member,
            timeout_ms=member.rebalance_timeout_ms,
            reason=f"the member did not revoke its partitions in epoch {epoch} in time",
            now_ms=now_ms,
            is_due=is_due,
        )

    def _start(
        self,
        kind: TimerKind,
        group_id: str,
        member: ConsumerGroupMember,
        *,
        timeout_ms: int,
        reason: str,
        now_ms: int,
        is_due: Callable[[ConsumerGroupMember], bool] = lambda _: True,
    ) -> None:
        """Start a timer that removes the member if `is_due` returns True after the timeout."""
        member_id = member.member_id

        def elapsed(time_ms: int) -> None:
            group = self._shard.consumer_group(group_id)
            current = None if group is None else group.members.get(member_id)
            if group is None or current is None:
                self._timers.cancel_member(group_id, member_id)
                return
            if not is_due(current):
                return
            logger.info("Group %r: removed member %r, because %s", group_id, member_id, reason)
            try:
                self.fence(group, [current], time_ms)
            except ApiError as error:
                logger.warning("Failed to remove member %r: %s", member_id, error)
                self._timers.start(kind, group_id, member_id, time_ms + RETRY_BACKOFF_MS, elapsed)

        self._timers.start(kind, group_id, member_id, now_ms + timeout_ms, elapsed)

    # Regular expressions

    def _schedule_resolution(
        self, group_id: str, regexes: frozenset[str], is_visible: IsVisible, now_ms: int
    ) -> None:
        """Resolve regular expressions after a heartbeat is handled.

        Kafka resolves regular expressions in another thread. This broker resolves them in steps,
        and handles other requests between the steps. An expression matches only topics that the
        sender of the heartbeat is authorized to describe.
        """
        if group_id in self._resolving:
            return
        self._resolving.add(group_id)

        def begin(time_ms: int) -> None:
            step(time_ms, Resolution(regexes, self._metadata, is_visible, now_ms=time_ms))

        def step(time_ms: int, resolution: Resolution) -> None:
            if not resolution.step():
                self._schedule.at(time_ms, partial(step, resolution=resolution))
                return
            self._resolving.discard(group_id)
            group = self._shard.consumer_group(group_id)
            if group is None or self._shard.state is not ShardState.ACTIVE:
                return
            changes = self.manager.regexes_resolved(group, resolution.resolved, time_ms)
            try:
                self.write(changes, time_ms)
            except ApiError as error:
                # A later heartbeat resolves the expressions again.
                logger.warning(
                    "Failed to store the regular expressions of group %r: %s", group_id, error
                )

        self._schedule.at(now_ms, begin)


def _failed(error_code: ErrorCode, message: str | None = None) -> ConsumerHeartbeatResult:
    return ConsumerHeartbeatResult(error_code=error_code, error_message=message)


def _not_found(message: str) -> ApiError:
    return ApiError(ErrorCode.group_id_not_found, message)
