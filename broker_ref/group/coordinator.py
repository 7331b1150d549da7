"""The group coordinator of a broker.

Purpose: find the shard of a group, refuse requests where this broker is not the coordinator or is
still loading, and delegate the rest; load and unload partitions of `__consumer_offsets` as
leadership changes. Invariant: the partition of a group is its id's Java hash modulo the partition
count; a shard exists while this broker leads its partition. Must not know: bytes and versions of
requests, who waits for a reply.
Source: Kafka's `GroupCoordinatorService`, `GroupCoordinatorShard`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import OFFSETS_TOPIC, ClusterMetadata
from broker_ref.coordination.partition_writer import PendingWrite
from broker_ref.coordination.partitioning import partition_of
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.group.classic_group import ClassicGroup
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
from broker_ref.group.offset_metadata_manager import (
    Committer,
    OffsetMetadataManager,
    Offsets,
    group_id_not_found,
)
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.records import STRING_BYTES_MAX, OffsetCommitValue
from broker_ref.group.shard import Shard, ShardState, TransactionalProducer
from broker_ref.group.states import GroupState
from broker_ref.log.control import EndTransactionMarker
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid, random_uuid
from broker_ref.replication.partition import NO_EPOCH, Partition, PartitionKey
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule

CLASSIC: Final = "classic"
"""The type of every group here in ListGroups."""

Result = TypeVar("Result")

_MINUTE_MS: Final = 60_000
_MEMBER_ID_BYTES_MAX: Final = 40
"""The suffix that follows the client id or instance id in a member id: a dash and a UUID."""

_MARKER_OUTCOMES: Final = MappingProxyType(
    {
        ErrorCode.not_coordinator: ErrorCode.not_leader_or_follower,
        ErrorCode.coordinator_not_available: ErrorCode.request_timed_out,
    }
)
"""The error codes for a transaction coordinator by the error codes of a marker's append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member in DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group in DescribeGroups."""

    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(slots=True, kw_only=True)
