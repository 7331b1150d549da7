"""Rebalances, in which a group moves to its next generation.

A rebalance waits until all members have rejoined or the rebalance timeout has expired. It then
starts the next generation with the members that have rejoined. Members whose sessions expire are
removed. Invariants: each pending request completes when the join or sync phase ends, and a Dead
group never changes. Source: the part of Kafka's `GroupMetadataManager` for classic groups.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination.partition_writer import NOTHING_WRITTEN, PendingWrite
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.group_record import group_record
from broker_ref.group.members import JoinResult, Member, SyncResult
from broker_ref.group.shard import Shard
from broker_ref.group.states import STATES_OF_A_GENERATION, TARGETS, GroupState
from broker_ref.protocol.errors import ApiError
from broker_ref.schedule import Schedule

logger = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""The session timeout of a new member, which cannot send heartbeats until it has joined."""

ABSENT_MEMBERS_WAIT_MIN_MS: Final = 1000
"""The minimum wait if no member has rejoined.

If the rebalance timeout is 0, a timer without a minimum would run permanently.
"""


class Rebalance:
    """The rebalances of the groups in a shard."""

    def __init__(self, shard: Shard, *, config: BrokerConfig, schedule: Schedule) -> None:
        self._shard = shard
        self._config = config
        self._schedule = schedule

    # Joining

    def maybe_prepare_rebalance_or_complete_join(
        self, group: ClassicGroup, now_ms: int, reason: str
    ) -> PendingWrite:
        """Start a rebalance, or complete the join phase if all members have joined."""
        if GroupState.PREPARING_REBALANCE in TARGETS[group.state]:
            return self.prepare_rebalance(group, now_ms, reason)
        return self.maybe_complete_join_phase(group, now_ms)

    def prepare_rebalance(self, group: ClassicGroup, now_ms: int, reason: str) -> PendingWrite:
        """Start the join phase. For an Empty group, apply `group.initial.rebalance.delay.ms`."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.assign(group, {}, ErrorCode.rebalance_in_progress, now_ms)
        self._stop_waiting_for_syncs(group)
        is_first = group.state is GroupState.EMPTY
        if is_first:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._wait_for_first_members(group, delay_ms, remaining_ms, now_ms)
        group.transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        logger.info(
            "Group %r is rebalancing after generation %d: %s",
            group.group_id, group.generation_id, reason,
        )  # fmt: skip
        if is_first:
            return NOTHING_WRITTEN
        if group.has_all_members_joined:
            return self.complete_join_phase(group, now_ms)
        self._wait_for_joins(group, now_ms)
        return NOTHING_WRITTEN

    def maybe_complete_join_phase(self, group: ClassicGroup, now_ms: int) -> PendingWrite:
        """Complete the join phase if all members have joined and the initial delay has passed."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.has_all_members_joined
        ):
            return self.complete_join_phase(group, now_ms)
        return NOTHING_WRITTEN

    def complete_join_phase(self, group: ClassicGroup, now_ms: int) -> PendingWrite:
        """Start the next generation with the members that have joined.

        Static members that have not joined stay in the group.
        """
        if group.join_timer is not None:
            group.join_timer.cancel()
        if group.state is not GroupState.PREPARING_REBALANCE:
            return NOTHING_WRITTEN
        late = [m for m in group.members.values() if m.join is None and not m.is_static]
        for member in late:
            group.remove(member.member_id)
        if late:
            logger.info(
                "Group %r: removed members that did not rejoin in time (count: %d)",
                group.group_id, len(late),
            )  # fmt: skip
        if not group.elect_joined_leader() and group.members:
            # Only static members remain, and none of them has rejoined. Wait until their sessions
            # expire.
            self._wait_for_joins(group, now_ms, min_ms=ABSENT_MEMBERS_WAIT_MIN_MS)
            return NOTHING_WRITTEN
        group.next_generation(now_ms)
        if not group.members:
            return self._store_empty(group, now_ms)
        logger.info(
            "Group %r: started generation %d (members: %d)",
            group.group_id, group.generation_id, len(group.members),
        )  # fmt: skip
        for member in tuple(group.members.values()):
            group.complete_join(member, self.joined(group, member))
            self.reschedule_heartbeat(group, member, now_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        self._wait_for_syncs(group, now_ms)
        return NOTHING_WRITTEN

    def joined(self, group: ClassicGroup, member: Member) -> JoinResult:
        """Return the JoinGroup result for a member of the current generation."""
        leads = group.is_leader(member.member_id)
        return JoinResult(
            member_id=member.member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=group.leader_id or "",
            members=group.current_members() if leads else (),
        )

    def _wait_for_first_members(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now_ms: int
    ) -> None:
        def elapsed(time_ms: int) -> None:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return
            if not group.new_member_added or remaining_ms == 0:
                self.complete_join_phase(group, time_ms)
                return
            group.new_member_added = False
            delay = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
            self._wait_for_first_members(group, delay, max(remaining_ms - delay_ms, 0), time_ms)

        group.join_timer = self._schedule.at(now_ms + delay_ms, elapsed)

    def _wait_for_joins(self, group: ClassicGroup, now_ms: int, *, min_ms: int = 0) -> None:
        def elapsed(time_ms: int) -> None:
            self.complete_join_phase(group, time_ms)

        timeout_ms = max(group.rebalance_timeout_ms, min_ms)
        group.join_timer = self._schedule.at(now_ms + timeout_ms, elapsed)

    def _store_empty(self, group: ClassicGroup, now_ms: int) -> PendingWrite:
        logger.info("Group %r is now empty (generation %d)", group.group_id, group.generation_id)
        try:
            return self._shard.write([group_record(group, {})], now_ms)
        except ApiError as error:
            logger.warning(
                "Failed to write the metadata of the empty group %r: %s. After a restart, former "
                "members may reappear until their sessions expire", group.group_id, error,
            )  # fmt: skip
            return NOTHING_WRITTEN

    # Syncing

    def synced(self, group: ClassicGroup, member_id: str) -> None:
        """Record that a member has sent SyncGroup."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._stop_waiting_for_syncs(group)

    def assign(
        self,
        group: ClassicGroup,
        assignments: Mapping[str, bytes],
        error_code: ErrorCode,
        now_ms: int,
    ) -> None:
        """Complete the pending SyncGroup requests with the assignments or an error."""
        failed = error_code is not ErrorCode.none
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            result = SyncResult(
                error_code=error_code,
                protocol_type=None if failed else group.protocol_type,
                protocol_name=None if failed else group.protocol_name,
                assignment=member.assignment,
            )
            if member.complete_sync(result):
                self.reschedule_heartbeat(group, member, now_ms)

    def _wait_for_syncs(self, group: ClassicGroup, now_ms: int) -> None:
        generation_id = group.generation_id

        def elapsed(time_ms: int) -> None:
            if (
                group.generation_id != generation_id
                or group.state not in STATES_OF_A_GENERATION
                or not group.pending_syncs
            ):
                return
            silent = tuple(sorted(group.pending_syncs))
            for member_id in silent:
                group.remove(member_id)
            self.prepare_rebalance(
                group, time_ms, f"members did not send SyncGroup in time ({len(silent)})"
            )

        group.sync_timer = self._schedule.at(now_ms + group.rebalance_timeout_ms, elapsed)

    def _stop_waiting_for_syncs(self, group: ClassicGroup) -> None:
        group.pending_syncs.clear()
        if group.sync_timer is not None:
            group.sync_timer.cancel()

    # Sessions

    def reschedule_heartbeat(
        self, group: ClassicGroup, member: Member, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """Renew the session of a member.

        A pending timer is rescheduled only if it would fire after the new deadline.
        """
        if timeout_ms is None:
            timeout_ms = member.session_timeout_ms
        member.session_deadline_ms = now_ms + timeout_ms
        timer = member.session_timer
        if timer is not None and timer.is_pending:
            if timer.deadline_ms <= member.session_deadline_ms:
                return
            timer.cancel()
        self._watch_session(group, member)

    def _watch_session(self, group: ClassicGroup, member: Member) -> None:
        def elapsed(time_ms: int) -> None:
            if group.state is GroupState.DEAD or group.members.get(member.member_id) is not member:
                return
            if time_ms < member.session_deadline_ms:
                self._watch_session(group, member)
            elif not member.has_satisfied_heartbeat:
                self._expire(group, member, time_ms)

        member.session_timer = self._schedule.at(member.session_deadline_ms, elapsed)

    def _expire(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        logger.info(
            "Removed member %r from group %r, because the member sent no heartbeat within its "
            "session timeout",
            member.member_id, group.group_id,
        )  # fmt: skip
        group.remove(member.member_id)
        if group.state in STATES_OF_A_GENERATION:
            self.maybe_prepare_rebalance_or_complete_join(
                group, now_ms, f"the session of {member.member_id} expired"
            )
        elif group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete_join_phase(group, now_ms)

    def add_pending_member(
        self, group: ClassicGroup, member_id: str, timeout_ms: int, now_ms: int
    ) -> None:
        """Wait for a new member to rejoin with its assigned member id (KIP-394)."""

        def elapsed(time_ms: int) -> None:
            group.pending_members.pop(member_id, None)
            if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
                self.complete_join_phase(group, time_ms)

        group.pending_members[member_id] = self._schedule.at(now_ms + timeout_ms, elapsed)
