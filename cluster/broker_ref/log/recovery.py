"""Restores a log directory to a consistent state (Kafka's `LogLoader`).

| file or state                               | action                                         |
| ------------------------------------------- | ---------------------------------------------- |
| `*.deleted`; an index file without its log  | removed; an index file between two segments is |
| file                                        | rejected, because no crash causes this state   |
| `*.cleaned`, `*.swap`                       | see `swapping`                                 |
| a missing or corrupt index                  | rebuilt from the log file                      |
| a segment at or above the recovery point,   | all CRCs are checked; the log is truncated at  |
| after an unclean shutdown                   | the first invalid batch                        |
| an invalid batch below the recovery point,  | rejected with `CorruptLogError`, which         |
| or after a clean shutdown                   | contains the file and the position             |
| overlapping segments                        | rejected with `CorruptLogError`; gaps are      |
|                                             | accepted, because compaction causes gaps       |
| a checkpointed log start offset above the   | all segments are removed; the empty log starts |
| log end offset                              | at the log start offset                        |
| producer state                              | recovered from the latest snapshot and the     |
|                                             | batches after it; markers that may not be      |
|                                             | replicated are read from the high watermark    |
| a transaction index that is corrupt, or at  | rebuilt, along with all later transaction      |
| or above the recovery point                 | indexes                                        |

Invariant: the loaded log contains valid batches with ascending offsets, at least up to the recovery
point. This broker deliberately differs from Kafka in one respect: it rejects a log with a corrupt
batch below the recovery point. Kafka truncates such a log, and silently loses flushed records.
"""

from __future__ import annotations

import logging

from broker_ref.frozen import dataclass
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import CorruptLogError
from broker_ref.log.leader_epochs import LeaderEpochFileCache
from broker_ref.log.producer_log import ProducerLog
from broker_ref.log.producer_snapshots import ProducerSnapshots
from broker_ref.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    BadBatch,
    LogSegment,
    file_name,
)
from broker_ref.log.storage import Storage
from broker_ref.log.swapping import finish_compaction

DELETED_SUFFIX = ".deleted"
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """A consistent log with at least one segment. The last segment is active."""

    segments: list[LogSegment]
    leader_epochs: LeaderEpochFileCache
    producers: ProducerLog
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


