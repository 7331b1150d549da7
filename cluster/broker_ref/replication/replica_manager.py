"""The replicas of partitions on this broker.

The manager applies metadata: it opens the logs of new partitions, removes the logs of deleted
partitions, and makes replicas leaders and followers. It also runs periodic tasks on the logs.
Invariants:

- One step changes a limited number of partitions, so that the broker can serve requests and send
  heartbeats between the steps.
- After a storage failure, a replica is neither leader nor follower until the broker is restarted.
  All logs use the same storage, so the broker must then stop (`storage_failed`), as in Kafka.
- A log is opened only if its directory contains the id of its topic. A directory with another topic
  id is left over from an interrupted deletion. It is removed if the metadata shows that this topic
  was deleted. Otherwise, it is renamed. Logs of unknown topics are never deleted.

Source: Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata, PartitionMetadata, Topic
from broker_ref.controller.metadata_delta import MetadataDelta
from broker_ref.dynamic_configs import (
    FOLLOWER_THROTTLE,
    LEADER_THROTTLE,
    DynamicBrokerConfig,
)
from broker_ref.events import Channel
from broker_ref.frozen import dataclass
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.storage import Storage, StorageError
from broker_ref.outbox import Outbox
from broker_ref.protocol.errors import ApiError, unknown_partition
from broker_ref.protocol.identifiers import Uuid, uuid_text
from broker_ref.replication.alter_partition_manager import AlterPartitionManager
from broker_ref.replication.broker_states import BrokerStates
from broker_ref.replication.leader import ReplicaContext
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.replication.partition_metadata_file import PartitionMetadataFile
from broker_ref.replication.partition_walk import PartitionWalk, Visit
from broker_ref.replication.replica_fetcher import FetcherContext
from broker_ref.replication.replica_fetcher_manager import ReplicaFetcherManager
from broker_ref.replication.replication_quota_manager import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    ReplicationQuotaManager,
)
from broker_ref.schedule import Schedule, Timer
from broker_ref.topic_configs import min_insync_replicas

FETCHES: Final = "fetcher-0"
"""The purpose of the channels on which followers fetch from leaders."""

MOVES_PER_STEP: Final = 4
"""The number of logs that one step opens or renames. Opening a new log creates files."""

REMOVALS_PER_STEP: Final = 1
"""The number of deleted logs whose files one step removes."""

UPDATES_PER_STEP: Final = 64
"""The number of replicas that one step updates. An update requires no disk access."""

SEGMENTS_PER_STEP: Final = 4
"""The number of segments that one step deletes. Each deletion requires several fsyncs."""

KNOWN_CONFIGS_MAX: Final = 1_000
"""The maximum number of cached partition configs. Topics with equal configs share an entry."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offline:
    """A partition whose log is offline until the broker is restarted, and the reason."""

    topic_id: Uuid
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionConfigs:
    log: LogConfig
    min_insync_replicas: int


