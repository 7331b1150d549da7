"""The partitions that this broker has a replica of.

Purpose: follow the metadata: open the log of a partition that is new, close and remove that of one
that is gone, note leadership in the log; run what logs need from time to time. Invariant: the
directories on storage are those of the metadata's partitions, each with its topic's id; one of
another id, which a crash in the middle of a deletion leaves, is removed before any log is opened.
What it must not know: requests. Source: Kafka's `ReplicaManager`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata, PartitionMetadata, Topic
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError
from broker_ref.log.log_directory import LogDirectory
from broker_ref.log.storage import Storage, StorageError
from broker_ref.protocol.errors import ApiError, unknown_partition
from broker_ref.protocol.identifiers import Uuid, uuid_from_text, uuid_text
from broker_ref.replication.partition import Partition, PartitionKey
from broker_ref.topic_configs import min_insync_replicas

PARTITION_METADATA_FILE: Final = "partition.metadata"


class ReplicaManager:
    """The replicas on one broker."""

    def __init__(
        self, *, config: BrokerConfig, storage: Storage, metadata: ClusterMetadata, now_ms: int
    ) -> None:
        """Open the log of every partition on this broker; CorruptLog or StorageError names one."""
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._directory = LogDirectory(storage=storage)
        self._partitions: dict[PartitionKey, Partition] = {}
        self._changed: dict[PartitionKey, None] = {}
        self._offline: dict[PartitionKey, str] = {}
        self._remove_strays()
        for partition in self._local_partitions():
            self._add(partition, now_ms)

    def partition(self, topic: str, partition: int) -> Partition:
        """The replica of a partition.

        UNKNOWN_TOPIC_OR_PARTITION where there is none here, KAFKA_STORAGE_ERROR where its log
        could not be made.
        """
        key = PartitionKey(topic=topic, partition=partition)
        found = self._partitions.get(key)
        if found is not None:
            return found
        if key in self._offline:
            raise ApiError(ErrorCode.kafka_storage_error, self._offline[key])
        raise unknown_partition(topic, partition)

    def partitions(self) -> tuple[Partition, ...]:
        """Every replica here."""
        return tuple(self._partitions.values())

    def mark_changed(self, key: PartitionKey) -> None:
        """Note that those who wait for this partition are to be asked again."""
        self._changed[key] = None

    def take_changed(self) -> tuple[PartitionKey, ...]:
        """The partitions marked since the last call, in order."""
        changed = tuple(self._changed)
        self._changed.clear()
        return changed

    def follow_metadata(self, now_ms: int) -> None:
        """Make the logs here those that the metadata says.

        A log that storage refuses to make is offline until the next start.
        """
        for key, partition in list(self._partitions.items()):
            current = self._metadata.partition(key.topic, key.partition)
            if current is None or current.topic_id != partition.metadata.topic_id:
                self._delete(key)
            elif current is not partition.metadata:
                self._follow(partition, current)
        for key in list(self._offline):
            if self._metadata.partition(key.topic, key.partition) is None:
                del self._offline[key]
        for metadata in self._local_partitions():
            key = PartitionKey(topic=metadata.topic, partition=metadata.partition)
            if key in self._partitions or key in self._offline:
                continue
            try:
                self._add(metadata, now_ms)
            except (LogError, StorageError) as error:
                self._offline[key] = str(error)

    def run_retention(self, now_ms: int) -> None:
        """Delete what is past its topic's retention."""
        for partition in self._partitions.values():
            with suppress(LogError):  # The log notes it, and takes no more writes.
                partition.log.apply_retention(now_ms, high_watermark=partition.high_watermark)
                self.mark_changed(partition.key)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that have stopped writing."""
        for partition in self._partitions.values():
            partition.log.expire_producers(now_ms)

    def flush_and_checkpoint(self, now_ms: int) -> None:
        """Flush logs whose `flush.ms` has passed, and note what recovery may skip."""
        for partition in self._partitions.values():
            with suppress(LogError):
                partition.log.flush_if_due(now_ms)
        with suppress(StorageError):
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make log start offsets, and what is flushed, survive a crash."""
        self._directory.checkpoint()

    def close(self) -> None:
        """Flush and close every log, and note that the stop was clean."""
        self._directory.close()
        self._partitions.clear()

    def effective_configs(self, topic: Topic) -> dict[str, str]:
        """A topic's configs over the server-wide defaults that were given."""
        return {**self._config.topic_config_defaults(), **topic.configs}

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

    def _follow(self, partition: Partition, metadata: PartitionMetadata) -> None:
        try:
            partition.follow(metadata)
        except StorageError as error:
            del self._partitions[partition.key]
            self._offline[partition.key] = str(error)
        self.mark_changed(partition.key)

    def _delete(self, key: PartitionKey) -> None:
        """Forget a replica and remove its log, at the next start where storage refuses it now."""
        del self._partitions[key]
        self.mark_changed(key)
        with suppress(StorageError):
            self._directory.delete_log(key.topic, key.partition)

    def _open(self, metadata: PartitionMetadata, now_ms: int) -> Partition:
        marker = _marker(metadata.topic, metadata.partition)
        if not self._storage.exists(marker):
            text = f"version: 0\ntopic_id: {uuid_text(metadata.topic_id)}"
            self._storage.write_atomically(marker, text.encode())
        configs = self.effective_configs(self._metadata.topics[metadata.topic])
        log = self._directory.open_log(
            metadata.topic,
            metadata.partition,
            config=LogConfig.from_topic_configs(configs),
            now_ms=now_ms,
        )
        return Partition(
            broker_id=self._config.node_id,
            metadata=metadata,
            log=log,
            min_insync_replicas=min_insync_replicas(configs),
        )

    def _remove_strays(self) -> None:
        """Remove the logs that crashes left of topics that are no more."""
        known = {
            (partition.topic, partition.partition): partition.topic_id
            for partition in self._local_partitions()
        }
        for topic, partition in self._directory.partitions_on_disk():
            marker = _marker(topic, partition)
            if not self._storage.exists(marker):
                continue
            if self._topic_id(marker) != known.get((topic, partition)):
                self._directory.delete_log(topic, partition)

    def _topic_id(self, marker: str) -> Uuid | None:
        for line in self._storage.read(marker).decode().splitlines():
            name, _, value = line.partition(":")
            if name == "topic_id":
                return uuid_from_text(value.strip())
        return None


def _marker(topic: str, partition: int) -> str:
    return f"{topic}-{partition}/{PARTITION_METADATA_FILE}"
