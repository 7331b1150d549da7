"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup for the groups of a shard.

Validates requests from members, changes the group, and starts rebalances with `Rebalance`.
Invariants: the checks return the same error codes in the same order as in Kafka. Each reply
completes once. Source: the part of Kafka's `GroupMetadataManager` for classic groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.coordination.partition_writer import NOTHING_WRITTEN, PendingWrite
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.group_record import group_record
from broker_ref.group.members import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    Member,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from broker_ref.group.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalance
from broker_ref.group.shard import Shard
from broker_ref.group.states import (
    HEARTBEAT_ANSWERS,
    STATES_KEPT_ALIVE_BY_COMMITS,
    STATES_OF_A_GENERATION,
    GroupState,
)
from broker_ref.protocol.errors import ApiError
from broker_ref.schedule import Schedule

logger = logging.getLogger(__name__)

Join = Reply[JoinResult]
Sync = Reply[SyncResult]


class Membership:
    """The members of the groups in a shard. `new_id` returns a unique suffix for a member id."""

    def __init__(
        self,
        shard: Shard,
        *,
        config: BrokerConfig,
        schedule: Schedule,
        wake: Wake,
        new_id: Callable[[], str],
    ) -> None:
        self._shard = shard
        self._config = config
        self._wake = wake
        self._new_id = new_id
        self._rebalance = Rebalance(shard, config=config, schedule=schedule)

    def loaded(self, group: ClassicGroup, now_ms: int) -> None:
        """Start the session timers of a loaded group."""
        for member in tuple(group.members.values()):
            self._rebalance.reschedule_heartbeat(group, member, now_ms)
        if len(group.members) > self._config.group_max_size:
            self._rebalance.prepare_rebalance(group, now_ms, "the group exceeds group.max.size")

    def adopt(self, group: ClassicGroup, rebalance_reason: str | None, now_ms: int) -> None:
        """Take over a group that was converted from a consumer group. Rebalance it if necessary."""
        self._shard.groups[group.group_id] = group
        for member in tuple(group.members.values()):
            self._rebalance.reschedule_heartbeat(group, member, now_ms)
        if rebalance_reason is not None:
            self._rebalance.prepare_rebalance(group, now_ms, rebalance_reason)

    # Join

    def join(self, request: JoinRequest, now_ms: int) -> Join:
        """Handle a JoinGroup request from a new or an existing member.

        The reply completes when the next generation starts.
        """
        reply: Join = Reply(self._wake)
        group = self._shard.classic_group(request.group_id)
        is_new_group = group is None
        if group is None:
            if request.member_id:
                _refuse(reply, request.member_id, ErrorCode.unknown_member_id)
                return reply
            group = ClassicGroup(request.group_id, state_timestamp_ms=now_ms)
            self._shard.groups[request.group_id] = group
        try:
            self._join(group, request, reply, now_ms)
        except ApiError as error:
            includes_member_id = error.error_code not in _WITHOUT_MEMBER_ID
            _refuse(reply, request.member_id if includes_member_id else "", error.error_code)
        if is_new_group:
            self._store_new(group, reply, now_ms)
        return reply

    def _join(self, group: ClassicGroup, request: JoinRequest, reply: Join, now_ms: int) -> None:
        member_id = request.member_id
        if not self._accepts(group, member_id):
            group.remove(member_id)
            raise ApiError(
                ErrorCode.group_max_size_reached,
                f"Group {group.group_id!r} has reached its maximum size "
                f"(group.max.size={self._config.group_max_size}).",
            )
        names = [protocol.name for protocol in request.protocols]
        if not group.supports(request.protocol_type, names):
            raise ApiError(
                ErrorCode.inconsistent_group_protocol,
                f"The requested protocols {names} of type {request.protocol_type!r} are "
                f"incompatible with group {group.group_id!r} of type {group.protocol_type!r}.",
            )
        if not member_id:
            self._join_new(group, request, reply, now_ms)
        elif member_id in group.pending_members:
            if request.group_instance_id is not None:
                raise ApiError(
                    ErrorCode.unknown_server_error,
                    f"Member {member_id!r} is a dynamic member and cannot join with the instance "
                    f"id {request.group_instance_id!r}.",
                )
            self._add(group, member_id, request, reply, now_ms)
        else:
            self._join_again(group, request, reply, now_ms)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Return whether the member can join without exceeding `group.max.size`.

        During the join phase, the limit applies only to the members that have rejoined.
        """
        size_max = self._config.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join is not None
            return waits or group.awaiting_join < size_max
        if group.state in STATES_OF_A_GENERATION:
            return member is not None or len(group.members) < size_max
        return True

    def _join_new(
        self, group: ClassicGroup, request: JoinRequest, reply: Join, now_ms: int
    ) -> None:
        instance_id = request.group_instance_id
        current = group.static_members.get(instance_id) if instance_id is not None else None
        if current is not None:
            self._replace(group, group.members[current], request, reply, now_ms)
            return
        member_id = self._member_id(request)
        if instance_id is not None:
            self._add(group, member_id, request, reply, now_ms)
        elif request.requires_known_member_id:
            self._rebalance.add_pending_member(group, member_id, request.session_timeout_ms, now_ms)
            _refuse(reply, member_id, ErrorCode.member_id_required)
        else:
            self._add(group, member_id, request, reply, now_ms)

    def _join_again(
        self, group: ClassicGroup, request: JoinRequest, reply: Join, now_ms: int
    ) -> None:
        member = group.check_member(request.member_id, request.group_instance_id)
        if group.state in STATES_OF_A_GENERATION and member.protocols == request.protocols:
            leads = group.is_leader(member.member_id)
            if group.state is GroupState.COMPLETING_REBALANCE or not leads:
                # The previous response may have been lost, so the response is sent again. However,
                # if the leader of a stable group rejoins, the group rebalances.
                reply.complete(self._rebalance.joined(group, member))
                return
        self._update(group, member, request, reply)
        self._rebalance.maybe_prepare_rebalance_or_complete_join(
            group, now_ms, f"member {member.member_id!r} rejoins"
        )

    def _add(
        self, group: ClassicGroup, member_id: str, request: JoinRequest, reply: Join, now_ms: int
    ) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            is_new=True,
        )
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is GroupState.EMPTY
        ):
            group.new_member_added = True
        group.remove_pending_member(member_id)
        group.add(member, reply)
        self._rebalance.reschedule_heartbeat(group, member, now_ms, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.maybe_prepare_rebalance_or_complete_join(
            group, now_ms, f"member {member_id!r} joins"
        )

    def _update(
        self, group: ClassicGroup, member: Member, request: JoinRequest, reply: Join
    ) -> None:
        group.update(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        # As in Kafka, a pending request that this request replaces never completes.
        group.await_join(member, reply)

    # Static members

    def _member_id(self, request: JoinRequest) -> str:
        name = request.client_id
        if request.group_instance_id is not None:
            name = request.group_instance_id
        return f"{name}-{self._new_id()}"

    def _replace(
        self, group: ClassicGroup, old: Member, request: JoinRequest, reply: Join, now_ms: int
    ) -> None:
        """Replace a static member that rejoins without its member id."""
        member = group.replace_static(old, self._member_id(request))
        self._rebalance.reschedule_heartbeat(group, member, now_ms)
        self._update(group, member, request, reply)
        reason = f"instance {request.group_instance_id!r} rejoins"
        if group.state is GroupState.STABLE:
            if group.select_protocol() == group.protocol_name:
                self._store_replaced(group, old, member, request, now_ms)
            else:
                self._rebalance.maybe_prepare_rebalance_or_complete_join(group, now_ms, reason)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may have assigned partitions to the old member id, which no longer exists.
            self._rebalance.prepare_rebalance(group, now_ms, reason)
        else:
            self._rebalance.maybe_complete_join_phase(group, now_ms)

    def _store_replaced(
        self, group: ClassicGroup, old: Member, member: Member, request: JoinRequest, now_ms: int
    ) -> None:
        """Keep the current generation. Complete the join when the new member id is replicated."""
        leads = group.is_leader(member.member_id)
        leader_before = old.member_id if leads else group.leader_id or ""

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            if (
                group.state is not GroupState.STABLE
                or group.members.get(member.member_id) is not member
            ):
                return  # A later rebalance completes the reply.
            result = replace(self._rebalance.joined(group, member), leader=leader_before)
            if outcome is not ErrorCode.none:
                group.complete_join(
                    member, replace(result, member_id="", error_code=outcome, members=())
                )
                reverted = group.replace_static(member, old.member_id)
                group.update(reverted, old.protocols)
                reverted.rebalance_timeout_ms = old.rebalance_timeout_ms
                reverted.session_timeout_ms = old.session_timeout_ms
                self._rebalance.reschedule_heartbeat(group, reverted, time_ms)
            elif request.can_skip_assignment:
                result = replace(result, leader=group.leader_id or "", skip_assignment=leads)
                group.complete_join(member, result)
            else:
                # The response contains the old member id as the leader, so that the client does
                # not compute assignments.
                group.complete_join(member, replace(result, members=()))

        self._write_group(group, now_ms, stored)

    def _write_group(
        self, group: ClassicGroup, now_ms: int, done: Callable[[ErrorCode, int], None]
    ) -> None:
        assignments = {m.member_id: m.assignment for m in group.members.values()}
        try:
            write = self._shard.write([group_record(group, assignments)], now_ms)
        except ApiError as error:
            logger.warning("Failed to write the metadata of group %r: %s", group.group_id, error)
            done(error.error_code, now_ms)
        else:
            write.when_done(done, now_ms)

    def _store_new(self, group: ClassicGroup, reply: Join, now_ms: int) -> None:
        """Write a group before its first generation, as Kafka does."""

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            del time_ms
            if outcome is not ErrorCode.none:
                _refuse(reply, "", outcome)

        empty = ClassicGroup(group.group_id, state_timestamp_ms=group.state_timestamp_ms)
        try:
            write = self._shard.write([group_record(empty, {})], now_ms)
        except ApiError as error:
            logger.warning("Failed to write the metadata of group %r: %s", group.group_id, error)
            _refuse(reply, "", error.error_code)
            self._shard.remove(group, now_ms)
        else:
            write.when_done(stored, now_ms)

    # Sync

    def sync(self, request: SyncRequest, now_ms: int) -> Sync:
        """Return the assignment of a member. The leader's request contains all assignments."""
        reply: Sync = Reply(self._wake)
        try:
            self._sync(request, reply, now_ms)
        except ApiError as error:
            reply.complete(SyncResult(error_code=error.error_code))
        return reply

    def _sync(self, request: SyncRequest, reply: Sync, now_ms: int) -> None:
        group, member = self._check_sync(request)
        if group.state is GroupState.COMPLETING_REBALANCE:
            member.sync = reply
            self._rebalance.synced(group, member.member_id)
            if group.is_leader(member.member_id):
                self._store_assignment(group, request, now_ms)
        else:
            self._rebalance.synced(group, member.member_id)
            result = SyncResult(
                protocol_type=group.protocol_type,
                protocol_name=group.protocol_name,
                assignment=member.assignment,
            )

            def replicated(outcome: ErrorCode, time_ms: int) -> None:
                del time_ms
                failed = SyncResult(error_code=outcome)
                reply.complete(result if outcome is ErrorCode.none else failed)

            self._shard.await_loaded_records(now_ms).when_done(replicated, now_ms)

    def _check_sync(self, request: SyncRequest) -> tuple[ClassicGroup, Member]:
        group = self._existing_group(request.group_id)
        member = group.check_member(request.member_id, request.group_instance_id)
        _check_generation(group, request.generation_id)
        for requested, current in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if requested is not None and current is not None and requested != current:
                raise ApiError(
                    ErrorCode.inconsistent_group_protocol,
                    f"Group {group.group_id!r} uses protocol {current!r}, not {requested!r}.",
                )
        if group.state is GroupState.PREPARING_REBALANCE:
            raise ApiError(
                ErrorCode.rebalance_in_progress,
                f"Group {group.group_id!r} is rebalancing. Rejoin the group.",
            )
        return group, member

    def _store_assignment(self, group: ClassicGroup, request: SyncRequest, now_ms: int) -> None:
        """Write the assignments. Members receive them after the write is replicated."""
        assignments = request.assignments
        generation_id = group.generation_id

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            if (
                group.state is not GroupState.COMPLETING_REBALANCE
                or group.generation_id != generation_id
            ):
                return  # A later rebalance has completed the replies.
            if outcome is ErrorCode.none:
                self._rebalance.assign(group, assignments, outcome, time_ms)
                group.transition_to(GroupState.STABLE, time_ms)
                return
            self._rebalance.assign(group, {}, outcome, time_ms)
            self._rebalance.maybe_prepare_rebalance_or_complete_join(
                group, time_ms, f"its assignments could not be written: {outcome.name}"
            )

        try:
            write = self._shard.write([group_record(group, assignments)], now_ms)
        except ApiError as error:
            logger.warning("Failed to write the assignments of group %r: %s", group.group_id, error)
            stored(error.error_code, now_ms)
        else:
            write.when_done(stored, now_ms)

    # Heartbeat, commit, leave

    def heartbeat(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,
    ) -> ErrorCode:
        """Renew the session of a member.

        Return REBALANCE_IN_PROGRESS if the member must rejoin. Raises: ApiError if the member is
        unknown or fenced, or if the generation is not the current one.
        """
        group = self._existing_group(group_id)
        member = group.check_member(member_id, group_instance_id)
        _check_generation(group, generation_id)
        self._rebalance.reschedule_heartbeat(group, member, now_ms)
        return HEARTBEAT_ANSWERS[group.state]

    def check_committer(
        self,
        group: ClassicGroup,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,
    ) -> None:
        """Reject commits that are not from the current generation, and renew the member's session.

        Clients that are not members can commit while the group is Empty.
        """
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return
        if generation_id < 0 and not member_id and group_instance_id is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Group {group.group_id!r} is not empty, so only its members can commit offsets. "
                "Stop the members or use another group id.",
            )
        member = group.check_member(member_id, group_instance_id)
        _check_generation(group, generation_id)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise ApiError(
                ErrorCode.rebalance_in_progress,
                f"Group {group.group_id!r} is rebalancing. Send SyncGroup before OffsetCommit.",
            )
        if group.state in STATES_KEPT_ALIVE_BY_COMMITS:
            self._rebalance.reschedule_heartbeat(group, member, now_ms)

    def check_transactional_committer(
        self,
        group: ClassicGroup,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
    ) -> None:
        """Reject members that are not in the current generation (KIP-447).

        Producers that do not send a member id (for example, producers that are older than KIP-447)
        can commit in any group state.
        """
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return
        if generation_id >= 0 or member_id or group_instance_id is not None:
            group.check_member(member_id, group_instance_id)
            _check_generation(group, generation_id)

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], now_ms: int
    ) -> tuple[LeaveResult, PendingWrite]:
        """Remove members.

        Return the results and the write that must be replicated before the reply is sent.
        """
        try:
            group = self._existing_group(group_id)
        except ApiError as error:
            return LeaveResult(members=(error.error_code,) * len(members)), NOTHING_WRITTEN
        codes = tuple(self._leave(group, identity) for identity in members)
        write = NOTHING_WRITTEN
        if ErrorCode.none in codes:
            if group.state in STATES_OF_A_GENERATION:
                count = codes.count(ErrorCode.none)
                write = self._rebalance.maybe_prepare_rebalance_or_complete_join(
                    group, now_ms, f"members left ({count})"
                )
            elif group.state is GroupState.PREPARING_REBALANCE:
                write = self._rebalance.maybe_complete_join_phase(group, now_ms)
        return LeaveResult(members=codes), write

    def _leave(self, group: ClassicGroup, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if not member_id:
            instance_id = identity.group_instance_id
            member_id = "" if instance_id is None else group.static_members.get(instance_id, "")
            if not member_id:
                return ErrorCode.unknown_member_id
        elif member_id in group.pending_members:
            group.remove_pending_member(member_id)
            return ErrorCode.none
        else:
            try:
                group.check_member(member_id, identity.group_instance_id)
            except ApiError as error:
                return error.error_code
        group.remove(member_id)
        return ErrorCode.none

    def _existing_group(self, group_id: str) -> ClassicGroup:
        group = self._shard.classic_group(group_id)
        if group is None:
            raise ApiError(
                ErrorCode.unknown_member_id,
                f"Group {group_id!r} does not exist. Rejoin without a member id.",
            )
        return group


_WITHOUT_MEMBER_ID = frozenset({ErrorCode.group_max_size_reached})
"""Error codes for which the response contains no member id."""


def _refuse(reply: Join, member_id: str, error_code: ErrorCode) -> None:
    reply.complete(JoinResult(member_id=member_id, error_code=error_code))


def _check_generation(group: ClassicGroup, generation_id: int) -> None:
    if generation_id != group.generation_id:
        raise ApiError(
            ErrorCode.illegal_generation,
            f"Group {group.group_id!r} is in generation {group.generation_id}, not "
            f"{generation_id}. Rejoin the group.",
        )
