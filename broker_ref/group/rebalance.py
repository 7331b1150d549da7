"""From one generation of a group to the next.

Purpose: have all members join again, wait as long as they asked for, begin the generation with
those that did, and drop who shows no sign of life. Invariant: whoever waits is answered when the
phase ends; nothing is done to a group that is Dead. What it must not know: requests of members,
and what is in the log. Source: the classic part of Kafka's `GroupMetadataManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination.writes import NOTHING_WRITTEN, Write
from broker_ref.group.group import Group
from broker_ref.group.members import JoinResult, Member, SyncResult
from broker_ref.group.shard import Shard
from broker_ref.group.states import STATES_OF_A_GENERATION, TARGETS, GroupState
from broker_ref.group.stored_group import group_record
from broker_ref.protocol.errors import ApiError
from broker_ref.schedule import Schedule

logger = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""A member whose first JoinGroup waits cannot send heartbeats; this long it is kept."""


class Rebalance:
    """The rebalances of the groups of one shard."""

    def __init__(self, shard: Shard, *, config: BrokerConfig, schedule: Schedule) -> None:
        self._shard = shard
        self._config = config
        self._schedule = schedule

    # Joining

    def begin_or_complete(self, group: Group, now_ms: int, reason: str) -> Write:
        """Start a rebalance, or end the joining where one has started and nobody is missing."""
        if GroupState.PREPARING_REBALANCE in TARGETS[group.state]:
            return self.begin(group, now_ms, reason)
        return self.complete_if_all_joined(group, now_ms)

    def begin(self, group: Group, now_ms: int, reason: str) -> Write:
        """Ask all to join again; a first member waits for others that may be starting too."""
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
            "Group %r rebalances after generation %d: %s",
            group.group_id, group.generation_id, reason,
        )  # fmt: skip
        if is_first:
            return NOTHING_WRITTEN
        if group.has_all_members_joined:
            return self.complete(group, now_ms)
        self._wait_for_joins(group, now_ms)
        return NOTHING_WRITTEN

    def complete_if_all_joined(self, group: Group, now_ms: int) -> Write:
        """End the joining, unless it is the first members' or somebody is missing."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.has_all_members_joined
        ):
            return self.complete(group, now_ms)
        return NOTHING_WRITTEN

    def complete(self, group: Group, now_ms: int) -> Write:
        """Begin the generation of those that joined; static members may be late."""
        if group.join_timer is not None:
            group.join_timer.cancel()
        if group.state is not GroupState.PREPARING_REBALANCE:
            return NOTHING_WRITTEN
        late = [m for m in group.members.values() if m.join is None and not m.is_static]
        for member in late:
            group.remove(member.member_id)
        if late:
            logger.info(
                "Group %r goes on without %d members that did not join in time.",
                group.group_id, len(late),
            )  # fmt: skip
        if not group.elect_joined_leader() and group.members:
            # Static members alone, none of which joined: until their sessions expire.
            self._wait_for_joins(group, now_ms)
            return NOTHING_WRITTEN
        group.next_generation(now_ms)
        if not group.members:
            return self._store_empty(group, now_ms)
        logger.info(
            "Group %r has generation %d of %d members.",
            group.group_id, group.generation_id, len(group.members),
        )  # fmt: skip
        for member in tuple(group.members.values()):
            group.complete_join(member, self.joined(group, member))
            self.keep_alive(group, member, now_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        self._wait_for_syncs(group, now_ms)
        return NOTHING_WRITTEN

    def joined(self, group: Group, member: Member) -> JoinResult:
        """What a member of the present generation is told."""
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
        self, group: Group, delay_ms: int, remaining_ms: int, now_ms: int
    ) -> None:
        def elapsed(time_ms: int) -> None:
            if group.state is not GroupState.PREPARING_REBALANCE:
                return
            if not group.new_member_added or remaining_ms == 0:
                self.complete(group, time_ms)
                return
            group.new_member_added = False
            delay = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
            self._wait_for_first_members(group, delay, max(remaining_ms - delay_ms, 0), time_ms)

        group.join_timer = self._schedule.at(now_ms + delay_ms, elapsed)

    def _wait_for_joins(self, group: Group, now_ms: int) -> None:
        def elapsed(time_ms: int) -> None:
            self.complete(group, time_ms)

        group.join_timer = self._schedule.at(now_ms + group.rebalance_timeout_ms, elapsed)

    def _store_empty(self, group: Group, now_ms: int) -> Write:
        logger.info("Group %r is empty in generation %d.", group.group_id, group.generation_id)
        try:
            return self._shard.write([group_record(group, {})], now_ms)
        except ApiError as error:
            logger.warning(
                "The log does not take in that group %r is empty: after a restart it may have its "
                "former members for the length of their sessions: %s", group.group_id, error,
            )  # fmt: skip
            return NOTHING_WRITTEN

    # Syncing

    def synced(self, group: Group, member_id: str) -> None:
        """Note that a member has asked for its assignment."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._stop_waiting_for_syncs(group)

    def assign(
        self,
        group: Group,
        assignments: Mapping[str, bytes],
        error_code: ErrorCode,
        now_ms: int,
    ) -> None:
        """Give each member its part, or an error to those that wait for one."""
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
                self.keep_alive(group, member, now_ms)

    def _wait_for_syncs(self, group: Group, now_ms: int) -> None:
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
            self.begin(group, time_ms, f"{len(silent)} members did not ask for an assignment")

        group.sync_timer = self._schedule.at(now_ms + group.rebalance_timeout_ms, elapsed)

    def _stop_waiting_for_syncs(self, group: Group) -> None:
        group.pending_syncs.clear()
        if group.sync_timer is not None:
            group.sync_timer.cancel()

    # Sessions

    def keep_alive(
        self, group: Group, member: Member, now_ms: int, timeout_ms: int | None = None
    ) -> None:
        """Let a member's session begin anew.

        The timer stays where it would only have to be moved on: a heartbeat moves a number.
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

    def _watch_session(self, group: Group, member: Member) -> None:
        def elapsed(time_ms: int) -> None:
            if group.state is GroupState.DEAD or group.members.get(member.member_id) is not member:
                return
            if time_ms < member.session_deadline_ms:
                self._watch_session(group, member)
            elif not member.has_satisfied_heartbeat:
                self._expire(group, member, time_ms)

        member.session_timer = self._schedule.at(member.session_deadline_ms, elapsed)

    def _expire(self, group: Group, member: Member, now_ms: int) -> None:
        logger.info(
            "Member %r of group %r has shown no sign of life for its session timeout.",
            member.member_id, group.group_id,
        )  # fmt: skip
        group.remove(member.member_id)
        if group.state in STATES_OF_A_GENERATION:
            self.begin_or_complete(group, now_ms, f"the session of {member.member_id} expired")
        elif group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
            self.complete(group, now_ms)

    def expect(self, group: Group, member_id: str, timeout_ms: int, now_ms: int) -> None:
        """Wait for a member to join with the id that it was given (KIP-394)."""

        def elapsed(time_ms: int) -> None:
            group.pending_members.pop(member_id, None)
            if group.state is GroupState.PREPARING_REBALANCE and group.has_all_members_joined:
                self.complete(group, time_ms)

        group.pending_members[member_id] = self._schedule.at(now_ms + timeout_ms, elapsed)
