"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup for members of consumer groups.

    JoinGroup   updates the member; the epoch of the member is its generation
    SyncGroup   returns the partitions that the member may own
    Heartbeat   returns REBALANCE_IN_PROGRESS if the member must rejoin: there is a new target
                assignment, the member must confirm a revocation, or partitions have become free

Members that use the classic protocol can share a group with members that use the consumer protocol.
Such a group has no leader: the coordinator calculates the assignments. Invariants: see
`ConsumerMembership`. Source: KIP-848; `classicGroupJoinToConsumerGroup` and the methods for the
other requests in Kafka's `GroupMetadataManager`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.coordination.partition_writer import NOTHING_WRITTEN, PendingWrite
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.frozen import dataclass
from broker_ref.group.consumer.assignment import Assignment, without_epochs
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer.manager import subscribe_dynamic
from broker_ref.group.consumer.member import ClassicMetadata, ConsumerGroupMember, MemberState
from broker_ref.group.consumer.member_checks import checked_static_member
from broker_ref.group.consumer.records import ConsumerGroupChange
from broker_ref.group.consumer_membership import ConsumerMembership
from broker_ref.group.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    read_subscription,
)
from broker_ref.group.members import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from broker_ref.group.migration import embedded_assignment, is_downgraded_by_replacing
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.reader import MalformedRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joining:
    """A joining member, with its id and its subscription."""

    request: JoinRequest
    member_id: str
    subscription: Subscription


class ClassicProtocolMembership:
    """The members that use the classic protocol in consumer groups.

    `new_id` returns a member id.
    """

    def __init__(
        self,
        consumers: ConsumerMembership,
        *,
        metadata: ClusterMetadata,
        wake: Wake,
        new_id: Callable[[], str],
    ) -> None:
        self._consumers = consumers
        self._metadata = metadata
        self._wake = wake
        self._new_id = new_id

    # Join

    def join(self, request: JoinRequest, now_ms: int) -> Reply[JoinResult]:
        """Add or update a member. The reply completes when the member's records are replicated."""
        reply: Reply[JoinResult] = Reply(self._wake)
        try:
            result, write = self._join(request, now_ms)
        except ApiError as error:
            reply.complete(JoinResult(member_id="", error_code=error.error_code))
            return reply

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            del time_ms
            failed = JoinResult(member_id="", error_code=outcome)
            reply.complete(result if outcome is ErrorCode.none else failed)

        write.when_done(stored, now_ms)
        return reply

    def _join(self, request: JoinRequest, now_ms: int) -> tuple[JoinResult, PendingWrite]:
        consumers = self._consumers
        group = consumers.consumer_group(request.group_id)
        member_id = request.member_id or self._new_id()
        consumers.manager.check_is_not_full(group, member_id)
        _check_protocols(group, request)
        is_dynamic = request.group_instance_id is None
        if is_dynamic and not request.member_id and request.requires_known_member_id:
            required = JoinResult(member_id=member_id, error_code=ErrorCode.member_id_required)
            return required, NOTHING_WRITTEN
        joining = _Joining(
            request=request, member_id=member_id, subscription=_subscription_of(request)
        )
        changes: list[ConsumerGroupChange] = []
        before = self._subscribe(group, joining, changes)
        replaced = group.static_member(request.group_instance_id)
        is_downgraded = replaced is not None and is_downgraded_by_replacing(
            group, replaced, consumers.manager.config
        )
        update = consumers.manager.update_member(
            group,
            before,
            _updated(before, joining),
            changes,
            owned=self._owned(joining.subscription),
            now_ms=now_ms,
            keeps_target=is_downgraded,
        )
        if is_downgraded:
            write = consumers.downgrade(
                group,
                now_ms,
                changes=update.changes,
                joining=update.member,
                rebalances=group.assignment_epoch < update.group_epoch,
            )
        else:
            write = consumers.write(update.changes, now_ms)
            consumers.joined_with_classic_protocol(group.group_id, update.member, now_ms)
        result = JoinResult(
            member_id=member_id,
            generation_id=update.member.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        )
        return result, write

    def _subscribe(
        self, group: ConsumerGroup, joining: _Joining, changes: list[ConsumerGroupChange]
    ) -> ConsumerGroupMember:
        request = joining.request
        if request.group_instance_id is None:
            return subscribe_dynamic(group, joining.member_id, is_join=True)
        return self._consumers.manager.subscribe_static(
            group,
            joining.member_id,
            request.group_instance_id,
            changes,
            is_join=not request.member_id,
            uses_classic_protocol=True,
        )

    def _owned(self, subscription: Subscription) -> Assignment:
        topics = self._metadata.topics
        return {
            topics[name].topic_id: partitions
            for name, partitions in subscription.owned.items()
            if name in topics
        }

    # Sync

    def sync(self, request: SyncRequest, now_ms: int) -> Reply[SyncResult]:
        """Return a member's assignment. The reply completes when the assignment is replicated."""
        reply: Reply[SyncResult] = Reply(self._wake)
        try:
            result = self._sync(request, now_ms)
        except ApiError as error:
            reply.complete(SyncResult(error_code=error.error_code))
            return reply

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            del time_ms
            reply.complete(result if outcome is ErrorCode.none else SyncResult(error_code=outcome))

        self._consumers.last_write(now_ms).when_done(stored, now_ms)
        return reply

    def _sync(self, request: SyncRequest, now_ms: int) -> SyncResult:
        group = self._consumers.consumer_group(request.group_id)
        member = _checked_member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        assert member.classic is not None
        protocol = member.classic.protocols[0]
        for requested, current in (
            (request.protocol_type, CONSUMER_PROTOCOL_TYPE),
            (request.protocol_name, protocol.name),
        ):
            if requested is not None and requested != current:
                raise ApiError(
                    ErrorCode.inconsistent_group_protocol,
                    f"Member {member.member_id} of group {group.group_id} uses protocol "
                    f"{current!r}, not {requested!r}.",
                )
        has_new_target = group.assignment_epoch > member.member_epoch
        if has_new_target and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._consumers.wait_for_join(group.group_id, member, now_ms)
            raise ApiError(
                ErrorCode.rebalance_in_progress,
                f"Group {group.group_id} has a new target assignment. Rejoin the group.",
            )
        try:
            assignment = embedded_assignment(
                without_epochs(member.assigned), protocol.metadata, self._metadata
            )
        except MalformedRequestError as error:
            raise _invalid_subscription(group.group_id, error) from error
        self._consumers.synced(group.group_id, member, now_ms)
        return SyncResult(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment,
        )

    # Heartbeat and leave

    def heartbeat(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,
    ) -> ErrorCode:
        """Renew a member's session. Return REBALANCE_IN_PROGRESS if the member must rejoin.

        Raises: ApiError (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION).
        """
        group = self._consumers.consumer_group(group_id)
        member = _checked_member(group, member_id, group_instance_id, generation_id)
        self._consumers.start_session(group_id, member, now_ms)
        must_rejoin = (
            member.member_epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (
                member.state is MemberState.UNRELEASED_PARTITIONS
                and not group.waits_for_partitions(member)
            )
        )
        if not must_rejoin:
            return ErrorCode.none
        self._consumers.wait_for_join(group_id, member, now_ms)
        return ErrorCode.rebalance_in_progress

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], now_ms: int
    ) -> tuple[LeaveResult, PendingWrite]:
        """Remove members that use either protocol.

        Return the results and the write that must be replicated before the reply is sent. Raises:
        ApiError if the records cannot be written.
        """
        group = self._consumers.consumer_group(group_id)
        codes: list[ErrorCode] = []
        leaving: dict[str, ConsumerGroupMember] = {}
        for identity in members:
            try:
                member = _leaving_member(group, identity)
            except ApiError as error:
                codes.append(error.error_code)
            else:
                codes.append(ErrorCode.none)
                leaving[member.member_id] = member
        write = self._consumers.last_write(now_ms)
        if leaving:
            write = self._consumers.fence(group, list(leaving.values()), now_ms)
        return LeaveResult(members=tuple(codes)), write


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not group.supports_classic_protocols(
        names
    ):
        raise ApiError(
            ErrorCode.inconsistent_group_protocol,
            f"The requested protocols {names} of type {request.protocol_type!r} are incompatible "
            f"with the members of group {group.group_id} that use the classic protocol.",
        )