class _LedShard:
    """A shard with its members and committed offsets."""

    shard: Shard
    membership: Membership
    commits: OffsetMetadataManager


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
        """Load the partitions that this broker leads; `wake` checks the operations of a key."""
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._schedule = schedule
        self._random_bytes = random_bytes
        self._wake = wake if wake is not None else replicas.mark_changed
        self._led: dict[int, _LedShard] = {}
        self._topics: dict[Uuid, str] = {}
        schedule.every(config.offsets_retention_check_interval_ms, self.run_retention)
        self.on_metadata_update(now_ms)

    # Leadership

    def on_metadata_update(self, now_ms: int) -> None:
        """Load and unload partitions by the metadata; delete offsets of deleted topics."""
        count = self._partition_count()
        for index in (*self._led, *(i for i in range(count) if i not in self._led)):
            self._update_leadership(index, now_ms)
        gone = {
            topic_id: name
            for topic_id, name in self._topics.items()
            if topic_id not in self._metadata.topics_by_id
        }
        self._topics = {
            topic_id: topic.name for topic_id, topic in self._metadata.topics_by_id.items()
        }
        for name in dict.fromkeys(gone.values()):
            self.delete_topic_offsets(name, now_ms)

    def on_election(self, partition: Partition, now_ms: int) -> None:
        """Load the groups of a partition of the offsets topic, unless they are loaded."""
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
        commits = OffsetMetadataManager(shard, membership)
        led = self._led[index] = _LedShard(shard=shard, membership=membership, commits=commits)
        self._load(led, Loading(shard, metadata=self._metadata), now_ms)

    def on_resignation(self, partition: Partition, now_ms: int) -> None:
        """Unload the groups of a partition; waiting requests fail with NOT_COORDINATOR."""
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
        """Complete the writes that are replicated in these partitions."""
        for key in keys:
            if isinstance(key, PartitionKey) and key.topic == OFFSETS_TOPIC:
                led = self._led.get(key.partition)
                if led is not None:
                    led.shard.writes.replicated(now_ms)

    def _update_leadership(self, index: int, now_ms: int) -> None:
        led = self._led.get(index)
        try:
            partition = self._replicas.partition(OFFSETS_TOPIC, index)
            partition.check_leader(NO_EPOCH)
        except ApiError:
            if led is not None:
                self.on_resignation(led.shard.partition, now_ms)
            return
        if led is not None and led.shard.partition is not partition:
            self.on_resignation(led.shard.partition, now_ms)
        self.on_election(partition, now_ms)

    def _load(self, led: _LedShard, loading: Loading, now_ms: int) -> None:
        if self._led.get(led.shard.partition.key.partition) is not led:
            return
        if not loading.step(now_ms):
            self._schedule.at(now_ms, lambda time_ms: self._load(led, loading, time_ms))
            return
        for group in tuple(led.shard.groups.values()):
            led.membership.loaded(group, now_ms)

    # Finding the coordinator

    def coordinator(self, group_id: str) -> int | None:
        """Return the coordinator of a group; None while the offsets topic does not exist."""
        found = self._metadata.partition(OFFSETS_TOPIC, self.partition_for(group_id))
        return found.leader if found is not None else None

    def partition_for(self, group_id: str) -> int:
        """Return the partition of the offsets topic that stores a group."""
        return partition_of(group_id, self._partition_count())

    def check_coordinator(self, group_id: str) -> Partition:
        """Return the group's partition of the offsets topic.

        Raise NOT_COORDINATOR where this broker does not lead it, COORDINATOR_LOAD_IN_PROGRESS while
        it is loaded, and INVALID_GROUP_ID for an id that is too long for a record.
        """
        return self._shard(group_id).shard.partition

    def _shard(self, group_id: str) -> _LedShard:
        if len(group_id.encode()) > STRING_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_group_id,
                f"A group id must have at most {STRING_BYTES_MAX} bytes, not "
                f"{len(group_id.encode())}.",
            )
        led = self._led.get(self.partition_for(group_id))
        if led is None or led.shard.state is ShardState.FAILED:
            raise ApiError(
                ErrorCode.not_coordinator,
                f"This broker is not the coordinator of group {group_id!r}.",
            )
        if led.shard.state is ShardState.LOADING:
            raise ApiError(
                ErrorCode.coordinator_load_in_progress,
                f"This broker is still loading the partition of group {group_id!r}.",
            )
        return led

    def _named_shard(self, group_id: str) -> _LedShard:
        """Return the shard as `_shard`, for requests that need a group id that is not empty."""
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
        """Handle JoinGroup; the reply completes when the next generation begins."""
        try:
            led = self._named_shard(request.group_id)
            self._check_join(request)
        except ApiError as error:
            refused = JoinResult(member_id=request.member_id, error_code=error.error_code)
            return self._done(refused)
        return led.membership.join(request, now_ms)

    def sync(self, request: SyncRequest, now_ms: int) -> Reply[SyncResult]:
        """Handle SyncGroup; the reply completes when the leader's assignment is replicated."""
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
        """Handle Heartbeat; it succeeds for any member while the group is loaded."""
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
        """Handle LeaveGroup; the result has one error code per member."""
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
                f"The session timeout of {request.session_timeout_ms} ms is not from "
                f"group.min.session.timeout.ms={lowest} to "
                f"group.max.session.timeout.ms={highest}.",
            )
        names = [request.client_id, request.group_instance_id or "", request.protocol_type]
        names += [protocol.name for protocol in request.protocols]
        longest = max(len(name.encode()) for name in names)
        if longest + _MEMBER_ID_BYTES_MAX > STRING_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_request,
                f"A name of {longest} bytes is too long for a record of {OFFSETS_TOPIC}.",
            )

    # Offsets

    def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Commit offsets, all or none.

        The reply completes when they are replicated. GROUP_ID_NOT_FOUND for a member of an unknown
        group.
        """
        try:
            write = self._shard(group_id).commits.commit(group_id, committer, offsets, now_ms)
        except ApiError as error:
            return self._done(error.error_code)
        return self._outcome(write, now_ms)

    def commit_transactional(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        transaction: TransactionalProducer,
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Commit offsets, all or none, as pending offsets of a transaction.

        The reply completes when they are replicated. ILLEGAL_GENERATION for a member of an unknown
        group, INVALID_PRODUCER_EPOCH for a fenced producer.
        """
        try:
            commits = self._named_shard(group_id).commits
            write = commits.commit_transactional(group_id, committer, offsets, transaction, now_ms)
        except ApiError as error:
            return self._done(error.error_code)
        return self._outcome(write, now_ms)

    def end_transaction(
        self,
        partition_index: int,
        marker: EndTransactionMarker,
        *,
        producer_id: int,
        producer_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Write a marker to a partition of the offsets topic, and commit or drop its offsets.

        The reply completes when it is replicated, with an error code for the transaction
        coordinator: NOT_LEADER_OR_FOLLOWER where this broker has not loaded the partition.
        """
        led = self._led.get(partition_index)
        if led is None or led.shard.state is not ShardState.ACTIVE:
            return self._done(ErrorCode.not_leader_or_follower)
        try:
            write = led.shard.end_transaction(
                marker,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_version=transaction_version,
                now_ms=now_ms,
            )
        except ApiError as error:
            return self._done(error.error_code)
        reply: Reply[ErrorCode] = Reply(self._wake)
        write.when_done(
            lambda outcome, _: reply.complete(_MARKER_OUTCOMES.get(outcome, outcome)), now_ms
        )
        return reply

    def committed(self, group_id: str, topic_partition: TopicPartition) -> OffsetCommitValue | None:
        """Return a group's replicated offset of one partition."""
        shard = self._shard(group_id).shard
        return shard.offsets.committed(group_id, topic_partition, shard.high_watermark)

    def all_committed(self, group_id: str) -> Mapping[TopicPartition, OffsetCommitValue]:
        """Return a group's replicated offsets."""
        shard = self._shard(group_id).shard
        return shard.offsets.all_committed(group_id, shard.high_watermark)

    def is_stable(self, group_id: str) -> bool:
        """Return whether all commits and markers of a group are replicated."""
        shard = self._shard(group_id).shard
        return shard.offsets.stable_from(group_id) <= shard.high_watermark

    def has_pending(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return whether an open transaction has committed this offset of the group."""
        return self._shard(group_id).shard.pending.has(group_id, topic_partition)

    def delete_offsets(
        self, group_id: str, offsets: Iterable[TopicPartition], now_ms: int
    ) -> tuple[Mapping[TopicPartition, ErrorCode], Reply[ErrorCode]]:
        """Delete offsets of topics that no member subscribes to; return a code per partition.

        Raise GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP where the members' subscriptions are unknown.
        """
        codes, write = self._named_shard(group_id).commits.delete(group_id, offsets, now_ms)
        return codes, self._outcome(write, now_ms)

    def delete_topic_offsets(self, topic: str, now_ms: int) -> None:
        """Delete every group's offsets of a deleted topic.

        They are removed from memory even if the log cannot be written: loading drops offsets of
        topics that do not exist.
        """
        for led in self._led.values():
            led.commits.delete_topic_offsets(topic, now_ms)

    def run_retention(self, now_ms: int) -> None:
        """Delete offsets and groups that have expired."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        for led in self._led.values():
            if led.shard.state is ShardState.ACTIVE:
                led.commits.expire(retention_ms=retention_ms, now_ms=now_ms)

    # Administration

    def describe(self, group_id: str) -> DescribedGroup:
        """Return a group and its members; raise GROUP_ID_NOT_FOUND."""
        group = self._shard(group_id).shard.groups.get(group_id)
        if group is None:
            raise group_id_not_found(group_id)
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

    def groups(self) -> list[ClassicGroup]:
        """Return all groups coordinated here; raise COORDINATOR_LOAD_IN_PROGRESS while loading."""
        found: list[ClassicGroup] = []
        for led in self._led.values():
            if led.shard.state is ShardState.LOADING:
                raise ApiError(
                    ErrorCode.coordinator_load_in_progress,
                    "This broker is still loading partition "
                    f"{led.shard.partition.key.partition} of "
                    f"{OFFSETS_TOPIC}.",
                )
            found += led.shard.groups.values()
        return found

    def delete(self, group_id: str, now_ms: int) -> Reply[ErrorCode]:
        """Delete a group without members and its offsets, including pending ones."""
        try:
            write = self._shard(group_id).commits.delete_group(group_id, now_ms)
        except ApiError as error:
            return self._done(error.error_code)
        return self._outcome(write, now_ms)

    # Replies

    def _done(self, result: Result) -> Reply[Result]:
        reply: Reply[Result] = Reply(self._wake)
        reply.result = result
        return reply

    def _outcome(self, write: PendingWrite, now_ms: int) -> Reply[ErrorCode]:
        reply: Reply[ErrorCode] = Reply(self._wake)
        write.when_done(lambda outcome, _: reply.complete(outcome), now_ms)
        return reply