@dataclass(slots=True, kw_only=True)
class LogLoader:
    """Loads one log. The offset fields contain checkpointed offsets, or 0 if there are none."""

    storage: Storage
    directory: str
    config: LogConfig
    now_ms: int
    clean: bool
    recovery_point: int
    log_start_offset: int
    high_watermark: int

    def load(self) -> LoadedLog:
        """Load the log, and create a segment if there is none.

        Raises: CorruptLogError if flushed data is corrupt, StorageError.
        """
        leader_epochs = LeaderEpochFileCache(storage=self.storage, directory=self.directory)
        segments = self._open_segments()
        log_end_offset = self._recover(segments, leader_epochs)
        if segments and log_end_offset < self.recovery_point:
            raise CorruptLogError(
                segments[-1].path,
                segments[-1].size_bytes,
                f"the log ends at offset {log_end_offset}, but it was flushed up to offset "
                f"{self.recovery_point}",
            )
        if segments and self.clean and 0 < self.recovery_point < log_end_offset:
            raise CorruptLogError(
                segments[-1].path,
                segments[-1].size_bytes,
                f"the log ends at offset {log_end_offset}, but at the last clean shutdown it ended "
                f"at offset {self.recovery_point}",
            )
        if log_end_offset < self.log_start_offset:
            logger.warning(
                "%s: the log end offset %d is below the log start offset %d. All segments will "
                "be removed, and the empty log will start at the log start offset",
                self.directory, log_end_offset, self.log_start_offset,
            )  # fmt: skip
            _remove_from(segments, 0)
        if not segments:
            segments.append(self._open_segment(self.log_start_offset))
            if self.log_start_offset:
                # The file name, not a checkpoint, sets the next offset. The file must be durable.
                segments[0].flush()
            log_end_offset = self.log_start_offset
        log_start_offset = max(self.log_start_offset, segments[0].base_offset)
        leader_epochs.truncate_from_end(log_end_offset)
        leader_epochs.truncate_from_start(log_start_offset)
        leader_epochs.flush()
        producers = ProducerLog(
            snapshots=ProducerSnapshots(storage=self.storage, directory=self.directory),
            expiration_ms=self.config.producer_id_expiration_ms,
        )
        producers.load(
            segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            now_ms=self.now_ms,
            high_watermark=self.high_watermark,
            indexed_to=self._indexed_to(segments),
        )
        return LoadedLog(
            segments=segments,
            leader_epochs=leader_epochs,
            producers=producers,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=log_end_offset
            if self.clean
            else min(self.recovery_point, log_end_offset),
        )

    def _open_segment(self, base_offset: int) -> LogSegment:
        return LogSegment(
            storage=self.storage,
            directory=self.directory,
            base_offset=base_offset,
            config=self.config,
            now_ms=self.now_ms,
        )

    def _open_segments(self) -> list[LogSegment]:
        """Open all segments in ascending order and remove leftover files."""
        finish_compaction(self.storage, self.directory)
        names = self.storage.list(self.directory)
        bases = sorted(
            int(name.removesuffix(LOG_SUFFIX))
            for name in names
            if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()
        )
        present = frozenset(names)
        for name in names:
            stem, _, suffix = name.rpartition(".")
            orphan = f".{suffix}" in _INDEX_SUFFIXES and f"{stem}{LOG_SUFFIX}" not in present
            if orphan and bases and stem.isdigit() and bases[0] < int(stem) < bases[-1]:
                # No crash causes this state: segments are removed only at the ends of the log, and
                # the cleaner removes the indexes of a segment before its log file.
                raise CorruptLogError(
                    f"{self.directory}/{stem}{LOG_SUFFIX}",
                    0,
                    "the log file is missing, but its indexes exist",
                )
            if orphan or name.endswith(DELETED_SUFFIX):
                self.storage.remove(f"{self.directory}/{name}")
        segments = []
        for base in bases:
            index_missing = not present.issuperset(
                (file_name(base, INDEX_SUFFIX), file_name(base, TIME_INDEX_SUFFIX))
            )
            segment = self._open_segment(base)
            if index_missing and segment.size_bytes:
                damage: str | None = "an index is missing"
            else:
                damage = segment.index_damage()
            if damage is not None and not self._to_recover(base, bases):
                logger.warning("Rebuilding the indexes of %s: %s", segment.path, damage)
                segment.rebuild_indexes()
            segments.append(segment)
        return segments

    def _indexed_to(self, segments: list[LogSegment]) -> int | None:
        """Return the base offset from which transaction indexes must be rebuilt, or None."""
        bases = [segment.base_offset for segment in segments]
        for segment in segments:
            if self._to_recover(segment.base_offset, bases):
                return segment.base_offset
            damage = segment.transactions.damage(segment.base_offset)
            if damage is not None:
                logger.warning(
                    "Rebuilding the transaction indexes starting with %s: %s", segment.path, damage
                )
                return segment.base_offset
        return None

    def _to_recover(self, base: int, bases: list[int]) -> bool:
        """Return whether a segment may contain offsets at or above the recovery point."""
        following = [other for other in bases if other > base]
        return not self.clean and (not following or following[0] > self.recovery_point)

    def _recover(self, segments: list[LogSegment], leader_epochs: LeaderEpochFileCache) -> int:
        """Check the segments, truncate the log at an invalid batch, and return the end offset."""
        bases = [segment.base_offset for segment in segments]
        expected: int | None = None
        for index, segment in enumerate(segments):
            if expected is not None and segment.base_offset < expected:
                raise CorruptLogError(
                    segments[index - 1].path,
                    segments[index - 1].size_bytes,
                    f"the segment ends at offset {expected}, but the next segment starts at "
                    f"offset {segment.base_offset}",
                )
            if not self._to_recover(segment.base_offset, bases):
                expected = segment.next_offset()
                continue
            expected, bad = self._recover_segment(segment, leader_epochs)
            if bad is not None:
                logger.warning(
                    "%s: %s at byte %d; truncating the log to offset %d",
                    segment.path, bad.reason, bad.position, bad.next_offset,
                )  # fmt: skip
                _remove_from(segments, index + 1)
                segment.truncate(bad.position)
                return expected
        return self.log_start_offset if expected is None else expected

    def _recover_segment(
        self, segment: LogSegment, leader_epochs: LeaderEpochFileCache
    ) -> tuple[int, BadBatch | None]:
        """Return the offset after the last valid batch, and the first invalid batch or None."""
        next_offset = segment.base_offset
        for item in segment.recover():
            if isinstance(item, BadBatch):
                if item.next_offset < self.recovery_point:
                    raise CorruptLogError(segment.path, item.position, item.reason)
                return item.next_offset, item
            next_offset = item.next_offset
            epoch, latest = item.partition_leader_epoch, leader_epochs.latest
            if epoch >= 0 and (latest is None or epoch > latest):
                leader_epochs.assign(epoch, item.base_offset)
        return next_offset, None


def _remove_from(segments: list[LogSegment], index: int) -> None:
    """Remove the segments at and after `index`, newest first, so that a crash leaves no gap."""
    while len(segments) > index:
        segments.pop().delete()
