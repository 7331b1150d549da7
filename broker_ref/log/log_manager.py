"""All logs in a broker's data directory and their checkpoints (Kafka's `LogManager`).

    <root>/
        orders-0/  orders-1/                one log each (`partition_log`)
        <topic id>-2-delete/                a log that is being deleted
        <topic id>-3-stray/                 a log whose topic does not exist, renamed
        recovery-point-offset-checkpoint    flushed offsets, per partition
        log-start-offset-checkpoint         log start offsets, per partition
        cleaner-offset-checkpoint           compacted offsets, per partition
        replication-offset-checkpoint       high watermarks, per partition
        .kafka_cleanshutdown                exists only between a clean shutdown and the next start

Purpose: open logs with their checkpoints, checkpoint all logs in a few files, and distinguish a
clean shutdown from a crash. Invariant: the clean-shutdown marker is written last and removed first;
no checkpoint exceeds what its log contains, even if a truncation is interrupted. Must not know:
topic configs, or when to checkpoint. Source: `LogManager`, `CleanShutdownFileHandler`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import partial

from broker_ref.log.checkpoints import (
    CLEAN_SHUTDOWN_CONTENT,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
    read_offsets,
    write_offsets,
)
from broker_ref.log.cleaner import DEDUPE_BUFFER_BYTES, LogCleaner
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.storage import Storage, StorageError

_LOG_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
# Short suffixes that no log has: a topic name can be as long as a file name.
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"

# About a tenth of a second of work, during which nothing else is served.
CLEAN_BUDGET_BYTES = 256 * 1024

logger = logging.getLogger(__name__)


class LogManager:
    """The logs in one storage, which has one user at a time (`DiskStorage` locks its root)."""

    def __init__(self, *, storage: Storage, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES) -> None:
        """Read the checkpoints, remove the clean-shutdown marker, finish interrupted deletions.

        Raises: CorruptLogError naming a damaged checkpoint, StorageError.
        """
        self._storage = storage
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._recovery_points = read_offsets(storage, RECOVERY_POINT_FILE)
        self._log_start_offsets = read_offsets(storage, LOG_START_OFFSET_FILE)
        self._high_watermarks = read_offsets(storage, HIGH_WATERMARK_FILE)
        self._cleaner_offsets = read_offsets(storage, CLEANER_OFFSET_FILE)
        self._written = {
            path: dict(offsets)
            for path, offsets in self._checkpoints().items()
            if storage.exists(path)
        }
        self._cleaner = LogCleaner(
            logs=self._logs,
            checkpoints=self._cleaner_offsets,
            save=self.checkpoint,
            dedupe_buffer_bytes=dedupe_buffer_bytes,
        )
        self._unclean_logs = False
        self.was_clean = storage.exists(CLEAN_SHUTDOWN_FILE)
        storage.remove(CLEAN_SHUTDOWN_FILE)
        for name in storage.list(""):
            if name.endswith(_DELETE_SUFFIX):
                try:
                    storage.remove(name)
                except StorageError as error:
                    logger.warning(
                        "A deleted log remains on storage until the next start: %s", error
                    )

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Return the open logs."""
        return self._logs

    def partitions_on_disk(self) -> list[TopicPartition]:
        """Return the partitions that have a directory, sorted."""
        matches = [_LOG_DIRECTORY.fullmatch(name) for name in self._storage.list("")]
        return sorted((match[1], int(match[2])) for match in matches if match is not None)

    def open_log(
        self, topic: str, partition: int, *, config: LogConfig, now_ms: int
    ) -> PartitionLog:
        """Open a partition's log, creating it if missing, and add it to the open logs.

        Raises: CorruptLogError, StorageError. The log's files then do not change, and the next
        shutdown does not count as clean.
        """
        key = (topic, partition)
        assert key not in self._logs, f"{topic}-{partition} is already open"
        unclean_before, self._unclean_logs = self._unclean_logs, True
        self._logs[key] = PartitionLog.open(
            storage=self._storage,
            directory=f"{topic}-{partition}",
            config=config,
            now_ms=now_ms,
            clean=self.was_clean,
            recovery_point=self._recovery_points.get(key, 0),
            log_start_offset=self._log_start_offsets.get(key, 0),
            high_watermark=self._high_watermarks.get(key, 0),
            on_truncate=partial(self._before_truncation, key),
        )
        self._unclean_logs = unclean_before
        return self._logs[key]

    def high_watermark(self, topic: str, partition: int) -> int:
        """Return the checkpointed high watermark of an open log, limited to its start and end."""
        log = self._logs[topic, partition]
        checkpointed = self._high_watermarks.get((topic, partition), 0)
        return max(log.log_start_offset, min(checkpointed, log.log_end_offset))

    def _before_truncation(self, key: TopicPartition, offset: int) -> None:
        for offsets in (self._high_watermarks, self._cleaner_offsets):
            if key in offsets:
                offsets[key] = min(offsets[key], offset)
        self.checkpoint()

    def delete_log(self, topic: str, partition: int, *, unique_id: str) -> None:
        """Close and delete a partition's log; a crash leaves it whole or deleted.

        `unique_id` distinguishes logs of the same name. Raises: StorageError if it remains on
        storage, under its name or as a log to delete, which the next start removes.
        """
        name = self._move(topic, partition, f"{unique_id}-{partition}{_DELETE_SUFFIX}")
        self.checkpoint()
        self._storage.remove(name)

    def set_aside(self, topic: str, partition: int, *, unique_id: str) -> str:
        """Close a partition's log and rename it; returns the new name."""
        name = self._move(topic, partition, f"{unique_id}-{partition}{_STRAY_SUFFIX}")
        self.checkpoint()
        return name

    def forget_offsets(self, topic: str, partition: int) -> None:
        """Durably remove a partition's checkpoints; a new one must not inherit them."""
        key = (topic, partition)
        self._forget(key)
        if any(key in offsets for offsets in self._written.values()):
            self.checkpoint()

    def clean(
        self,
        now_ms: int,
        stable_offsets: Mapping[TopicPartition, int],
        *,
        budget_bytes: int = CLEAN_BUDGET_BYTES,
    ) -> bool:
        """Compact some of the open logs; returns whether there is more to do.

        See `LogCleaner.run`. Raises: nothing.
        """
        return self._cleaner.run(now_ms, stable_offsets, budget_bytes=budget_bytes)

    def _move(self, topic: str, partition: int, target: str) -> str:
        key = (topic, partition)
        log = self._logs.pop(key, None)
        if log is not None:
            log.discard()
        directory = f"{topic}-{partition}"
        if self._storage.list(directory):
            self._storage.rename(directory, target)
        self._forget(key)
        return target

    def _forget(self, key: TopicPartition) -> None:
        for offsets in self._checkpoints().values():
            offsets.pop(key, None)

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the checkpoint files whose offsets have changed.

        `high_watermarks` are those of open logs; other logs keep their last ones.
        """
        for key, high_watermark in (high_watermarks or {}).items():
            if key in self._logs:
                self._high_watermarks[key] = high_watermark
        for key, log in self._logs.items():
            self._recovery_points[key] = log.recovery_point
            # As in Kafka, a log that starts with its first segment has no entry.
            self._log_start_offsets.pop(key, None)
            if log.log_start_offset > log.segment_base_offsets[0]:
                self._log_start_offsets[key] = log.log_start_offset
        for path, offsets in self._checkpoints().items():
            if offsets != self._written.get(path):
                write_offsets(self._storage, path, offsets)
                self._written[path] = dict(offsets)

    def _checkpoints(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            CLEANER_OFFSET_FILE: self._cleaner_offsets,
            HIGH_WATERMARK_FILE: self._high_watermarks,
            LOG_START_OFFSET_FILE: self._log_start_offsets,
            RECOVERY_POINT_FILE: self._recovery_points,
        }

    def close(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Shut down cleanly: flush and close all logs, checkpoint, and write the marker.

        If a log could not be opened or written, there is no marker and the next start recovers the
        logs. The first LogError or StorageError is raised after all are closed.
        """
        self._cleaner.abort()
        unopened = [key for key in self.partitions_on_disk() if key not in self._logs]
        clean = not self._unclean_logs and (self.was_clean or not unopened)
        errors: list[LogError | StorageError] = []
        for log in self._logs.values():
            clean = clean and log.storage_error is None
            try:
                log.close()
            except LogError as error:
                errors.append(error)
        try:
            self.checkpoint(high_watermarks)
            if clean and not errors:
                self._storage.write_atomically(CLEAN_SHUTDOWN_FILE, CLEAN_SHUTDOWN_CONTENT)
        except StorageError as error:
            errors.append(error)
        self._logs.clear()
        if errors:
            raise errors[0]
