"""The partitions that this broker has a replica of.

Purpose: follow the metadata: open the log of a partition that is new, close and remove that of one
that is gone, make replicas leaders and followers; run what logs need from time to time.
Invariants: a replica whose storage failed neither leads nor follows again before the next start,
and as all logs are on one storage, the broker is to stop then (`storage_failed`), as Kafka's do.
A log is opened only in a directory that has its topic's id. One of another id, which a deletion cut short
leaves, is out of the way first: removed where the metadata says that its topic was removed, set
aside where it says nothing. Nothing is removed because of doubt.
What it must not know: requests. Source: Kafka's `ReplicaManager`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata, PartitionMetadata, Topic
from broker_ref.events import Channel
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import CorruptLogError, LogError
from broker_ref.log.log_manager import LogManager
from broker_ref.log.storage import Storage, StorageError
from broker_ref.outbox import Outbox
from broker_ref.protocol.errors import ApiError, unknown_partition
from broker_ref.protocol.identifiers import Uuid, uuid_from_text, uuid_text
from broker_ref.replication.broker_states import BrokerStates
from broker_ref.replication.fetcher import FetcherSurroundings
from broker_ref.replication.fetchers import Fetchers
from broker_ref.replication.isr_changes import IsrChanges
from broker_ref.replication.leader import Surroundings
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.schedule import Schedule
from broker_ref.topic_configs import min_insync_replicas

PARTITION_METADATA_FILE: Final = "partition.metadata"
FETCHES: Final = "fetcher-0"
"""The purpose of the channels to leaders."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offline:
    """A partition without a log until the next start, and why."""

    topic_id: Uuid
    reason: str


