"""Compaction of all logs of a data directory in bounded steps (Kafka's `LogCleaner`).

Purpose: choose the log with the largest dirty ratio, compact it over several calls, store the
offset in `cleaner-offset-checkpoint`, and repeat. Invariant: one log at a time; if a log loses
segments meanwhile (truncation, retention, deletion), its compaction is aborted. Must not know: how
to compact a log, or when it is called. It replaces the threads of Kafka's cleaner in a
single-threaded broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

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
    """The compaction of a log; `removals` is the log's counter at the start."""

    key: TopicPartition
    log: PartitionLog
    removals: int
    steps: Generator[int, None, int]


class LogCleaner:
    """Compacts the current `logs`; `checkpoints` is its own and persisted by `save`."""

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
        self._dedupe_buffer_bytes = dedupe_buffer_bytes
        self._run: _CleaningRun | None = None
        self._uncleanable: set[PartitionLog] = set()

    def run(
        self, now_ms: int, stable_offsets: Mapping[TopicPartition, int], *, budget_bytes: int
    ) -> bool:
        """Compact for about `budget_bytes` of work; returns whether there is more to do.

        Only logs in `stable_offsets`, which contains their last stable offsets, are compacted.
        Raises nothing: a log that is damaged or triggers a bug is skipped until the next start, a
        log whose storage fails until the next call.
        """
        while budget_bytes > 0:
            if self._run is None:
                self._run = self._begin(now_ms, stable_offsets)
            run = self._run
            if run is None:
                return False
            if self._logs.get(run.key) is not run.log or run.log.removals != run.removals:
                self.abort()
                continue
            self._run = None  # Reset: a generator that has raised is finished too.
            try:
                budget_bytes -= next(run.steps)
                self._run = run
            except StopIteration as finished:
                if not self._finish(run, finished.value):
                    return False
            except Exception as error:  # Whatever the error is, other logs must still be compacted.
                if not self._failed(run.log, error):
                    return False
        return True

    def abort(self) -> None:
        """Abort the current compaction; its log does not change."""
        if self._run is not None:
            run, self._run = self._run, None
            try:
                run.steps.close()
            except StorageError as error:
                logger.warning(
                    "A file of an aborted compaction remains until the next start: %s", error
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
            except Exception as error:  # As in `run`.
                self._failed(log, error)
                continue
            if found is not None and (dirtiest is None or found.ratio > dirtiest[1].ratio):
                dirtiest = key, found
        if dirtiest is None:
            return None
        key, log_to_clean = dirtiest
        steps = clean_log(log_to_clean, now_ms=now_ms, map_bytes_max=self._dedupe_buffer_bytes)
        return _CleaningRun(
            key=key, log=log_to_clean.log, removals=log_to_clean.log.removals, steps=steps
        )

    def _failed(self, log: PartitionLog, error: Exception) -> bool:
        """Log why a log could not be compacted; returns whether others can be."""
        if isinstance(error, StorageError):
            logger.warning("Compaction of %s is postponed: %s", log.directory, error)
            return False
        if isinstance(error, LogError) and error.error_code is ErrorCode.kafka_storage_error:
            return False
        self._uncleanable.add(log)
        logger.error(
            "%s is not compacted until the next start: %s", log.directory, error,
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
                "The offset of a compaction was not checkpointed, so it may be repeated: %s", error
            )
            return False
        return True
