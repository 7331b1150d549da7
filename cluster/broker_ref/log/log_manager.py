"""All logs in a broker's data directory and their checkpoints (Kafka's `LogManager`).

    <root>/
        orders-0/  orders-1/                one log each (`partition_log`)
        <topic id>-2.0-delete/              a log that is being deleted
        <topic id>-3.0-stray/               a log whose topic does not exist
        recovery-point-offset-checkpoint    recovery points, per partition
        log-start-offset-checkpoint         log start offsets, per partition
        cleaner-offset-checkpoint           compacted offsets, per partition
        replication-offset-checkpoint       high watermarks, per partition
        .kafka_cleanshutdown                exists only from a clean shutdown to the next startup

The manager opens logs with their checkpointed offsets, writes the checkpoints of all logs to shared
files, and detects whether the last shutdown was clean. Invariants: the clean-shutdown marker is
written last and removed first. No checkpointed offset exceeds the log end offset, even if a
truncation is interrupted. Source: `LogManager`, `CleanShutdownFileHandler`.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from broker_ref.log.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    NO_BROKER_EPOCH,
    RECOVERY_POINT_FILE,
    TopicPartition,
    read_offsets,
    write_clean_shutdown,
    write_offsets,
)
from broker_ref.log.cleaner import DEDUPE_BUFFER_BYTES, LogCleaner
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import LogError
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.segment import has_records
from broker_ref.log.storage import Storage, StorageError

_LOG_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
# Directory names with these suffixes contain the topic id instead of the topic name, because a
# topic name without a suffix can have the maximum length of a file name. As in Kafka, the directory
# names must be unique, because a replica can be created and deleted again before the files of its
# first log are removed.
_DELETE_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"

# About 50 ms of work, during which the broker serves no requests.
CLEAN_BUDGET_BYTES = 128 * 1024

logger = logging.getLogger(__name__)


class LogManager:
    """The logs in one `Storage`, which only one process can use at a time.

    `DiskStorage` locks its root directory to prevent use by other processes.
    """

    def __init__(self, *, storage: Storage, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES) -> None:
        """Read the checkpoints and remove the clean-shutdown marker.

        Later calls to `remove_deleted` complete the deletions that a crash has interrupted.

        Raises: CorruptLogError with the name of a corrupt checkpoint file, StorageError.
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
            save=lambda: self._write_checkpoint(CLEANER_OFFSET_FILE),
            dedupe_buffer_bytes=dedupe_buffer_bytes,
        )
        self._unclean_logs = False
        self.was_clean = storage.exists(CLEAN_SHUTDOWN_FILE)
        storage.remove(CLEAN_SHUTDOWN_FILE)
        self._deleted = deque(name for name in storage.list("") if name.endswith(_DELETE_SUFFIX))

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Return the open logs."""
        return self._logs

    def partitions_on_disk(self) -> list[TopicPartition]:
        """Return all partitions that have a log directory, sorted."""
        matches = [_LOG_DIRECTORY.fullmatch(name) for name in self._storage.list("")]
        return sorted((match[1], int(match[2])) for match in matches if match is not None)

    def open_log(
        self,
        topic: str,
        partition: int,
        *,
        config: LogConfig,
        now_ms: int,
        before_first_write: Callable[[], None] = lambda: None,
    ) -> PartitionLog:
        """Open the log of a partition, or create the log if it does not exist.

        `before_first_write` is called before the first record is written. If `before_first_write`
        raises an exception, it is called again before the next write. If the log cannot be opened,
        its files remain unchanged, and the next shutdown is not recorded as clean. Raises:
        CorruptLogError, StorageError.
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
            before_first_write=before_first_write,
        )
        self._unclean_logs = unclean_before
        return self._logs[key]

    def high_watermark(self, topic: str, partition: int) -> int:
        """Return the checkpointed high watermark of a log, limited to the offsets of the log."""
        log = self._logs[topic, partition]
        checkpointed = self._high_watermarks.get((topic, partition), 0)
        return max(log.log_start_offset, min(checkpointed, log.log_end_offset))

    def _before_truncation(self, key: TopicPartition, offset: int) -> None:
        """Lower the checkpointed offsets of a log to at most `offset`.

        The checkpointed log start offset becomes the current log start offset. A checkpoint file is
        rewritten only if its entry for this log has changed.
        """
        for path, offsets in self._checkpoints().items():
            if key in offsets and path != LOG_START_OFFSET_FILE:
                offsets[key] = min(offsets[key], offset)
        self._update_log_start_offset(key)
        for path, offsets in self._checkpoints().items():
            written = self._written.get(path, {}).get(key)
            if written != offsets.get(key) and (path == LOG_START_OFFSET_FILE or written):
                self._write_checkpoint(path)

    def delete_log(self, topic: str, partition: int, *, topic_id: str) -> None:
        """Close the log of a partition and rename it, so that `remove_deleted` removes its files.

        If the broker crashes during this call, the log is either complete or deleted at the next
        startup. `topic_id` distinguishes logs with the same name. Raises: StorageError if the log
        cannot be renamed. Even then, the offsets of the log are removed from the checkpoints.
        """
        self._deleted.append(self._move(topic, partition, topic_id, _DELETE_SUFFIX))

    def remove_deleted(self, logs_max: int) -> bool:
        """Remove the files of at most `logs_max` deleted logs. Return whether more remain.

        If a file cannot be removed, the broker removes it at its next startup. Source: Kafka's
        `LogManager.deleteLogs`.
        """
        for _ in range(min(logs_max, len(self._deleted))):
            name = self._deleted.popleft()
            try:
                self._storage.remove(name)
            except StorageError as error:
                logger.warning(
                    "Failed to remove the files of a deleted log. The broker will remove the files "
                    "at the next startup: %s",
                    error,
                )
        return bool(self._deleted)

    def rename_stray(self, topic: str, partition: int, *, topic_id: str) -> str:
        """Close the log of a partition, mark its directory as stray, and return the new name."""
        return self._move(topic, partition, topic_id, _STRAY_SUFFIX)

    def remove_checkpoints(self, topic: str, partition: int) -> None:
        """Durably remove a partition's checkpointed offsets so that a new log cannot use them."""
        key = (topic, partition)
        self._remove_from_checkpoints(key)
        for path, offsets in self._written.items():
            if key in offsets:
                self._write_checkpoint(path)

    def clean(
        self,
        now_ms: int,
        stable_offsets: Mapping[TopicPartition, int],
        *,
        budget_bytes: int = CLEAN_BUDGET_BYTES,
    ) -> bool:
        """Compact one of the open logs. Return whether more work may remain.

        This method never raises an exception (see `LogCleaner.run`).
        """
        return self._cleaner.run(now_ms, stable_offsets, budget_bytes=budget_bytes)

    def is_compacting(self, log: PartitionLog) -> bool:
        """Return whether the compaction of a log has started and is not complete."""
        return self._cleaner.is_compacting(log)

    def set_dedupe_buffer_bytes(self, dedupe_buffer_bytes: int) -> None:
        """Set the memory limit for the offset maps of future compactions."""
        self._cleaner.dedupe_buffer_bytes = dedupe_buffer_bytes

    def _move(self, topic: str, partition: int, topic_id: str, suffix: str) -> str:
        """Close the log of a partition, rename its directory, and return the new name."""
        key = (topic, partition)
        log = self._logs.pop(key, None)
        if log is not None:
            log.discard()
        self._remove_from_checkpoints(key)
        names = (f"{topic_id}-{partition}.{number}{suffix}" for number in count())
        target = next(name for name in names if not self._storage.exists(name))
        directory = f"{topic}-{partition}"
        if self._storage.list(directory):
            self._storage.rename(directory, target)
        return target

    def _remove_from_checkpoints(self, key: TopicPartition) -> None:
        for offsets in self._checkpoints().values():
            offsets.pop(key, None)

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write the checkpoint files whose offsets have changed.

        `high_watermarks` contains the high watermarks of open logs. The checkpointed high
        watermarks of all other logs do not change.
        """
        known = high_watermarks or {}
        for key in self._logs:
            self.update_checkpoint(*key, known.get(key))
        self.write_checkpoints()

    def update_checkpoint(self, topic: str, partition: int, high_watermark: int | None) -> None:
        """Update the offsets of a log that the next call to `write_checkpoints` will write.

        If `high_watermark` is None, the checkpointed high watermark does not change.
        """
        key = (topic, partition)
        log = self._logs.get(key)
        if log is None:
            return
        if high_watermark is not None:
            self._high_watermarks[key] = high_watermark
        self._recovery_points[key] = log.recovery_point
        self._update_log_start_offset(key)

    def write_checkpoints(self) -> None:
        """Write the checkpoint files whose offsets have changed. Raises: StorageError."""
        for path, offsets in self._checkpoints().items():
            if offsets != self._written.get(path):
                self._write_checkpoint(path)

    def _update_log_start_offset(self, key: TopicPartition) -> None:
        log = self._logs[key]
        if log.log_start_offset > log.segments[0].base_offset:
            self._log_start_offsets[key] = log.log_start_offset
        else:  # As in Kafka, store no entry if the first segment starts at this offset.
            self._log_start_offsets.pop(key, None)

    def _write_checkpoint(self, path: str) -> None:
        offsets = self._checkpoints()[path]
        write_offsets(self._storage, path, offsets)
        self._written[path] = dict(offsets)

    def _checkpoints(self) -> dict[str, dict[TopicPartition, int]]:
        return {
            CLEANER_OFFSET_FILE: self._cleaner_offsets,
            HIGH_WATERMARK_FILE: self._high_watermarks,
            LOG_START_OFFSET_FILE: self._log_start_offsets,
            RECOVERY_POINT_FILE: self._recovery_points,
        }

    def close(
        self,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        *,
        broker_epoch: int = NO_BROKER_EPOCH,
    ) -> None:
        """Flush and close all logs, then write the checkpoints and the clean-shutdown marker.

        The marker contains the broker epoch. If a log could not be opened or written to, the
        manager does not write the marker, and recovers the logs at the next startup. Raises: the
        first LogError or StorageError, after all logs have been closed.
        """
        self._cleaner.abort()
        clean = not self._unclean_logs
        errors: list[LogError | StorageError] = []
        for log in self._logs.values():
            clean = clean and log.storage_error is None
            try:
                log.close()
            except LogError as error:
                errors.append(error)
        try:
            self.checkpoint(high_watermarks)
            if clean and not errors and (self.was_clean or not self._has_unopened_records()):
                write_clean_shutdown(self._storage, broker_epoch)
        except StorageError as error:
            errors.append(error)
        self._logs.clear()
        if errors:
            raise errors[0]

    def _has_unopened_records(self) -> bool:
        """Return whether the data directory contains a log with records that was not opened.

        The next startup may have to recover such a log. Logs without records are ignored, because a
        power failure can remove their topic ids. The broker then retains the directory of such a
        log even after the topic is deleted.
        """
        return any(
            has_records(self._storage, f"{topic}-{partition}")
            for topic, partition in self.partitions_on_disk()
            if (topic, partition) not in self._logs
        )
