"""The group coordinator of a broker.

Passes requests to the shard (the `__consumer_offsets` partition) of a group, and loads and unloads
shards when leadership changes. Rejects requests if this broker is not the coordinator of the group
or is still loading the shard. Invariants: the partition of a group is the Java hash of the group id
modulo the number of partitions. A shard exists as long as this broker is the leader of its
partition. Source: Kafka's `GroupCoordinatorService` and `GroupCoordinatorShard`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import OFFSETS_TOPIC, ClusterMetadata, Topic
from broker_ref.controller.metadata_delta import MetadataDelta
from broker_ref.coordination.partition_writer import PendingWrite
from broker_ref.coordination.partitioning import partition_of
from broker_ref.coordination.replies import Reply, Wake
from broker_ref.frozen import dataclass
from broker_ref.group.classic_group import ClassicGroup
from broker_ref.group.consumer.assignors import configured_assignors
from broker_ref.group.consumer.group import ConsumerGroup
from broker_ref.group.consumer.heartbeats import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    check_heartbeat,
)
from broker_ref.group.consumer.regular_expressions import IsVisible
from broker_ref.group.loading import Loading
from broker_ref.group.members import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from broker_ref.group.offset_metadata_manager import Committer, Offsets, group_id_not_found
from broker_ref.group.offsets import TopicPartition
from broker_ref.group.owned_shard import OwnedShard
from broker_ref.group.records import OffsetCommitValue
from broker_ref.group.shard import Group, ShardState, TransactionalProducer
from broker_ref.group.states import GroupState
from broker_ref.log.control import EndTransactionMarker
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.protocol.reader import STRING_BYTES_MAX
from broker_ref.replication.partition import (
    NO_EPOCH,
    Partition,
    PartitionKey,
    PendingReplication,
)
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule

Result = TypeVar("Result")

_MINUTE_MS: Final = 60_000
_MEMBER_ID_BYTES_MAX: Final = 40
"""The maximum length of the member id suffix, which consists of a dash and a UUID.

The suffix follows the client id or the instance id.
"""

_MARKER_OUTCOMES: Final = MappingProxyType(
    {
        ErrorCode.not_coordinator: ErrorCode.not_leader_or_follower,
        ErrorCode.coordinator_not_available: ErrorCode.request_timed_out,
    }
)
"""Maps errors from marker appends to the error codes that transaction coordinators expect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member in a DescribeGroups response."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group in a DescribeGroups response."""

    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()