class ReplicaManager:
    """The replicas on one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        storage: Storage,
        metadata: ClusterMetadata,
        alter_partition_manager: AlterPartitionManager,
        broker_epoch: Callable[[], int],
        clock: Callable[[], int],
        schedule: Schedule,
        outbox: Outbox,
        now_ms: int,
    ) -> None:
        """Read the checkpoints, and start opening the logs of all partitions on this broker.

        `clock` returns the time of the current event. Periodic tasks use `schedule`, and followers
        send fetch requests through `outbox`. Raises: CorruptLogError, StorageError.
        """
        self.storage_failed: str | None = None
        self.is_loading = True
        """Whether logs must still be opened. If a log cannot be opened, `storage_failed` is set."""
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._context = ReplicaContext(
            broker_id=config.node_id,
            broker_epoch=broker_epoch,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            alter_partition_manager=alter_partition_manager,
            brokers=BrokerStates(metadata=metadata),
            clock=clock,
        )
        self.leader_quota, self.follower_quota = (
            ReplicationQuotaManager(
                broker_id=config.node_id,
                metadata=metadata,
                replicas_config=replicas_config,
                clock=clock,
            )
            for replicas_config in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        )
        self._fetchers = ReplicaFetcherManager(
            context=FetcherContext(
                quota=self.follower_quota,
                config=config,
                outbox=outbox,
                schedule=schedule,
                broker_epoch=broker_epoch,
                clock=clock,
            )
        )
        self._schedule = schedule
        self._directory = LogManager(
            storage=storage, dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size
        )
        self._partitions: dict[PartitionKey, Partition] = {}
        self._channels: dict[int, Channel] = {}
        self._changed: dict[Hashable, None] = {}
        self._offline: dict[PartitionKey, _Offline] = {}
        self._to_update: dict[PartitionKey, None] = {}
        self._to_move: dict[PartitionKey, None] = {
            PartitionKey(topic=topic, partition=partition): None
            for topic, partition in self._directory.partitions_on_disk()
        }
        self._known_configs: dict[frozenset[tuple[str, str]], _PartitionConfigs] = {}
        """The configs of partitions, keyed by the configs that are set on their topics."""
        self._next_step: Timer | None = None
        self._schedule_periodic_tasks(now_ms)
        self.apply_metadata(now_ms)

    @property
    def has_offline_partitions(self) -> bool:
        """Return whether any log has gone offline since the broker was started."""
        return bool(self._offline)

    def partition(self, topic: str, partition: int) -> Partition:
        """Return the replica of a partition.

        Raises: ApiError with UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER if this broker has
        no replica of the partition, or KAFKA_STORAGE_ERROR if its log is offline.
        """
        key = PartitionKey(topic, partition)
        found = self._partitions.get(key)
        current = self._metadata.partition(topic, partition)
        if found and current and found.metadata.topic_id == current.topic_id:
            return found
        if key in self._offline:
            raise ApiError(ErrorCode.kafka_storage_error, self._offline[key].reason)
        if current is not None:
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"Broker {self._context.broker_id} has no replica of partition "
                f"{topic}-{partition}.",
            )
        raise unknown_partition(topic, partition)

    def partitions(self) -> tuple[Partition, ...]:
        """Return all replicas on this broker."""
        return tuple(self._partitions.values())

    def mark_changed(self, key: Hashable) -> None:
        """Mark a partition or another key, so that its delayed operations are checked."""
        self._changed[key] = None

    def take_changed(self) -> tuple[Hashable, ...]:
        """Return the keys marked since the last call, in the order in which they were marked."""
        if not self._changed:
            return ()
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def apply_metadata(self, now_ms: int) -> None:
        """Apply the entire metadata (see `apply_delta`)."""
        delta = MetadataDelta(has_changed_brokers=True)
        for partition in self._metadata.partitions():
            delta.partitions[partition.topic, partition.partition] = None
        for key in (*self._partitions, *self._offline):
            delta.partitions[key.topic, key.partition] = None
        delta.configs.update(dict.fromkeys(self._metadata.topics))
        self.apply_delta(delta, now_ms)

    def apply_delta(self, delta: MetadataDelta, now_ms: int) -> None:
        """Start creating, removing and updating logs and replicas according to the metadata.

        If the storage cannot create a log, the partition is offline until the next startup
        (`ReplicaManager.applyDelta`).
        """
        for name in delta.configs:
            self._apply_configs(name)
        if delta.has_changed_brokers:
            self._update_channels()
        for topic, index in delta.partitions:
            self._add_change(PartitionKey(topic=topic, partition=index))
        self._apply_changes(now_ms)

    def update_config(self, configs: DynamicBrokerConfig) -> None:
        """Use the current dynamic configs."""
        self._config = config = configs.current
        self._known_configs.clear()
        self.leader_quota.limit = configs.throttled_rates.get(LEADER_THROTTLE)
        self.follower_quota.limit = configs.throttled_rates.get(FOLLOWER_THROTTLE)
        self._directory.set_dedupe_buffer_bytes(config.log_cleaner_dedupe_buffer_size)
        for name in self._metadata.topics:
            self._apply_configs(name)

    def _add_change(self, key: PartitionKey) -> None:
        """Schedule the changes to a partition. Changes to existing replicas are applied first."""
        current = self._metadata.partition(key.topic, key.partition)
        partition = self._partitions.get(key)
        if partition is not None and self._has_replica(current, partition.metadata.topic_id):
            self._to_update[key] = None
        elif partition is not None or key in self._offline or self._is_local(current):
            self._to_move[key] = None

    def _apply_changes(self, now_ms: int) -> None:
        """Apply a limited number of metadata changes, and schedule the rest for the next step.

        Until the change to a partition is applied, its existing replica continues to serve
        requests.
        """
        changes, limit = self._to_move, MOVES_PER_STEP
        if self._to_update:
            changes, limit = self._to_update, UPDATES_PER_STEP
        has_deleted = False
        try:
            for key in tuple(islice(changes, limit)):
                del changes[key]
                self._apply_change(key, now_ms)
            if not changes:
                has_deleted = self._directory.remove_deleted(REMOVALS_PER_STEP)
            self._fetchers.maybe_fetch()
        finally:
            has_changes = bool(self._to_update or self._to_move)
            self.is_loading = self.is_loading and has_changes
            is_scheduled = self._next_step is not None and self._next_step.is_pending
            if (has_changes or has_deleted) and not is_scheduled:
                self._next_step = self._schedule.at(now_ms, self._apply_changes)

    def _apply_change(self, key: PartitionKey, now_ms: int) -> None:
        """Apply the current metadata of one partition."""
        current = self._metadata.partition(key.topic, key.partition)
        found = self._partitions.get(key)
        if found is not None and not self._has_replica(current, found.metadata.topic_id):
            self._delete(key)
        offline = self._offline.get(key)
        is_stray = self.is_loading and not self._is_local(current)
        if offline is not None and not self._has_replica(current, offline.topic_id):
            del self._offline[key]
            is_stray = True
        try:
            if is_stray:
                self._remove_log_of_other_topic(key, keep=None)
            if current is not None and self._is_local(current) and key not in self._offline:
                self._open_and_apply(key, current, now_ms)
        except (LogError, StorageError) as error:
            self._handle_open_failure(key, current, str(error))

    def _open_and_apply(self, key: PartitionKey, current: PartitionMetadata, now_ms: int) -> None:
        if key not in self._partitions and self._remove_log_of_earlier_topic(current):
            self._add(current, now_ms)
        if key in self._partitions:
            self._apply_partition_metadata(self._partitions[key], current, now_ms)
            self._update_fetcher(key)

    def _handle_open_failure(
        self, key: PartitionKey, current: PartitionMetadata | None, reason: str
    ) -> None:
        if self.is_loading:
            self.storage_failed = reason
        elif current is not None:
            self._take_offline(current, reason)
        else:
            _warn_of_stray(key, reason)

    def _update_channels(self) -> None:
        """Update the addresses of the brokers, and fetch from the new addresses."""
        before = self._channels
        self._channels = {
            broker.broker_id: Channel(
                node_id=broker.broker_id, host=broker.host, port=broker.port, purpose=FETCHES
            )
            for broker in self._metadata.brokers.values()
        }
        changed = {broker_id for broker_id, _ in before.items() ^ self._channels.items()}
        for key, partition in self._partitions.items() if changed else ():
            if partition.metadata.leader in changed:
                self._to_update[key] = None

    def _update_fetcher(self, key: PartitionKey) -> None:
        """Fetch a partition if this broker is a follower and the leader's address is known."""
        partition = self._partitions.get(key)
        channel = None if partition is None else self._channels.get(partition.metadata.leader)
        if partition is not None and partition.is_follower and channel is not None:
            self._fetchers.add_partition(partition, channel)
        else:
            self._fetchers.remove_partition(key)

    def _is_local(self, current: PartitionMetadata | None) -> bool:
        return current is not None and self._config.node_id in current.replicas

    def _has_replica(self, current: PartitionMetadata | None, topic_id: Uuid) -> bool:
        return current is not None and current.topic_id == topic_id and self._is_local(current)

    def _apply_configs(self, name: str) -> None:
        topic = self._metadata.topics.get(name)
        if topic is None:
            return
        configs = self._partition_configs(topic)
        for index in topic.partitions:
            partition = self._partitions.get(PartitionKey(topic=name, partition=index))
            if partition is not None:
                partition.log.update_config(configs.log)
                partition.min_insync_replicas = configs.min_insync_replicas

    def _maybe_shrink_isr(self, partition: Partition, now_ms: int) -> bool:
        """Propose removing lagging followers from the ISR."""
        partition.maybe_shrink_isr(now_ms)
        return False

    def _apply_retention(self, partition: Partition, now_ms: int) -> bool:
        """Delete some of the segments that exceed the topic's retention limits.

        Schedule the deletion of the remaining segments for the next step. Skip a log that is being
        compacted, because a deletion aborts the compaction (`LogCleanerManager.deletableLogs`).
        """
        if self._directory.is_compacting(partition.log):
            return False
        deleted = 0
        with self._storage_failures(partition):
            deleted = partition.log.apply_retention(
                now_ms, high_watermark=partition.high_watermark, segments_max=SEGMENTS_PER_STEP
            )
        if deleted:
            self.mark_changed(partition.key)
            self._fetchers.update_log_start_offset(partition)
        if deleted == SEGMENTS_PER_STEP:
            self._schedule.at(now_ms, partial(self._continue_retention, partition))
        return deleted > 0

    def _continue_retention(self, partition: Partition, now_ms: int) -> None:
        if self._partitions.get(partition.key) is partition:
            self._apply_retention(partition, now_ms)

    def run_compaction(self, now_ms: int) -> None:
        """Compact a limited number of bytes, and schedule the next step.

        If no work remains, the next step runs after `log.cleaner.backoff.ms`, as in Kafka's
        `LogCleaner`.
        """
        compacted = [each for each in self._partitions.values() if each.log.config.compact]
        stable_offsets = {
            (partition.key.topic, partition.key.partition): partition.last_stable_offset
            for partition in compacted
        }
        has_more = self._directory.clean(now_ms, stable_offsets)
        for partition in compacted:
            if partition.log.storage_error is not None:
                self._handle_storage_failure(partition, partition.log.storage_error)
        if has_more and self.storage_failed is None:
            self._schedule.at(now_ms, self.run_compaction)
        else:
            self._schedule_compaction(now_ms)

    def _expire_producers(self, partition: Partition, now_ms: int) -> bool:
        """Remove the state of expired producers."""
        partition.log.expire_producers(now_ms)
        return False

    def _flush_if_due(self, partition: Partition, now_ms: int) -> bool:
        """Flush the log if its `flush.ms` has elapsed."""
        flushed_before = partition.log.recovery_point
        with self._storage_failures(partition):
            partition.log.flush_if_due(now_ms)
        return partition.log.recovery_point != flushed_before

    def _update_checkpoint(self, partition: Partition, now_ms: int) -> bool:
        del now_ms
        key = partition.key
        self._directory.update_checkpoint(key.topic, key.partition, partition.high_watermark)
        return False

    def _write_checkpoints(self, now_ms: int) -> None:
        """Write the checkpoints of log start offsets, high watermarks and recovery points.

        After a restart, the broker reads the high watermarks from their checkpoint file.
        """
        del now_ms
        try:
            self._directory.write_checkpoints()
        except StorageError as error:
            logger.warning(
                "Failed to write the checkpoints, so recovery after a crash will take longer: %s",
                error,
            )

    def checkpoint(self) -> None:
        """Write the checkpoints of all partitions immediately. Raises: StorageError."""
        self._directory.checkpoint(self._high_watermarks())

    def close(self) -> None:
        """Stop fetching, flush and close all logs, and mark the shutdown as clean."""
        self._fetchers.close()
        self._directory.close(self._high_watermarks(), broker_epoch=self._context.broker_epoch())
        self._partitions.clear()

    def _high_watermarks(self) -> dict[tuple[str, int], int]:
        return {
            (key.topic, key.partition): partition.high_watermark
            for key, partition in self._partitions.items()
        }

    def _schedule_periodic_tasks(self, now_ms: int) -> None:
        config = self._config

        def walk(visit: Visit, end: Callable[[int], None] = lambda _: None) -> PartitionWalk:
            return PartitionWalk(self._partitions, schedule=self._schedule, visit=visit, end=end)

        checkpoints = walk(self._update_checkpoint, self._write_checkpoints)
        for interval_ms, task in (
            (config.log_retention_check_interval_ms, walk(self._apply_retention)),
            (config.producer_id_expiration_check_interval_ms, walk(self._expire_producers)),
            (
                config.log_flush_offset_checkpoint_interval_ms,
                walk(self._flush_if_due, checkpoints.start),
            ),
            (config.replica_high_watermark_checkpoint_interval_ms, checkpoints),
            (max(config.replica_lag_time_max_ms // 2, 1), walk(self._maybe_shrink_isr)),
        ):
            self._schedule.every(interval_ms, task.start)
        if config.log_cleaner_enable:
            self._schedule_compaction(now_ms)

    def _schedule_compaction(self, now_ms: int) -> None:
        backoff_ms = max(self._config.log_cleaner_backoff_ms, 1)
        self._schedule.at(now_ms + backoff_ms, self.run_compaction)

    def _partition_configs(self, topic: Topic) -> _PartitionConfigs:
        own = frozenset(topic.configs.items())
        found = self._known_configs.get(own)
        if found is None:
            configs = {**self._config.topic_config_defaults(), **topic.configs}
            log = dataclasses.replace(
                LogConfig.from_topic_configs(configs),
                producer_id_expiration_ms=self._config.producer_id_expiration_ms,
            )
            if len(self._known_configs) >= KNOWN_CONFIGS_MAX:
                self._known_configs.clear()  # Most entries may be outdated.
            found = self._known_configs[own] = _PartitionConfigs(
                log=log, min_insync_replicas=min_insync_replicas(configs)
            )
        return found

    def _add(self, metadata: PartitionMetadata, now_ms: int) -> None:
        partition = self._open(metadata, now_ms)
        self._partitions[partition.key] = partition
        self.mark_changed(partition.key)

    def _apply_partition_metadata(
        self, partition: Partition, metadata: PartitionMetadata, now_ms: int
    ) -> None:
        has_part = partition.is_leader or partition.is_follower
        if has_part and metadata is partition.metadata:
            return
        try:
            partition.apply_metadata(metadata, now_ms)
        except (LogError, StorageError) as error:
            self._handle_storage_failure(partition, str(error))

    def _handle_storage_failure(self, partition: Partition, reason: str) -> None:
        """Take a replica offline because its storage has failed."""
        partition.resign()
        self._fetchers.remove_partition(partition.key)
        if self._partitions.pop(partition.key, None) is not None:
            self._take_offline(partition.metadata, reason)
        self.storage_failed = reason

    @contextmanager
    def _storage_failures(self, partition: Partition) -> Iterator[None]:
        try:
            yield
        except LogError as error:
            if partition.log.storage_error is not None:
                self._handle_storage_failure(partition, partition.log.storage_error)
            else:
                logger.warning("%s", error)

    def _take_offline(self, metadata: PartitionMetadata, reason: str) -> None:
        key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        logger.error(
            "%s-%d is offline until the broker is restarted: %s", key.topic, key.partition, reason
        )
        self._offline[key] = _Offline(topic_id=metadata.topic_id, reason=reason)

    def _delete(self, key: PartitionKey) -> None:
        """Remove a replica and its log; a failed removal is retried at the next startup.

        The log is deleted if the metadata shows that the topic was deleted or that the partition
        was reassigned. Otherwise, the log is renamed, because the controller may have started with
        an older copy of its metadata log.
        """
        partition = self._partitions.pop(key)
        topic_id = partition.metadata.topic_id
        partition.resign()
        self._fetchers.remove_partition(key)
        try:
            if topic_id in self._metadata.removed_topics or self._is_newer(key, partition.metadata):
                self._directory.delete_log(key.topic, key.partition, topic_id=uuid_text(topic_id))
            else:
                self._rename_stray(key, topic_id)
        except StorageError as error:
            _warn_of_stray(key, str(error))

    def _is_newer(self, key: PartitionKey, applied: PartitionMetadata) -> bool:
        """Return whether the current metadata of a partition is newer than `applied`.

        Return False if the topic id has changed.
        """
        current = self._metadata.partition(key.topic, key.partition)
        return (
            current is not None
            and current.topic_id == applied.topic_id
            and current.partition_epoch > applied.partition_epoch
        )

    def _rename_stray(self, key: PartitionKey, topic_id: Uuid) -> None:
        text = uuid_text(topic_id)
        name = self._directory.rename_stray(key.topic, key.partition, topic_id=text)
        logger.warning(
            "The log of %s-%d has topic id %s, %s. The log directory was renamed to %s. Remove "
            "the directory if you do not need the log.",
            key.topic,
            key.partition,
            text,
            "but this broker no longer hosts a replica of the partition"
            if topic_id in self._metadata.topics_by_id
            else "which the metadata does not contain",
            name,
        )

    def _remove_log_of_other_topic(self, key: PartitionKey, *, keep: Uuid | None) -> bool:
        """Remove a log unless its topic id is `keep`.

        Log a warning and return False if the log could not be removed. Raises: CorruptLogError if
        the topic id of the log is unreadable.
        """
        file = self._metadata_file(key)
        topic_id = file.read()
        if topic_id is None or topic_id == keep:
            return True
        try:
            if topic_id in self._metadata.removed_topics:
                self._directory.delete_log(key.topic, key.partition, topic_id=uuid_text(topic_id))
            else:
                self._rename_stray(key, topic_id)
        except StorageError as error:
            _warn_of_stray(key, str(error))
        return not self._storage.exists(file.path)

    def _remove_log_of_earlier_topic(self, metadata: PartitionMetadata) -> bool:
        """Remove the log of an earlier topic with the same name.

        If the removal fails, take the partition offline and return False.
        """
        key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        if self._remove_log_of_other_topic(key, keep=metadata.topic_id):
            return True
        self._take_offline(
            metadata, f"the log of the deleted topic {key.topic} could not be removed from storage."
        )
        return False

    def _open(self, metadata: PartitionMetadata, now_ms: int) -> Partition:
        key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        file = self._metadata_file(key)
        if file.read() is None:
            if not self._storage.list(f"{key.topic}-{key.partition}"):
                self._directory.remove_checkpoints(key.topic, key.partition)
            file.record(metadata.topic_id)
        configs = self._partition_configs(self._metadata.topics[metadata.topic])
        log = self._directory.open_log(
            metadata.topic,
            metadata.partition,
            config=configs.log,
            now_ms=now_ms,
            before_first_write=file.maybe_flush,
        )
        return Partition(
            context=self._context,
            metadata=metadata,
            log=log,
            min_insync_replicas=configs.min_insync_replicas,
            high_watermark=self._directory.high_watermark(metadata.topic, metadata.partition),
            on_change=lambda: self.mark_changed(key),
            on_storage_failure=lambda reason: self._fail(key, reason),
        )

    def _metadata_file(self, key: PartitionKey) -> PartitionMetadataFile:
        return PartitionMetadataFile(self._storage, f"{key.topic}-{key.partition}")

    def _fail(self, key: PartitionKey, reason: str) -> None:
        partition = self._partitions.get(key)
        if partition is not None:
            self._handle_storage_failure(partition, reason)


def _warn_of_stray(key: PartitionKey, reason: str) -> None:
    logger.warning(
        "Failed to remove the log of %s-%d. The broker will retry at the next startup: %s",
        key.topic, key.partition, reason,
    )  # fmt: skip