def _subscription_of(request: JoinRequest) -> Subscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except MalformedRequestError as error:
        raise _invalid_subscription(request.group_id, error) from error


def _invalid_subscription(group_id: str, error: MalformedRequestError) -> ApiError:
    return ApiError(
        ErrorCode.unknown_server_error,
        f"The subscription of a member of group {group_id} is invalid: {error}.",
    )


def _updated(member: ConsumerGroupMember, joining: _Joining) -> ConsumerGroupMember:
    """Return the member with the fields of its JoinGroup request."""
    request, subscription = joining.request, joining.subscription
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",
        classic=ClassicMetadata(
            session_timeout_ms=request.session_timeout_ms, protocols=request.protocols
        ),
    )


def _checked_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int
) -> ConsumerGroupMember:
    """Return the member that sent a request.

    Raises: ApiError (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION).
    """
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = checked_static_member(group.static_member(instance_id), member_id, instance_id)
    if not member.uses_classic_protocol:
        raise ApiError(
            ErrorCode.unknown_member_id,
            f"Member {member_id} of group {group.group_id} does not use the classic protocol.",
        )
    if generation_id != member.member_epoch:
        raise ApiError(
            ErrorCode.illegal_generation,
            f"Member {member_id} of group {group.group_id} is in generation "
            f"{member.member_epoch}, not {generation_id}. Rejoin the group.",
        )
    return member


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerGroupMember:
    instance_id = identity.group_instance_id
    if instance_id is None:
        return group.member(identity.member_id)
    member = group.static_member(instance_id)
    current_id = identity.member_id or ("" if member is None else member.member_id)
    return checked_static_member(member, current_id, instance_id)