class GroupCoordinator:
    """The groups whose partition of `__consumer_offsets` this broker leads."""

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
        """Load the partitions that this broker leads.

        `wake` checks the delayed operations for a key.
        """
        self._config = config
        self._metadata = metadata
        self._replicas = replicas
        self._schedule = schedule
        self._random_bytes = random_bytes
        self._wake = wake if wake is not None else replicas.mark_changed
        self._owned: dict[int, OwnedShard] = {}
        self._topics = {name: _id_and_size(topic) for name, topic in metadata.topics.items()}
        schedule.every(config.offsets_retention_check_interval_ms, self.run_retention)
        for index in range(self._partition_count()):
            self._update_leadership(index, now_ms)

    def update_config(self, config: BrokerConfig) -> None:
        """Use the current dynamic configs of the broker."""
        self._config = config
        for owned in self._owned.values():
            owned.consumers.update_config(config)

    # Leadership

    def on_metadata_update(self, delta: MetadataDelta, now_ms: int) -> None:
        """Notify consumer groups about changed topics, and delete the offsets of deleted topics."""
        self._update_topics(delta)
        if delta.removed_topics:
            self.delete_topic_offsets(delta.removed_topics, now_ms)

    def _update_topics(self, delta: MetadataDelta) -> None:
        """Notify the consumer groups about created and deleted topics and about new partitions."""
        changed: set[str] = set()
        is_created = False
        for name in {name for name, _ in delta.partitions}:
            topic = self._metadata.topics.get(name)
            before, now = self._topics.get(name), None if topic is None else _id_and_size(topic)
            if now == before:
                continue
            changed.add(name)
            if now is None:
                del self._topics[name]
            else:
                self._topics[name] = now
                is_created = is_created or before is None or before[0] != now[0]
        if changed:
            created_at = self._metadata.end_offset if is_created else None
            for owned in self._owned.values():
                owned.consumers.topics_changed(changed, created_at=created_at)

    def on_election(self, partition: Partition, now_ms: int) -> None:
        """Load the groups of a partition of `__consumer_offsets` unless they are already loaded."""
        index = partition.key.partition
        if partition.key.topic != OFFSETS_TOPIC or index in self._owned:
            return
        owned = self._owned[index] = OwnedShard(
            partition,
            config=self._config,
            metadata=self._metadata,
            schedule=self._schedule,
            random_bytes=self._random_bytes,
            wake=self._wake,
        )
        self._load(owned, Loading(owned.shard, metadata=self._metadata), now_ms)

    def on_resignation(self, partition: Partition, now_ms: int) -> None:
        """Unload the groups of a `__consumer_offsets` partition.

        Pending requests fail with NOT_COORDINATOR.
        """
        if partition.key.topic != OFFSETS_TOPIC:
            return
        owned = self._owned.pop(partition.key.partition, None)
        if owned is None:
            return
        owned.unload(now_ms)

    def partitions_changed(self, keys: Iterable[Hashable], now_ms: int) -> None:
        """Load or unload the given partitions, and complete the writes that are now replicated."""
        for key in keys:
            if isinstance(key, PartitionKey) and key.topic == OFFSETS_TOPIC:
                self._update_leadership(key.partition, now_ms)
                owned = self._owned.get(key.partition)
                if owned is not None:
                    owned.shard.writes.replicated(now_ms)

    def _update_leadership(self, index: int, now_ms: int) -> None:
        owned = self._owned.get(index)
        try:
            partition = self._replicas.partition(OFFSETS_TOPIC, index)
            partition.check_leader(NO_EPOCH)
        except ApiError:
            if owned is not None:
                self.on_resignation(owned.shard.partition, now_ms)
            return
        if owned is not None and owned.is_outdated(partition):
            self.on_resignation(owned.shard.partition, now_ms)
        self.on_election(partition, now_ms)

    def _load(self, owned: OwnedShard, loading: Loading, now_ms: int) -> None:
        if self._owned.get(owned.shard.partition.key.partition) is not owned:
            return
        if not loading.step(now_ms):
            self._schedule.at(now_ms, lambda time_ms: self._load(owned, loading, time_ms))
            return
        for group in tuple(owned.shard.groups.values()):
            if isinstance(group, ConsumerGroup):
                owned.consumers.loaded(group, now_ms)
            else:
                owned.membership.loaded(group, now_ms)

    # Finding the coordinator

    def coordinator(self, group_id: str) -> int | None:
        """Return the coordinator of a group, or None if `__consumer_offsets` does not exist."""
        found = self._metadata.partition(OFFSETS_TOPIC, self.partition_for(group_id))
        return found.leader if found is not None else None

    def partition_for(self, group_id: str) -> int:
        """Return the partition of `__consumer_offsets` that stores the group."""
        return partition_of(group_id, self._partition_count())

    def check_coordinator(self, group_id: str) -> Partition:
        """Return the partition of `__consumer_offsets` that stores the group.

        Raises: ApiError (NOT_COORDINATOR if this broker is not the leader,
        COORDINATOR_LOAD_IN_PROGRESS while the partition is being loaded).
        """
        return self._shard(group_id).shard.partition

    def _shard(self, group_id: str) -> OwnedShard:
        owned = self._owned.get(self.partition_for(group_id))
        if owned is None or owned.shard.state is ShardState.FAILED:
            raise ApiError(
                ErrorCode.not_coordinator,
                f"This broker is not the coordinator of group {group_id!r}.",
            )
        if owned.shard.state is ShardState.LOADING:
            raise ApiError(
                ErrorCode.coordinator_load_in_progress,
                f"This broker is still loading the partition of __consumer_offsets that stores "
                f"group {group_id!r}. Retry later.",
            )
        return owned

    def _named_shard(self, group_id: str) -> OwnedShard:
        """Return the shard of a group.

        Raises: ApiError (INVALID_GROUP_ID if the group id is empty, or an error code from
        `_shard`).
        """
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
        """Handle a JoinGroup request. The reply completes when the next generation starts."""
        try:
            # As in Kafka, check the session timeout before looking up the shard of the group.
            if request.group_id:
                self._check_session_timeout(request.session_timeout_ms)
            owned = self._named_shard(request.group_id)
            _check_names(request)
            if not request.member_id:
                owned.consumers.delete_empty(request.group_id, now_ms)
        except ApiError as error:
            refused = JoinResult(member_id=request.member_id, error_code=error.error_code)
            return self._done(refused)
        return owned.membership_of(request.group_id).join(request, now_ms)

    def sync(self, request: SyncRequest, now_ms: int) -> Reply[SyncResult]:
        """Handle a SyncGroup request.

        The reply completes when the assignments from the leader are replicated.
        """
        try:
            owned = self._named_shard(request.group_id)
        except ApiError as error:
            return self._done(SyncResult(error_code=error.error_code))
        return owned.membership_of(request.group_id).sync(request, now_ms)

    def heartbeat(
        self,
        group_id: str,
        *,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now_ms: int,
    ) -> ErrorCode:
        """Handle a Heartbeat request. The request succeeds while the group is being loaded."""
        try:
            return (
                self._named_shard(group_id)
                .membership_of(group_id)
                .heartbeat(
                    group_id,
                    member_id=member_id,
                    group_instance_id=group_instance_id,
                    generation_id=generation_id,
                    now_ms=now_ms,
                )
            )
        except ApiError as error:
            loading = error.error_code is ErrorCode.coordinator_load_in_progress
            return ErrorCode.none if loading else error.error_code

    def leave(
        self, group_id: str, members: Sequence[MemberIdentity], now_ms: int
    ) -> Reply[LeaveResult]:
        """Handle a LeaveGroup request. The result contains an error code for each member."""
        try:
            membership = self._named_shard(group_id).membership_of(group_id)
            result, write = membership.leave(group_id, members, now_ms)
        except ApiError as error:
            return self._done(LeaveResult(error_code=error.error_code))
        reply: Reply[LeaveResult] = Reply(self._wake)

        def stored(outcome: ErrorCode, time_ms: int) -> None:
            del time_ms
            failed = outcome is not ErrorCode.none
            reply.complete(LeaveResult(error_code=outcome) if failed else result)

        write.when_done(stored, now_ms)
        return reply

    def _check_session_timeout(self, session_timeout_ms: int) -> None:
        lowest = self._config.group_min_session_timeout_ms
        highest = self._config.group_max_session_timeout_ms
        if not lowest <= session_timeout_ms <= highest:
            raise ApiError(
                ErrorCode.invalid_session_timeout,
                f"The session timeout of {session_timeout_ms} ms is not between "
                f"group.min.session.timeout.ms={lowest} and "
                f"group.max.session.timeout.ms={highest}.",
            )

    # Members of consumer groups

    def consumer_heartbeat(
        self, request: ConsumerHeartbeat, is_visible: IsVisible, now_ms: int
    ) -> Reply[ConsumerHeartbeatResult]:
        """Handle a ConsumerGroupHeartbeat request.

        The reply completes when the changes to the group are replicated. `is_visible` returns
        whether the client may describe a topic.
        """
        try:
            check_heartbeat(request, configured_assignors(self._config))
            owned = self._shard(request.group_id)
        except ApiError as error:
            failed = ConsumerHeartbeatResult(
                error_code=error.error_code, error_message=error.message
            )
            return self._done(failed)
        return owned.consumers.heartbeat(request, is_visible, now_ms)

    # Offsets

    def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Commit either all offsets or none.

        The reply completes when the offsets are replicated. It contains GROUP_ID_NOT_FOUND if a
        member sent the request and the group does not exist.
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
        """Write either all offsets or none as pending offsets of a transaction.

        The reply completes when the offsets are replicated. It contains ILLEGAL_GENERATION if a
        member sent the request and the group does not exist, and INVALID_PRODUCER_EPOCH if the
        producer is fenced.
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
        """Write a transaction marker to a partition of `__consumer_offsets`.

        The marker commits or removes the pending offsets of the transaction. The reply completes
        when the marker is replicated. The reply contains the error code that the transaction
        coordinator expects, for example NOT_LEADER_OR_FOLLOWER if this broker has not loaded the
        partition.
        """
        owned = self._owned.get(partition_index)
        if owned is None or owned.shard.state is not ShardState.ACTIVE:
            return self._done(ErrorCode.not_leader_or_follower)
        try:
            write = owned.shard.end_transaction(
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

    def check_fetch(self, group_id: str, *, member_id: str | None, member_epoch: int) -> None:
        """Check the member of an OffsetFetch request.

        Raises: ApiError (UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH or ILLEGAL_GENERATION).
        """
        commits = self._shard(group_id).commits
        commits.check_fetch(group_id, member_id=member_id, member_epoch=member_epoch)

    def committed(
        self, group_id: str, topic_partition: TopicPartition, *, in_log: bool = False
    ) -> OffsetCommitValue | None:
        """Return the replicated offset of a group for one partition, or None.

        If `in_log` is True, return the latest offset in the log of this broker.
        """
        shard = self._shard(group_id).shard
        end_offset = shard.log_end_offset if in_log else shard.high_watermark
        return shard.offsets.committed(group_id, topic_partition, end_offset)

    def all_committed(
        self, group_id: str, *, in_log: bool = False
    ) -> Mapping[TopicPartition, OffsetCommitValue]:
        """Return all offsets of a group. See `committed`."""
        shard = self._shard(group_id).shard
        end_offset = shard.log_end_offset if in_log else shard.high_watermark
        return shard.offsets.all_committed(group_id, end_offset)

    def last_write(self, group_id: str) -> PendingReplication:
        """Return the last write to the partition of `__consumer_offsets` that stores the group."""
        shard = self._shard(group_id).shard
        return PendingReplication(partition=shard.partition, required_offset=shard.log_end_offset)

    def has_pending(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return whether an open transaction has a pending offset for this partition."""
        return self._shard(group_id).shard.pending.has(group_id, topic_partition)

    def delete_offsets(
        self, group_id: str, offsets: Iterable[TopicPartition], now_ms: int
    ) -> tuple[Mapping[TopicPartition, ErrorCode], Reply[ErrorCode]]:
        """Delete offsets for topics that have no subscribers. Return an error code per partition.

        Raises: ApiError (GROUP_ID_NOT_FOUND, or NON_EMPTY_GROUP if the group has members whose
        subscriptions are unknown).
        """
        codes, write = self._named_shard(group_id).commits.delete(group_id, offsets, now_ms)
        return codes, self._outcome(write, now_ms)

    def delete_topic_offsets(self, topics: Collection[str], now_ms: int) -> None:
        """Delete the offsets that any group has committed for deleted topics.

        The offsets are removed from memory even if the tombstones cannot be written, because
        offsets for topics that do not exist are ignored during loading.
        """
        for owned in self._owned.values():
            owned.commits.delete_topic_offsets(topics, now_ms)

    def run_retention(self, now_ms: int) -> None:
        """Delete expired offsets and groups."""
        retention_ms = self._config.offsets_retention_minutes * _MINUTE_MS
        for owned in self._owned.values():
            if owned.shard.state is ShardState.ACTIVE:
                owned.commits.expire(retention_ms=retention_ms, now_ms=now_ms)

    # Administration

    def describe(self, group_id: str) -> DescribedGroup:
        """Return the group and its members. Raises: ApiError (GROUP_ID_NOT_FOUND)."""
        group = self._shard(group_id).shard.groups.get(group_id)
        if group is None:
            raise group_id_not_found(group_id)
        if not isinstance(group, ClassicGroup):
            raise ApiError(
                ErrorCode.group_id_not_found, f"Group {group_id} is not a classic group."
            )
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

    def describe_consumer_group(self, group_id: str) -> tuple[ConsumerGroup, str]:
        """Return a consumer group and its assignor. Raises: ApiError (GROUP_ID_NOT_FOUND)."""
        owned = self._named_shard(group_id)
        group = owned.consumers.consumer_group(group_id)
        return group, owned.consumers.assignor_of(group)

    def groups(self) -> list[Group]:
        """Return all groups that this broker coordinates.

        Raises: ApiError (COORDINATOR_LOAD_IN_PROGRESS) while a partition is being loaded.
        """
        found: list[Group] = []
        for owned in self._owned.values():
            if owned.shard.state is ShardState.LOADING:
                raise ApiError(
                    ErrorCode.coordinator_load_in_progress,
                    f"This broker is loading partition {owned.shard.partition.key.partition} of "
                    f"{OFFSETS_TOPIC}. Retry later.",
                )
            found += owned.shard.groups.values()
        return found

    def delete(self, group_id: str, now_ms: int) -> Reply[ErrorCode]:
        """Delete a group without members, and its committed and pending offsets."""
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


def _check_names(request: JoinRequest) -> None:
    names = [request.client_id, request.group_instance_id or "", request.protocol_type]
    names += [protocol.name for protocol in request.protocols]
    longest = max(len(name.encode()) for name in names)
    if longest + _MEMBER_ID_BYTES_MAX > STRING_BYTES_MAX:
        raise ApiError(
            ErrorCode.invalid_request,
            f"The client id, instance id, protocol type or protocol name is {longest} bytes long, "
            f"which is too long for a record in {OFFSETS_TOPIC}. Use a shorter value.",
        )


def _id_and_size(topic: Topic) -> tuple[Uuid, int]:
    """Return the id and the partition count of a topic."""
    return topic.topic_id, len(topic.partitions)