class ReplicaManager:
    """The replicas on one broker."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        storage: Storage,
        metadata: ClusterMetadata,
        isr_changes: IsrChanges,
        broker_epoch: Callable[[], int],
        clock: Callable[[], int],
        schedule: Schedule,
        outbox: Outbox,
        now_ms: int,
    ) -> None:
        """Open the log of every partition on this broker; CorruptLogError or StorageError names one.

        None leads or follows before the first `follow_metadata`. `clock` gives the time of the
        present step. What replicas need from time to time is put on the schedule; followers fetch
        through the outbox.
        """
        self.storage_failed: str | None = None
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._surroundings = Surroundings(
            broker_id=config.node_id,
            broker_epoch=broker_epoch,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            isr_changes=isr_changes,
            brokers=BrokerStates(metadata=metadata),
            clock=clock,
        )
        self._fetchers = Fetchers(
            surroundings=FetcherSurroundings(
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
        self._configs: dict[str, dict[str, str]] = {}
        self._changed: dict[Hashable, None] = {}
        self._offline: dict[PartitionKey, _Offline] = {}
        self._remove_strays()
        for partition in self._local_partitions():
            if self._make_way(partition):
                self._add(partition, now_ms)
        self._put_on_schedule()

    def partition(self, topic: str, partition: int) -> Partition:
        """The replica of a partition.

        UNKNOWN_TOPIC_OR_PARTITION where there is none, NOT_LEADER_OR_FOLLOWER where there is none
        here, KAFKA_STORAGE_ERROR where its log could not be made.
        """
        key = PartitionKey(topic=topic, partition=partition)
        found = self._partitions.get(key)
        if found is not None:
            return found
        if key in self._offline:
            raise ApiError(ErrorCode.kafka_storage_error, self._offline[key].reason)
        if self._metadata.partition(topic, partition) is not None:
            raise ApiError(
                ErrorCode.not_leader_or_follower,
                f"This broker has no replica of partition {topic}-{partition}.",
            )
        raise unknown_partition(topic, partition)

    def partitions(self) -> tuple[Partition, ...]:
        """Every replica here."""
        return tuple(self._partitions.values())

    def mark_changed(self, key: Hashable) -> None:
        """Note that those who wait for this partition, or other key, are to be asked again."""
        self._changed[key] = None

    def take_changed(self) -> tuple[Hashable, ...]:
        """The keys marked since the last call, in order."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def follow_metadata(self, now_ms: int) -> None:
        """Make the logs and replicas here those that the metadata says.

        A log that storage refuses to make is offline until the next start.
        """
        for key, partition in list(self._partitions.items()):
            current = self._metadata.partition(key.topic, key.partition)
            if current is None or not self._is_here(current, partition.metadata.topic_id):
                self._delete(key)
        self._forget_offline()
        self._follow_configs()
        channels = self._channels()
        for metadata in self._local_partitions():
            key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
            if key in self._offline:
                continue
            try:
                if key not in self._partitions and self._make_way(metadata):
                    self._add(metadata, now_ms)
            except (LogError, StorageError) as error:
                self._take_offline(metadata, str(error))
            if key in self._partitions:
                self._follow(self._partitions[key], metadata, now_ms)
                self._fetch(key, channels.get(metadata.leader))
        self._fetchers.start()

    def _channels(self) -> dict[int, Channel]:
        """Where to fetch from each broker."""
        return {
            broker.broker_id: Channel(
                node_id=broker.broker_id, host=broker.host, port=broker.port, purpose=FETCHES
            )
            for broker in self._metadata.brokers.values()
        }

    def _fetch(self, key: PartitionKey, channel: Channel | None) -> None:
        """Fetch a partition if it follows, from its leader if that is known."""
        partition = self._partitions.get(key)
        if partition is not None and partition.is_follower and channel is not None:
            self._fetchers.follow(partition, channel)
        else:
            self._fetchers.leave(key)

    def _is_here(self, current: PartitionMetadata, topic_id: Uuid) -> bool:
        return current.topic_id == topic_id and self._config.node_id in current.replicas

    def _forget_offline(self) -> None:
        """Remove what is left of partitions that were offline and are gone now."""
        for key, offline in list(self._offline.items()):
            current = self._metadata.partition(key.topic, key.partition)
            if current is None or not self._is_here(current, offline.topic_id):
                del self._offline[key]
                try:
                    self._clear(key, keep=None)
                except (LogError, StorageError) as error:
                    _warn_of_stray(key, error)

    def _follow_configs(self) -> None:
        """Let the logs of topics whose configs have changed have them."""
        for name, topic in self._metadata.topics.items():
            configs = self.effective_configs(topic)
            if self._configs.get(name) == configs:
                continue
            self._configs[name] = configs
            for index in topic.partitions:
                partition = self._partitions.get(PartitionKey(topic=name, partition=index))
                if partition is not None:
                    partition.log.update_config(self._log_config(configs))
                    partition.min_insync_replicas = min_insync_replicas(configs)
        for name in [name for name in self._configs if name not in self._metadata.topics]:
            del self._configs[name]

    def shrink_isrs(self, now_ms: int) -> None:
        """Propose that followers which lag leave the in-sync replicas."""
        for partition in self._partitions.values():
            partition.shrink_isr(now_ms)

    def run_retention(self, now_ms: int) -> None:
        """Delete what is past its topic's retention."""
        for partition in self.partitions():
            with self._storage_failures(partition):
                partition.log.apply_retention(now_ms, high_watermark=partition.high_watermark)
                self.mark_changed(partition.key)
                self._fetchers.log_start_moved(partition)

    def run_compaction(self, now_ms: int) -> None:
        """Compact a bounded part of what is to be compacted, and go on with the rest at once."""
        stable_offsets = {
            (key.topic, key.partition): partition.last_stable_offset
            for key, partition in self._partitions.items()
        }
        has_more = self._directory.clean(now_ms, stable_offsets)
        for partition in self.partitions():
            if partition.log.storage_error is not None:
                self._storage_has_failed(partition, partition.log.storage_error)
        if has_more and self.storage_failed is None:
            self._schedule.at(now_ms, self.run_compaction)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that have stopped writing."""
        for partition in self._partitions.values():
            partition.log.expire_producers(now_ms)

    def flush_and_checkpoint(self, now_ms: int) -> None:
        """Flush logs whose `flush.ms` has passed, and note what recovery may skip."""
        for partition in self.partitions():
            with self._storage_failures(partition):
                partition.log.flush_if_due(now_ms)
        self.checkpoint_high_watermarks(now_ms)

    def checkpoint_high_watermarks(self, now_ms: int) -> None:
        """Note on disk what is committed, so that a restart serves it at once."""
        del now_ms
        try:
            self.checkpoint()
        except StorageError as error:
            logger.warning(
                "The checkpoints are not written, which costs time at the next start "
                "after a crash: %s",
                error,
            )

    def checkpoint(self) -> None:
        """Make log start offsets, high watermarks and what is flushed survive a crash."""
        self._directory.checkpoint(self._high_watermarks())

    def close(self) -> None:
        """Stop fetching, flush and close every log, and note that the stop was clean."""
        self._fetchers.close()
        self._directory.close(self._high_watermarks())
        self._partitions.clear()

    def _high_watermarks(self) -> dict[tuple[str, int], int]:
        return {
            (key.topic, key.partition): partition.high_watermark
            for key, partition in self._partitions.items()
        }

    def _put_on_schedule(self) -> None:
        config = self._config
        for interval_ms, task in (
            (config.log_retention_check_interval_ms, self.run_retention),
            (config.producer_id_expiration_check_interval_ms, self.expire_producers),
            (config.log_flush_offset_checkpoint_interval_ms, self.flush_and_checkpoint),
            (
                config.replica_high_watermark_checkpoint_interval_ms,
                self.checkpoint_high_watermarks,
            ),
            (max(config.replica_lag_time_max_ms // 2, 1), self.shrink_isrs),
        ):
            self._schedule.every(interval_ms, task)
        if config.log_cleaner_enable:
            self._schedule.every(max(config.log_cleaner_backoff_ms, 1), self.run_compaction)

    def effective_configs(self, topic: Topic) -> dict[str, str]:
        """A topic's configs over the server-wide defaults that were given."""
        return {**self._config.topic_config_defaults(), **topic.configs}

    def _log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        return dataclasses.replace(
            LogConfig.from_topic_configs(topic_configs),
            producer_id_expiration_ms=self._config.producer_id_expiration_ms,
        )

    def _local_partitions(self) -> list[PartitionMetadata]:
        return [
            partition
            for topic in self._metadata.topics.values()
            for partition in topic.partitions.values()
            if self._config.node_id in partition.replicas
        ]

    def _add(self, metadata: PartitionMetadata, now_ms: int) -> None:
        partition = self._open(metadata, now_ms)
        self._partitions[partition.key] = partition
        self.mark_changed(partition.key)

    def _follow(self, partition: Partition, metadata: PartitionMetadata, now_ms: int) -> None:
        has_part = partition.is_leader or partition.is_follower
        if has_part and metadata is partition.metadata:
            return
        try:
            partition.follow(metadata, now_ms)
        except (LogError, StorageError) as error:
            self._storage_has_failed(partition, str(error))

    def _storage_has_failed(self, partition: Partition, reason: str) -> None:
        """A replica that cannot write any more has no part in anything."""
        partition.resign()
        self._fetchers.leave(partition.key)
        if self._partitions.pop(partition.key, None) is not None:
            self._take_offline(partition.metadata, reason)
        self.storage_failed = reason

    @contextmanager
    def _storage_failures(self, partition: Partition) -> Iterator[None]:
        try:
            yield
        except LogError as error:
            if partition.log.storage_error is not None:
                self._storage_has_failed(partition, partition.log.storage_error)
            else:
                logger.warning("%s", error)

    def _take_offline(self, metadata: PartitionMetadata, reason: str) -> None:
        key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        logger.error(
            "%s-%d is offline until the broker is restarted: %s", key.topic, key.partition, reason
        )
        self._offline[key] = _Offline(topic_id=metadata.topic_id, reason=reason)

    def _delete(self, key: PartitionKey) -> None:
        """Forget a replica and remove its log, later where storage refuses it now."""
        partition = self._partitions.pop(key)
        topic_id = partition.metadata.topic_id
        partition.resign()
        self._fetchers.leave(key)
        try:
            self._directory.delete_log(key.topic, key.partition, unique_id=uuid_text(topic_id))
        except StorageError as error:
            _warn_of_stray(key, error)

    def _clear(self, key: PartitionKey, *, keep: Uuid | None) -> bool:
        """Have no log here but that of topic `keep`; False, with a warning, where one must stay.

        Raises: CorruptLogError where the log does not say whose it is.
        """
        topic_id = self._topic_id(key)
        if topic_id is None or topic_id == keep:
            return True
        unique_id = uuid_text(topic_id)
        try:
            if topic_id in self._metadata.removed_topics:
                self._directory.delete_log(key.topic, key.partition, unique_id=unique_id)
            else:
                name = self._directory.set_aside(key.topic, key.partition, unique_id=unique_id)
                logger.warning(
                    "The log %s-%d is of a topic with id %s, which the metadata does not know: "
                    "it is kept as %s. Remove that directory if it is not needed.",
                    key.topic, key.partition, unique_id, name,
                )  # fmt: skip
        except StorageError as error:
            _warn_of_stray(key, error)
        return not self._storage.exists(_marker(key))

    def _remove_strays(self) -> None:
        """Have no logs but those of the metadata's partitions."""
        known = {
            PartitionKey(topic=partition.topic, partition=partition.partition): partition.topic_id
            for partition in self._local_partitions()
        }
        for topic, partition in self._directory.partitions_on_disk():
            key = PartitionKey(topic=topic, partition=partition)
            if key not in known:
                self._clear(key, keep=None)

    def _make_way(self, metadata: PartitionMetadata) -> bool:
        """Have no log of an earlier topic where this partition's belongs; else it is offline."""
        key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        if self._clear(key, keep=metadata.topic_id):
            return True
        self._take_offline(
            metadata, f"the log of an earlier topic {key.topic} cannot be removed from storage."
        )
        return False

    def _topic_id(self, key: PartitionKey) -> Uuid | None:
        """Whose log is in a partition's directory; None where none is. Raises: CorruptLogError."""
        marker = _marker(key)
        if not self._storage.exists(marker):
            return None
        for line in self._storage.read(marker).decode(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name != "topic_id":
                continue
            with suppress(ValueError):
                topic_id = uuid_from_text(value.strip())
                if uuid_text(topic_id) == value.strip():
                    return topic_id
        raise CorruptLogError(marker, 0, "it does not tell a topic's id")

    def _open(self, metadata: PartitionMetadata, now_ms: int) -> Partition:
        key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
        if not self._storage.exists(_marker(key)):
            if not self._storage.list(f"{key.topic}-{key.partition}"):
                self._directory.forget_offsets(key.topic, key.partition)
            text = f"version: 0\ntopic_id: {uuid_text(metadata.topic_id)}"
            self._storage.write_atomically(_marker(key), text.encode())
        configs = self.effective_configs(self._metadata.topics[metadata.topic])
        log = self._directory.open_log(
            metadata.topic,
            metadata.partition,
            config=self._log_config(configs),
            now_ms=now_ms,
        )
        return Partition(
            surroundings=self._surroundings,
            metadata=metadata,
            log=log,
            min_insync_replicas=min_insync_replicas(configs),
            high_watermark=self._directory.high_watermark(metadata.topic, metadata.partition),
            on_change=lambda: self.mark_changed(key),
            on_storage_failure=lambda reason: self._fail(key, reason),
        )

    def _fail(self, key: PartitionKey, reason: str) -> None:
        partition = self._partitions.get(key)
        if partition is not None:
            self._storage_has_failed(partition, reason)


def _marker(key: PartitionKey) -> str:
    return f"{key.topic}-{key.partition}/{PARTITION_METADATA_FILE}"


def _warn_of_stray(key: PartitionKey, error: Exception) -> None:
    logger.warning(
        "The log %s-%d of a topic that is gone stays on storage for now: %s",
        key.topic, key.partition, error,
    )  # fmt: skip
