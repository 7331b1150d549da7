"""Compacts all logs in a data directory in bounded steps (Kafka's `LogCleaner`).

The cleaner selects the log with the largest dirty ratio, compacts it over several calls, stores the
clean offset in `cleaner-offset-checkpoint`, and then selects the next log. Invariants: only one log
is compacted at a time. If segments of the log are removed during its compaction (because of
truncation or deletion), the compaction is aborted. Retention skips a log that is being compacted.
The cleaner replaces Kafka's cleaner threads in a single-threaded broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping

from kio.schema.errors import ErrorCode

from broker_ref.frozen import dataclass
from broker_ref.log.checkpoints import TopicPartition
from broker_ref.log.cleaning import clean_log
from broker_ref.log.errors import LogError
from broker_ref.log.log_to_clean import LogToClean, find_cleanable
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.storage import StorageError

DEDUPE_BUFFER_BYTES = 128 * 1024 * 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CleaningRun:
    """The compaction of a log. `removals` is `PartitionLog.removals` before the compaction."""

    key: TopicPartition
    log: PartitionLog
    removals: int
    steps: Generator[int, None, int]


class LogCleaner:
    """Compacts the logs in `logs`, which may change between calls.

    `checkpoints` contains the offset up to which each log has been compacted. The cleaner updates
    these offsets and calls `save` to persist them.
    """

    def __init__(
        self,
        *,
        logs: Mapping[TopicPartition, PartitionLog],
        checkpoints: dict[TopicPartition, int],
        save: Callable[[], None],
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    ) -> None:
        self._logs = logs
        self._checkpoints = checkpoints
        self._save = save
        self.dedupe_buffer_bytes = dedupe_buffer_bytes
        self._run: _CleaningRun | None = None
        self._uncleanable: set[PartitionLog] = set()

    def run(
        self, now_ms: int, stable_offsets: Mapping[TopicPartition, int], *, budget_bytes: int
    ) -> bool:
        """Perform about `budget_bytes` of compaction work. Return whether more work may remain.

        A call completes the compaction of at most one log, because each completed compaction writes
        a checkpoint file. Only logs whose last stable offset is in `stable_offsets` are compacted.
        This method never raises an exception. If a log is corrupt or its compaction fails because
        of a bug, the log is skipped until the broker restarts. If the storage of a log fails, the
        log is skipped until the next call.
        """
        while budget_bytes > 0:
            if self._run is None:
                self._run = self._begin(now_ms, stable_offsets)
            run = self._run
            if run is None:
                return False
            log = self._logs.get(run.key)
            if log is not run.log or log.removals != run.removals or not log.config.compact:
                self.abort()
                continue
            self._run = None  # A generator cannot be resumed after an exception.
            try:
                budget_bytes -= next(run.steps)
                self._run = run
            except StopIteration as finished:
                return self._finish(run, finished.value)
            except Exception as error:  # No error may prevent the compaction of other logs.
                if not self._failed(run.log, error):
                    return False
        return True

    def is_compacting(self, log: PartitionLog) -> bool:
        """Return whether the compaction of a log has started and is not complete."""
        return self._run is not None and self._run.log is log

    def abort(self) -> None:
        """Abort the current compaction. Segments that were already replaced remain compacted."""
        if self._run is not None:
            run, self._run = self._run, None
            try:
                run.steps.close()
            except StorageError as error:
                logger.warning(
                    "Failed to remove a file that an aborted compaction had created. The broker "
                    "will remove the file at the next startup: %s",
                    error,
                )

    def _begin(
        self, now_ms: int, stable_offsets: Mapping[TopicPartition, int]
    ) -> _CleaningRun | None:
        self._uncleanable.intersection_update(self._logs.values())
        dirtiest: tuple[TopicPartition, LogToClean] | None = None
        for key, log in self._logs.items():
            if (
                not log.config.compact
                or log.storage_error is not None
                or log in self._uncleanable
                or key not in stable_offsets
            ):
                continue
            try:
                found = find_cleanable(
                    log,
                    checkpoint=self._checkpoints.get(key),
                    last_stable_offset=stable_offsets[key],
                    now_ms=now_ms,
                )
            except Exception as error:  # No error may prevent the compaction of other logs.
                self._failed(log, error)
                continue
            if found is not None and (dirtiest is None or found.ratio > dirtiest[1].ratio):
                dirtiest = key, found
        if dirtiest is None:
            return None
        key, log_to_clean = dirtiest
        steps = clean_log(log_to_clean, now_ms=now_ms, map_bytes_max=self.dedupe_buffer_bytes)
        return _CleaningRun(
            key=key, log=log_to_clean.log, removals=log_to_clean.log.removals, steps=steps
        )

    def _failed(self, log: PartitionLog, error: Exception) -> bool:
        """Log why a log was not compacted. Return whether other logs can be compacted."""
        if isinstance(error, StorageError):
            logger.warning("Postponing the compaction of %s: %s", log.directory, error)
            return False
        if isinstance(error, LogError) and error.error_code is ErrorCode.kafka_storage_error:
            return False
        self._uncleanable.add(log)
        logger.error(
            "%s will not be compacted until the broker is restarted: %s", log.directory, error,
            exc_info=None if isinstance(error, LogError) else error,
        )  # fmt: skip
        return True

    def _finish(self, run: _CleaningRun, end_offset: int) -> bool:
        logger.info("%s was compacted up to offset %d", run.log.directory, end_offset)
        self._checkpoints[run.key] = end_offset
        try:
            self._save()
        except StorageError as error:
            logger.warning(
                "Failed to write the offset of a completed compaction to the checkpoint file. The "
                "compaction may be repeated: %s",
                error,
            )
            return False
        return True
