"""The group coordinator of a broker: what requests about groups go to.

Purpose: find the shard of a group, refuse where this broker does not coordinate it or does not know
it yet, and let the shard's parts do the rest; take partitions of `__consumer_offsets` over and give
them up as leadership moves. Invariant: a group's partition is Java's hash of its name modulo the
partition count; a shard exists as long as this broker leads its partition. What it must not know:
requests' bytes and versions, and who waits for a reply.
Source: Kafka's `GroupCoordinatorService`, `GroupCoordinatorShard`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import OFFSETS_TOPIC, ClusterMetadata
from broker_ref.coordination.partitioning import partition_of
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.coordination.writes import Write
from broker_ref.group.group import Group
from broker_ref.group.loading import Loading
from broker_ref.group.members import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from broker_ref.group.membership import Membership
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import STRING_BYTES_MAX, OffsetCommitKey, OffsetCommitValue
from broker_ref.group.retention import expired
from broker_ref.group.shard import (
    Change,
    Shard,
    ShardState,
    offset_tombstones,
)
from broker_ref.group.states import STATES_OF_A_GENERATION, GroupState
from broker_ref.group.stored_group import group_tombstone
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid, random_uuid
from broker_ref.replication.partition import NO_EPOCH, Partition, PartitionKey
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule

logger = logging.getLogger(__name__)

CLASSIC: Final = "classic"
"""The type of every group here, as ListGroups names it."""

Result = TypeVar("Result")

_MINUTE_MS: Final = 60_000
_MEMBER_ID_BYTES_MAX: Final = 40
"""What follows the client id or instance id in a member id: a dash and a UUID."""

_MEMBERS_STATES: Final = STATES_OF_A_GENERATION | {GroupState.PREPARING_REBALANCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Who commits: a member of a generation, or nobody in particular (generation -1)."""

    member_id: str = ""
    group_instance_id: str | None = None
    generation_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member as administrators are told of it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group as administrators are told of it."""

    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Led:
    """A shard and its membership."""

    shard: Shard
    membership: Membership


class GroupCoordinator:
    """The groups whose partition of the offsets topic this broker leads."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        schedule: Schedule,
        random_bytes: Callable[[int], bytes],
        now_ms: int,
        wake: Wake | None = None,
    ) -> None:
        """Take over what this broker leads; `wake` has those asked again who wait for a key."""
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._schedule = schedule
        self._random_bytes = random_bytes
        self._wake = wake if wake is not None else replicas.mark_changed
        self._led: dict[int, _Led] = {}
        self._topics: dict[Uuid, str] = {}
        schedule.every(config.offsets_retention_check_interval_ms, self.run_retention)
        self.follow_metadata(now_ms)

    # Leadership

    def follow_metadata(self, now_ms: int) -> None:
        """Lead what the metadata says, and forget offsets of topics that are gone."""
        count = self._partition_count()
        for index in (*self._led, *(i for i in range(count) if i not in self._led)):
            self._follow_partition(index, now_ms)
        gone = {
            topic_id: name
            for topic_id, name in self._topics.items()
            if topic_id not in self._metadata.topics_by_id
        }
        self._topics = {
            topic_id: topic.name for topic_id, topic in self._metadata.topics_by_id.items()
        }
        for name in dict.fromkeys(gone.values()):
            self.forget_topic(name, now_ms)

    def became_leader(self, partition: Partition, now_ms: int) -> None:
        """Take the groups of a partition of the offsets topic over, unless that is done."""
        index = partition.key.partition
        if partition.key.topic != OFFSETS_TOPIC or index in self._led:
            return
        shard = Shard(
            partition,
            schedule=self._schedule,
            write_timeout_ms=self._config.offsets_commit_timeout_ms,
            mark_changed=lambda: self._wake(partition.key),
        )
        membership = Membership(
            shard,
            config=self._config,
            schedule=self._schedule,
            wake=self._wake,
            new_id=lambda: str(random_uuid(self._random_bytes)),
        )
        led = self._led[index] = _Led(shard=shard, membership=membership)
        self._load(led, Loading(shard, metadata=self._metadata), now_ms)

    def resigned(self, partition: Partition, now_ms: int) -> None:
        """Give the groups of a partition up: whoever waits finds the new coordinator."""
        if partition.key.topic != OFFSETS_TOPIC:
            return
        led = self._led.pop(partition.key.partition, None)
        if led is None:
            return
        shard = led.shard
        for group in tuple(shard.groups.values()):
            for member in group.members.values():
                error = ErrorCode.not_coordinator
                group.complete_join(
                    member, JoinResult(member_id=member.member_id, error_code=error)
                )
                member.complete_sync(SyncResult(error_code=error))
            shard.remove(group, now_ms)
        shard.state = ShardState.FAILED
        shard.writes.abandon(now_ms)

    def partitions_changed(self, keys: Iterable[Hashable], now_ms: int) -> None:
        """Finish the writes that the replicas of these partitions have now."""
        for key in keys:
            if isinstance(key, PartitionKey) and key.topic == OFFSETS_TOPIC:
                led = self._led.get(key.partition)
                if led is not None:
                    led.shard.writes.replicated(now_ms)

    def _follow_partition(self, index: int, now_ms: int) -> None:
        led = self._led.get(index)
        try:
            partition = self._replicas.partition(OFFSETS_TOPIC, index)
            partition.check_leader(NO_EPOCH)
        except ApiError:
            if led is not None:
                self.resigned(led.shard.partition, now_ms)
            return
        if led is not None and led.shard.partition is not partition:
            self.resigned(led.shard.partition, now_ms)
        self.became_leader(partition, now_ms)

    def _load(self, led: _Led, loading: Loading, now_ms: int) -> None:
        if self._led.get(led.shard.partition.key.partition) is not led:
            return
        if not loading.step(now_ms):
            self._schedule.at(now_ms, lambda time_ms: self._load(led, loading, time_ms))
            return
        for group in tuple(led.shard.groups.values()):
            led.membership.loaded(group, now_ms)

    # Which coordinator

    def coordinator(self, group_id: str) -> int | None:
        """The broker that coordinates a group; None where the offsets topic is not there yet."""
        found = self._metadata.partition(OFFSETS_TOPIC, self.partition_for(group_id))
        return found.leader if found is not None else None

    def partition_for(self, group_id: str) -> int:
        """The partition of the offsets topic that a group's offsets go to."""
        return partition_of(group_id, self._partition_count())

    def check_coordinator(self, group_id: str) -> Partition:
        """The group's partition of the offsets topic.

        NOT_COORDINATOR where it is not led here, COORDINATOR_LOAD_IN_PROGRESS while it is read,
        INVALID_GROUP_ID where no record can hold the name.
        """
        return self._shard(group_id).shard.partition

    def _shard(self, group_id: str) -> _Led:
        if len(group_id.encode()) > STRING_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_group_id,
                f"A group id may have {STRING_BYTES_MAX} bytes, not {len(group_id.encode())}.",
            )
        led = self._led.get(self.partition_for(group_id))
        if led is None or led.shard.state is ShardState.FAILED:
            raise ApiError(
                ErrorCode.not_coordinator, f"This broker does not coordinate group {group_id!r}."
            )
        if led.shard.state is ShardState.LOADING:
            raise ApiError(
                ErrorCode.coordinator_load_in_progress,
                f"This broker still reads what it is to know of group {group_id!r}.",
            )
        return led

    def _named_shard(self, group_id: str) -> _Led:
        """As `_shard`, for requests that need a group with a name."""
        if not group_id:
            raise ApiError(ErrorCode.invalid_group_id, "The group id must not be empty.")
        return self._shard(group_id)

    def _partition_count(self) -> int:
        topic = self._metadata.topics.get(OFFSETS_TOPIC)
        if topic is None:
            return self._config.offsets_topic_num_partitions
        return len(topic.partitions)

    # Members

    def join(self, request: JoinRequest, now_ms: int) -> Reply[JoinResult]:
        """JoinGroup; the reply comes when the next generation begins."""
        try:
            led = self._named_shard(request.group_id)
            self._check_join(request)
        except ApiError as error:
            refused = JoinResult(member_id=request.member_id, error_code=error.error_code)
            return self._done(refused)
        return led.membership.join(request, now_ms)

    def sync(self, request: SyncRequest, now_ms: int) -> Reply[SyncResult]:
        """SyncGroup; the reply comes when the leader's assignment is replicated."""
        try:
            led = self._named_shard(request.group_id)
        except ApiError as error:
            return self._done(SyncResult(error_code=error.error_code))
        return led.membership.sync(request, now_ms)

    def heartbeat(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,
    ) -> ErrorCode:
        """Heartbeat; members are let be while their group is still read."""
        try:
            return self._named_shard(group_id).membership.heartbeat(
                group_id,
                member_id=member_id,
                group_instance_id=group_instance_id,
                generation_id=generation_id,
                now_ms=now_ms,
            )
        except ApiError as error:
            loading = error.error_code is ErrorCode.coordinator_load_in_progress
            return ErrorCode.none if loading else error.error_code

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], now_ms: int
    ) -> Reply[LeaveResult]:
        """LeaveGroup; one error code a member."""
        try:
            led = self._named_shard(group_id)
        except ApiError as error:
            return self._done(LeaveResult(error_code=error.error_code))
        result, write = led.membership.leave(group_id, members, now_ms)
        reply: Reply[LeaveResult] = Reply(self._wake)

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            del time_ms
            failed = outcome is not ErrorCode.none
            reply.complete(LeaveResult(error_code=outcome) if failed else result)

        write.when_done(stored, now_ms)
        return reply

    def _check_join(self, request: JoinRequest) -> None:
        lowest = self._config.group_min_session_timeout_ms
        highest = self._config.group_max_session_timeout_ms
        if not lowest <= request.session_timeout_ms <= highest:
            raise ApiError(
                ErrorCode.invalid_session_timeout,
                f"A session timeout of {request.session_timeout_ms} ms is not from "
                f"group.min.session.timeout.ms={lowest} to "
                f"group.max.session.timeout.ms={highest}.",
            )
        names = [request.client_id, request.group_instance_id or "", request.protocol_type]
        names += [protocol.name for protocol in request.protocols]
        longest = max(len(name.encode()) for name in names)
        if longest + _MEMBER_ID_BYTES_MAX > STRING_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_request,
                f"A name of {longest} bytes does not fit into a record of {OFFSETS_TOPIC}.",
            )

    # Offsets

    def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, OffsetCommitValue],
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Keep offsets, all or none, where the committer may.

        The reply comes when they are replicated. GROUP_ID_NOT_FOUND tells a member that there is
        no such group.
        """
        try:
            led = self._shard(group_id)
            group = led.shard.groups.get(group_id)
            if group is not None:
                led.membership.check_committer(
                    group,
                    member_id=committer.member_id,
                    group_instance_id=committer.group_instance_id,
                    generation_id=committer.generation_id,
                    now_ms=now_ms,
                )
            elif committer.generation_id >= 0:
                return self._done(ErrorCode.group_id_not_found)
            changes: list[Change] = [
                (OffsetCommitKey(group=group_id, topic=one.topic, partition=one.partition), value)
                for one, value in offsets.items()
            ]
            write = led.shard.write(changes, now_ms)
        except ApiError as error:
            return self._done(error.error_code)
        if changes and group_id not in led.shard.groups:
            led.shard.groups[group_id] = Group(group_id, state_timestamp_ms=now_ms)
        return self._outcome(write, now_ms)

    def committed(self, group_id: str, topic_partition: TopicPartition) -> OffsetCommitValue | None:
        """A group's offset of one partition, as far as it is replicated."""
        shard = self._shard(group_id).shard
        return shard.offsets.committed(group_id, topic_partition, shard.high_watermark)

    def all_committed(self, group_id: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """A group's offsets, as far as they are replicated."""
        shard = self._shard(group_id).shard
        return shard.offsets.all_committed(group_id, shard.high_watermark)

    def is_stable(self, group_id: str) -> bool:
        """Whether all that was committed of a group is replicated."""
        shard = self._shard(group_id).shard
        return shard.offsets.stable_from(group_id) <= shard.high_watermark

    def delete_offsets(
        self, group_id: str, offsets: Iterable[TopicPartition], now_ms: int
    ) -> tuple[Mapping[TopicPartition, ErrorCode], Reply[ErrorCode]]:
        """Forget offsets of topics that no member subscribes to; the codes by partition.

        GROUP_ID_NOT_FOUND where there is no such group, NON_EMPTY_GROUP where it has members of
        which it is not known what they subscribe to.
        """
        shard = self._named_shard(group_id).shard
        group = shard.groups.get(group_id)
        if group is None:
            raise _group_id_not_found(group_id)
        if group.state in _MEMBERS_STATES and not group.uses_consumer_protocol:
            raise _non_empty(group)
        codes: dict[TopicPartition, ErrorCode] = {}
        for one in offsets:
            subscribed = group.is_subscribed_to(one.topic)
            codes[one] = ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none
        latest = shard.offsets.latest(group_id)
        gone = [one for one, code in codes.items() if code is ErrorCode.none and one in latest]
        write = shard.delete(offset_tombstones(group_id, gone), now_ms)
        return codes, self._outcome(write, now_ms)

    def forget_topic(self, topic: str, now_ms: int) -> None:
        """Delete every group's offsets of a topic that has been deleted.

        They are gone whether or not the log takes that in: when it is read again, offsets of a
        topic that is no more are dropped.
        """
        for led in self._led.values():
            shard = led.shard
            for group_id in shard.offsets.groups():
                latest = shard.offsets.latest(group_id)
                gone = [one for one in latest if one.topic == topic]
                try:
                    shard.delete(offset_tombstones(group_id, gone), now_ms)
                except ApiError as error:
                    logger.warning(
                        "the log keeps offsets of group %.100r for the deleted topic %r: %s",
                        group_id, topic, error,
                    )  # fmt: skip
                    for one in gone:
                        shard.offsets.put(group_id, one, None, required_offset=0)
                        shard.offsets.settle(group_id, one, shard.high_watermark)

    def run_retention(self, now_ms: int) -> None:
        """Forget offsets and groups that have not been used for long enough."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        for led in self._led.values():
            if led.shard.state is not ShardState.ACTIVE:
                continue
            for group, changes in expired(led.shard, retention_ms=retention_ms, now_ms=now_ms):
                try:
                    self._delete(led.shard, group, changes, now_ms)
                except ApiError as error:
                    logger.warning("Group %r does not expire: %s", group.group_id, error)

    # Administration

    def describe(self, group_id: str) -> DescribedGroup:
        """A group and its members; GROUP_ID_NOT_FOUND where there is none."""
        group = self._shard(group_id).shard.groups.get(group_id)
        if group is None:
            raise _group_id_not_found(group_id)
        protocol = group.protocol_name if group.state is GroupState.STABLE else None
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(protocol) if protocol is not None else b"",
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ),
        )

    def groups(self) -> list[Group]:
        """Every group coordinated here; COORDINATOR_LOAD_IN_PROGRESS where some are not known."""
        found: list[Group] = []
        for led in self._led.values():
            if led.shard.state is ShardState.LOADING:
                raise ApiError(
                    ErrorCode.coordinator_load_in_progress,
                    f"This broker still reads partition {led.shard.partition.key.partition} of "
                    f"{OFFSETS_TOPIC}.",
                )
            found += led.shard.groups.values()
        return found

    def delete(self, group_id: str, now_ms: int) -> Reply[ErrorCode]:
        """Forget a group without members, and its offsets."""
        try:
            shard = self._shard(group_id).shard
            group = shard.groups.get(group_id)
            if group is None:
                raise _group_id_not_found(group_id)
            if group.state is not GroupState.EMPTY:
                raise _non_empty(group)
            changes = offset_tombstones(group_id, shard.offsets.latest(group_id))
            changes.append(group_tombstone(group_id))
            write = self._delete(shard, group, changes, now_ms)
        except ApiError as error:
            return self._done(error.error_code)
        return self._outcome(write, now_ms)

    def _delete(self, shard: Shard, group: Group, changes: Sequence[Change], now_ms: int) -> Write:
        write = shard.delete(changes, now_ms)
        if changes and changes[-1] == group_tombstone(group.group_id):
            shard.remove(group, now_ms)
        return write

    # Replies

    def _done(self, result: Result) -> Reply[Result]:
        reply: Reply[Result] = Reply(self._wake)
        reply.result = result
        return reply

    def _outcome(self, write: Write, now_ms: int) -> Reply[ErrorCode]:
        reply: Reply[ErrorCode] = Reply(self._wake)
        write.when_done(lambda outcome, _: reply.complete(outcome), now_ms)
        return reply


def _group_id_not_found(group_id: str) -> ApiError:
    return ApiError(ErrorCode.group_id_not_found, f"Group {group_id} not found.")


def _non_empty(group: Group) -> ApiError:
    return ApiError(
        ErrorCode.non_empty_group,
        f"Group {group.group_id!r} has {len(group.members)} members: stop them first.",
    )
